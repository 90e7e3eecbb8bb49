"""Time a create by Hostler against a bare start of the same guest: `python -m tests.bench [--rounds N] [--json]`.

Each round boots one guest by hand and one by `POST /v1/vms`, in turns first, each up to the first words of its SSH
server. Ends with 0, 1 (over the limit, or something failed) or 2 (it cannot begin).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from drivers.hypervisor import Availability
from drivers.hypervisor.qemu_probe import find_availability
from tests.bench.bare import CPU_MILLICORES, DISK_GIB, MEMORY_MIB, BareMachine, Boot
from tests.bench.created import Created, HostlerMachine
from tests.bench.installation import find_left, installed
from tests.bench.report import Round, build_document, show
from tests.bench.statistics import judge
from tests.fixtures.guest import DemoGuest, build_demo_guest
from workers.installation import derive_settings
from workers.preflight import find_missing

FEWEST_ROUNDS = 10
MOST_ROUNDS = 200
PAUSE_SECONDS = 1.0
"""Between two boots, so that what one leaves to be done is not in the other's time."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="how many are counted (default: 10)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument("--keep", action="store_true", help="leave the state directory there, for a look")
    given = parser.parse_args()
    if not 1 <= given.rounds <= MOST_ROUNDS:
        parser.error(f"--rounds must be 1 to {MOST_ROUNDS}")
    if missing := find_missing():
        sys.stderr.write("the benchmark cannot begin: " + "; ".join(missing) + "\n")
        return 2
    signal.signal(signal.SIGTERM, end)
    document = measure(given.rounds, keep=given.keep, said=Console(stderr=True))
    if given.json:
        print(json.dumps(document, indent=2))
    else:
        show(document, Console())
    return 1 if judge(document["ratio"]) == "failed" else 0


def end(number: int, frame: FrameType | None) -> None:
    """End as after an error, so that everything is taken down."""
    sys.exit(1)


def measure(count: int, *, keep: bool, said: Console) -> dict[str, Any]:
    """Do all rounds in a bare machine and an installation of their own; return the document of `report`."""
    demo = build_demo_guest()
    found = asyncio.run(find_availability())
    load = os.getloadavg()
    said.print(f"{os.cpu_count()} processors, {found.accelerator}, load average {load[0]:.2f} {load[1]:.2f}")
    if load[0] > (os.cpu_count() or 1) / 2:
        said.print("other work is going on here: the ranges will be wide, the ratio less certain")
    with own_folder(keep=keep) as folder:
        name = "b" + secrets.token_hex(3)
        bare = BareMachine(folder / "bare", derive_settings(f"{name}x").names(), demo, found, count + 1)
        said.print(f"bringing up an installation named {name} in {folder}")
        with bare.set_up(), installed(folder, name, demo.folder, keep=keep) as installation:
            rounds = do_rounds(bare, HostlerMachine(installation, "demo"), count, said)
        left = [] if keep else find_left(installation)
    if left:
        raise RuntimeError(f"this is left of the installation: {', '.join(left)}")
    return build_document(rounds, describe(demo, found, load))


def do_rounds(bare: BareMachine, hostler: HostlerMachine, count: int, said: Console) -> list[Round]:
    """Do the rounds after one that is not counted: it fetches the image and fills the caches."""
    rounds: list[Round] = []
    for number in range(count + 1):
        load = os.getloadavg()[0]
        if number % 2:
            (started, by_hand), created = boot_bare(bare, number), create(hostler, number)
        else:
            created, (started, by_hand) = create(hostler, number), boot_bare(bare, number)
        check_same(by_hand, created.arguments)
        said.print(
            f"{f'round {number:2}' if number else 'warm-up '}: bare {started.seconds:.3f} s, "
            f"Hostler {created.boot.seconds:.3f} s, load {load:.2f}"
        )
        if number:
            rounds.append(Round(started, created, load))
    return rounds


def boot_bare(machine: BareMachine, number: int) -> tuple[Boot, tuple[str, ...]]:
    time.sleep(PAUSE_SECONDS)
    with machine.booted(number) as measured:
        return measured


def create(machine: HostlerMachine, number: int) -> Created:
    time.sleep(PAUSE_SECONDS)
    with machine.created(number) as measured:
        return measured


def check_same(bare: tuple[str, ...], hostler: tuple[str, ...]) -> None:
    """Refuse to compare two guests that were not started in the same way: only names may differ."""
    if (mine := without_names(bare)) != (other := without_names(hostler)):
        pairs = [f"{a} / {b}" for a, b in zip(mine, other, strict=False) if a != b]
        raise RuntimeError(
            f"QEMU's arguments differ, the two are not the same guest: {'; '.join(pairs) or 'in length'}"
        )


def without_names(arguments: tuple[str, ...]) -> list[str]:
    """Take out the VM's id, its MAC and the folders of its kernel: what two VMs never share."""
    shown = ["qemu", *arguments[1:]]
    for option in ("-name", "-kernel", "-initrd"):
        shown[shown.index(option) + 1] = "…"
    for number, word in enumerate(shown):
        if word.startswith('{"driver": "virtio-net-pci"'):
            shown[number] = json.dumps({**json.loads(word), "mac": "…"})
    return shown


def describe(demo: DemoGuest, found: Availability, load: tuple[float, ...]) -> dict[str, Any]:
    return {
        "processors": os.cpu_count(),
        "accelerator": found.accelerator,
        "qemu": found.version,
        "load_average_before": list(load),
        "load_average_after": list(os.getloadavg()),
        "guest": {
            "rootfs_sha256": demo.image["rootfs"]["sha256"],
            "cpu_millicores": CPU_MILLICORES,
            "memory_mib": MEMORY_MIB,
            "disk_gib": DISK_GIB,
        },
    }


@contextlib.contextmanager
def own_folder(*, keep: bool) -> Generator[Path]:
    """Make a folder that Hostler's users may enter; its short path is for the sake of Postgres' socket."""
    folder = Path(tempfile.mkdtemp(prefix="hst-bench-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
