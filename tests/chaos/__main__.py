"""`python -m tests.chaos --seed N --minutes M`: exit 0 when nothing was violated, 1 with what was."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.chaos.fleet import CGROUP
from tests.fixtures.host import remove_cgroup

INSIDE = "CHAOS_INSIDE"
# All that the run starts or mounts ends with its first process, and that with this one, however they end.
OWN = (
    "setpriv",
    "--pdeathsig=KILL",
    "--",
    "unshare",
    "--net",
    "--mount",
    "--propagation",
    "private",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("--seed", default=None, help="what everything random is drawn from")
    parser.add_argument("--minutes", type=float, default=5, help="how long users and faults are let loose")
    parser.add_argument("--faults", type=int, default=0, help="go on until there were at least so many faults")
    given = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("it kills, mounts and starts servers as other users: run it as root")
    seed = given.seed or str(secrets.randbelow(1 << 32))
    if INSIDE not in os.environ:
        print(f"chaos: SEED={seed} MINUTES={given.minutes:g}", flush=True)
        argv = [*OWN, sys.executable, "-m", "tests.chaos", "--seed", seed, "--minutes", str(given.minutes)]
        argv += ["--faults", str(given.faults)]
        folder = Path(tempfile.mkdtemp(prefix="hst-chaos-"))
        cgroup = f"hst-{secrets.token_hex(4)}"
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            with subprocess.Popen(argv, env={**os.environ, INSIDE: str(folder), CGROUP: cgroup}) as own:
                try:
                    return own.wait()
                finally:
                    own.kill()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            remove_cgroup(cgroup)
    return asyncio.run(_run(Path(os.environ[INSIDE]), seed, given.minutes * 60, given.faults))


async def _run(folder: Path, seed: str, seconds: float, faults: int) -> int:
    from tests.chaos.run import run

    result = await run(folder, seed, seconds, faults)
    print("\n".join(result.lines()))
    for violation in result.log.violations:
        print(f"VIOLATION {violation.vm_id or ''}: {violation.text}")
    if result.log.violations:
        print("\n".join(map(str, result.log.of(result.log.violations[0].vm_id))))
        print(f"chaos: SEED={seed} repeats it; all of it is in {result.evidence}")
    return bool(result.log.violations)


if __name__ == "__main__":
    sys.exit(main())
