"""A machine that is only told of: simulated guests and taps, kept as a journal that outlives workers (X-4).

`journal.jsonl` holds one line per effect and is all the state there is: a line is appended by one write, so a worker
that is killed leaves exactly what had happened, and each effect is there as often as it was caused. `controls/` says
what guests are made to do: `<vm id>.json`, else `default.json`, read at each call.

    simulation = Simulation(home / "host" / "simulated", boot_id)
    simulation.control("vm-1", boot_seconds=2, lost={"pause": "raise"})
    simulation.cause("vm-1", "poweroff")
    simulation.inventory()
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Literal

import pydantic

from drivers.durable import translated, write_durably
from model.base import Frozen
from model.errors import StepFailed, Unreadable
from model.ids import check_label
from model.process import ProcessRecord

DEFAULT = "default"
DISK_LIMIT_BYTES = 1024
LOWEST_PID = 1 << 30
"""Above every pid that Linux gives (pid_max is at most 2^22), so that none is ever taken for a real process."""

What = Literal["poweroff", "reboot", "panic", "io-error", "no-space", "internal-error", "crash"]
"""What may happen to a guest: its own power-off or reboot, a pause by the hypervisor, or the end of its process."""

_PAUSES: dict[What, str] = {
    "panic": "guest-panicked",
    "io-error": "io-error",
    "no-space": "no-space",
    "internal-error": "internal-error",
}


class Controls(Frozen):
    """What a simulated guest is made to do.

    refuse_boots: so many boots of the VM are refused, from its first on. exit_after_seconds, exit_as: what happens how
    long after a boot, with `said` as the last words; exit_boots: only to so many boots (None: to all). answers: false
    is a monitor that says nothing. answer_seconds: how long each call takes. lost: calls whose effect happens while
    the answer is an error (`raise`) or never comes (`hang`), by the call's name. pause_stays: what paused the guest is
    not over, so that it pauses again when resumed; with `no-space` a look tells that, too. keeps_volumes: it lets none
    go. held: addresses that are in
    use though no VM has them.
    """

    boot_seconds: float = 0
    refuse_boots: int = 0
    exit_after_seconds: float | None = None
    exit_as: What = "crash"
    exit_boots: int | None = None
    said: str = ""
    answers: bool = True
    answer_seconds: float = 0
    lost: dict[str, Literal["raise", "hang"]] = {}
    ignores_power_button: bool = False
    survives_kill: bool = False
    pause_stays: bool = False
    refuses_taps: bool = False
    keeps_volumes: bool = False
    held: tuple[IPv4Address, ...] = ()


class Tap(Frozen):
    """A VM's tap with all that its network knows of it."""

    vm_id: str
    project: str
    tap: str
    mac: str
    address: IPv4Address


Happening = Literal["boot", "refuse", "happen", "pause", "resume", "press", "kill"]
Changing = Literal["grow", "disk", "tap", "remove_tap", "attach", "detach"]


class Effect(Frozen):
    """One line of the journal. at: seconds since 1970. worker: the pid of who caused it."""

    effect: Happening | Changing
    vm_id: str
    boot_id: str
    at: float
    worker: int
    process: ProcessRecord | None = None
    what: What | None = None
    said: str = ""
    due: float | None = None
    tap: Tap | None = None
    size_bytes: int | None = None
    volumes: tuple[str, ...] = ()
    """Serial numbers: those of a boot, or the one that comes or goes."""


@dataclass
class SimulatedProcess:
    """A guest's process. status: in the words of QEMU's run states. due: when `what` happens to it by itself."""

    vm_id: str
    record: ProcessRecord
    status: str = "running"
    due: float | None = None
    what: What = "crash"
    said: str = ""
    is_gone: bool = False
    volumes: set[str] = field(default_factory=set[str])

    def settle(self, now: float) -> None:
        """Let happen what is due."""
        if self.due is not None and self.due <= now:
            self.due = None
            self.happen(self.what, self.said)

    def happen(self, what: What, said: str) -> None:
        self.said = said
        if what == "crash":
            self.is_gone = True
        elif what == "poweroff":
            self.status = "shutdown"
        elif what in _PAUSES:
            self.status = _PAUSES[what]


