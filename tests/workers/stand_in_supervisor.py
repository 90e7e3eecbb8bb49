"""A supervisor of stand-in programs: what the tests kill, since the real services are tested with the real ones.

Run as `stand_in_supervisor.py RUN LOGS OPEN NEEDED`: keeps `first` (sleeps), `second` (requires first; ready once the
file OPEN is there) and `third` (starts once the file NEEDED is there; ignores SIGTERM).
"""

import asyncio
import signal
import sys
from pathlib import Path

from model.process import ProcessRecord
from workers.locks import lock_supervisor
from workers.service import Service
from workers.supervisor import ALREADY_RUNS, Supervisor

ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


def services(opened: Path, needed: Path) -> list[Service]:
    async def at_once(process: ProcessRecord) -> bool:
        return True

    async def when_opened(process: ProcessRecord) -> bool:
        return opened.exists()

    def service(name: str, script: str, **more: object) -> Service:
        words = {"user": "hostler", "environment": ENVIRONMENT, "ready": at_once, **more}
        return Service(name=name, argv=("sh", "-c", script), **words)  # type: ignore[arg-type]

    return [
        service("first", "echo first begins; exec sleep 600"),
        service("second", "exec sleep 600", requires=("first",), ready=when_opened),
        service("third", "trap '' TERM; while :; do sleep 0.2; done", needs=needed, stop_seconds=0.3),
    ]


async def main(run: Path, logs: Path, opened: Path, needed: Path) -> None:
    supervisor = Supervisor(services(opened, needed), run, logs)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, supervisor.stopping.set)
    await supervisor.run()


if __name__ == "__main__":
    lock = lock_supervisor(Path(sys.argv[1]))
    if lock is None:
        sys.exit(ALREADY_RUNS)
    asyncio.run(main(*map(Path, sys.argv[1:5])))