class Inventory(Frozen):
    """What there is of each VM, by its id."""

    processes: dict[str, tuple[int, ...]]
    taps: dict[str, tuple[str, ...]]
    addresses: dict[str, tuple[IPv4Address, ...]]
    disks: dict[str, int]
    """Their sizes in bytes."""


@dataclass
class _State:
    """What the journal says so far."""

    processes: dict[int, SimulatedProcess] = field(default_factory=dict[int, SimulatedProcess])
    taps: dict[tuple[str, str], tuple[str, Tap]] = field(default_factory=dict[tuple[str, str], tuple[str, Tap]])
    said: dict[str, str] = field(default_factory=dict[str, str])
    boots: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])


class Simulation:
    """The folder of one simulated machine; any number of workers may hold it, as any number may ask one kernel.

    boot_id: of the machine; with another one all earlier processes and taps are gone.
    """

    def __init__(self, folder: Path, boot_id: Callable[[], str]) -> None:
        self._folder = folder
        self.boot_id = boot_id
        self._state = _State()
        self._read_bytes = 0
        self._rest = b""

    def controls(self, vm_id: str) -> Controls:
        """Return what a VM is made to do. Raises StepFailed when its file cannot be read."""
        for name in (vm_id, DEFAULT):
            path = self._folder / "controls" / f"{name}.json"
            try:
                return Controls.model_validate_json(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, pydantic.ValidationError) as error:
                raise StepFailed(f"the simulated machine's controls {path.name} cannot be read: repair them") from error
        return Controls()

    def control(self, vm_id: str = DEFAULT, /, **controls: Any) -> None:
        """Make a VM, or all that have no controls of their own, do this and nothing else."""
        self._make_folder(self._folder / "controls")
        data = Controls(**controls).model_dump_json().encode()
        write_durably(self._folder / "controls" / f"{check_label(vm_id)}.json", data)

    def cause(self, vm_id: str, what: What, said: str = "") -> None:
        """Let something happen to a VM's guest, now."""
        for found in self.processes(vm_id):
            self.append("happen", vm_id, process=found.record, what=what, said=said)

    def append(self, effect: str, vm_id: str, **more: Any) -> None:
        """Cause an effect: it has happened once this returns, and has not if this raises."""
        line = Effect.model_validate(
            {"effect": effect, "vm_id": vm_id, "boot_id": self.boot_id(), "at": time.time(), "worker": os.getpid()}
            | more
        )
        data = line.model_dump_json(exclude_defaults=True).encode()
        self._make_folder(self._folder)
        with translated("write the simulated machine's journal"):
            descriptor = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                # Begun with a line's end, too: what a full disk cut off spoils no line after it.
                os.write(descriptor, b"\n" + data + b"\n")
            finally:
                os.close(descriptor)

    def journal(self) -> list[Effect]:
        """Read every effect, the oldest first."""
        try:
            data = self._journal.read_bytes()
        except FileNotFoundError:
            return []
        return _parse(data)

    def processes(self, vm_id: str | None = None) -> list[SimulatedProcess]:
        """List the live processes, of one VM or of all."""
        state, now, boot_id = self._refresh(), time.time(), self.boot_id()
        live: list[SimulatedProcess] = []
        for found in list(state.processes.values()):
            if vm_id not in (None, found.vm_id):
                continue
            found.settle(now)
            if found.is_gone or found.record.boot_id != boot_id:
                state.said[found.vm_id] = found.said
                del state.processes[found.record.pid]
            else:
                live.append(found)
        return live

    def taps(self) -> list[Tap]:
        """List the taps of this boot."""
        boot_id = self.boot_id()
        return [tap for made_in, tap in self._refresh().taps.values() if made_in == boot_id]

    def boots(self, vm_id: str) -> int:
        """Count how many processes of a VM were ever begun."""
        return self._refresh().boots[vm_id]

    def refused(self, vm_id: str) -> int:
        """Count how many boots of a VM were ever refused."""
        return self._refresh().refused[vm_id]

    def last_words(self, vm_id: str) -> str:
        """Return what the VM's last process said at its end."""
        return self._refresh().said.get(vm_id, "")

    def inventory(self, machines: Path) -> Inventory:
        """List what there is, with the disks in the folder of all VMs: to prove that there is one of each."""
        processes: dict[str, tuple[int, ...]] = {}
        taps: dict[str, tuple[str, ...]] = {}
        addresses: dict[str, tuple[IPv4Address, ...]] = {}
        for found in self.processes():
            processes[found.vm_id] = (*processes.get(found.vm_id, ()), found.record.pid)
        for tap in self.taps():
            taps[tap.vm_id] = (*taps.get(tap.vm_id, ()), tap.tap)
            addresses[tap.vm_id] = (*addresses.get(tap.vm_id, ()), tap.address)
        disks: dict[str, int] = {}
        for path in machines.glob("*/disk"):
            with contextlib.suppress(Unreadable):  # a real guest's
                disks[path.parent.name] = read_disk(path) or 0
        return Inventory(processes=processes, taps=taps, addresses=addresses, disks=disks)

    def new_process(self, uid: int) -> ProcessRecord:
        """Name a process that nobody ever was; it begins with the effect `boot`."""
        pid = LOWEST_PID + secrets.randbelow(LOWEST_PID)
        ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        return ProcessRecord(pid=pid, start_time=ticks, boot_id=self.boot_id(), uid=uid)

    @property
    def _journal(self) -> Path:
        return self._folder / "journal.jsonl"

    def _make_folder(self, folder: Path) -> None:
        with translated("make the simulated machine's folder"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _refresh(self) -> _State:
        """Take over what was appended since, by this worker or another."""
        try:
            with self._journal.open("rb") as file:
                if os.fstat(file.fileno()).st_size <= self._read_bytes:
                    return self._state
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            return self._state
        self._read_bytes += len(data)
        whole, _, self._rest = (self._rest + data).rpartition(b"\n")
        for effect in _parse(whole):
            _take(self._state, effect)
        return self._state


def read_disk(path: Path) -> int | None:
    """Read how large a simulated disk is, in bytes; None when there is none. Raises Unreadable."""
    try:
        with path.open("rb") as file:
            size: object = json.loads(file.read(DISK_LIMIT_BYTES))["simulated_disk_bytes"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unreadable("the root disk on the host is not what was made; look at it there") from error
    if not isinstance(size, int):
        raise Unreadable("the root disk on the host is not what was made; look at it there")
    return size


def write_disk(path: Path, size_bytes: int) -> None:
    """Make a simulated disk, or give it another size; a blocking call."""
    write_durably(path, json.dumps({"simulated_disk_bytes": size_bytes}).encode())


def _parse(data: bytes) -> list[Effect]:
    found: list[Effect] = []
    for line in data.splitlines():
        try:
            found.append(Effect.model_validate_json(line))
        except pydantic.ValidationError:
            continue  # empty, or cut off by a full disk: it was never caused
    return found


def _take(state: _State, effect: Effect) -> None:
    """Follow one effect."""
    vm_id = effect.vm_id
    if effect.effect == "boot" and effect.process is not None:
        state.boots[vm_id] += 1
        what = effect.what or "crash"
        state.processes[effect.process.pid] = SimulatedProcess(
            vm_id, effect.process, due=effect.due, what=what, said=effect.said, volumes=set(effect.volumes)
        )
    elif effect.effect == "refuse":
        state.refused[vm_id] += 1
    elif effect.tap is not None:
        key = (vm_id, effect.tap.tap)
        state.taps.pop(key, None)
        if effect.effect == "tap":
            state.taps[key] = (effect.boot_id, effect.tap)
    _move(state, effect)


def _move(state: _State, effect: Effect) -> None:
    """Follow what an effect does to a process that lives."""
    found = state.processes.get(effect.process.pid) if effect.process is not None else None
    if found is None:
        return
    found.settle(effect.at)
    if effect.effect == "kill":
        found.is_gone = True
    elif effect.effect == "pause" and found.status == "running":
        found.status = "paused"
    elif effect.effect == "resume" and found.status != "shutdown":
        found.status = "running"
    elif effect.effect == "attach":
        found.volumes |= set(effect.volumes)
    elif effect.effect == "detach":
        found.volumes -= set(effect.volumes)
    elif effect.effect in ("happen", "press") and effect.what is not None:
        found.happen(effect.what, effect.said)
