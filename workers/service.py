"""A service: one long-running program of an installation, and what the supervisor has written down about it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from drivers.confine import Confinement, python_binds
from drivers.durable import write_durably
from model.base import Lenient
from model.process import ProcessRecord
from workers.installation import PORTS_FILE, read_model, to_bytes
from workers.users import need_user

Action = Callable[[], Awaitable[None]]
Probe = Callable[[ProcessRecord], Awaitable[bool]]
State = Literal["waiting", "starting", "ready", "restarting", "stopped"]


async def nothing() -> None:
    """Do nothing: the preparation of a service that needs none."""


@dataclass(frozen=True)
class Service:
    """Say how one program is run.

    user: a name of `workers.users`. ready: tells whether that process does its work; asked until it says yes.
    requires: services that must be ready before each start. needs: a file without which it is not started yet.
    prepare: before each start. settle: after each start, once it is ready. stop_signal: asks for an orderly end.
    build: of the code that it runs, where that is ours.
    """

    name: str
    user: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    ready: Probe
    requires: tuple[str, ...] = ()
    needs: Path | None = None
    prepare: Action = nothing
    settle: Action = nothing
    bind: tuple[Path, ...] = ()
    build: str | None = None
    stop_signal: int = 15
    stop_seconds: float = 20.0

    @property
    def fingerprint(self) -> str:
        """Return a digest of what is run: a process of another one is replaced, never adopted."""
        own = [] if self.build is None else [self.build]
        told = json.dumps([self.user, self.argv, sorted(self.environment.items()), *own])
        return hashlib.sha256(told.encode()).hexdigest()

    def confinement(self, log: int) -> Confinement:
        """Return what the launcher is told; both outputs go to the open file `log`."""
        user = need_user(self.user)
        return Confinement(
            argv=self.argv,
            uid=user.uid,
            gid=user.gid,
            environment=self.environment,
            descriptors={1: log, 2: log},
            bind=(*python_binds(), *self.bind) if user.uid != os.geteuid() else (),
        )


class ServiceRecord(Lenient):
    """What `run/<name>.json` holds.

    process: the last one that was let begin; whether it lives, only looking says. fingerprint: of what it runs; of the
    supervisor itself, its build. restarts: how often it came back since the supervisor began to keep it. detail: why it
    is not ready.
    """

    name: str
    state: State
    since: datetime
    process: ProcessRecord | None = None
    fingerprint: str | None = None
    started_at: datetime | None = None
    restarts: int = 0
    detail: str | None = None


class ServiceRecords:
    """The records of all services of a state directory; replaced whole, so that readers need no lock."""

    def __init__(self, run: Path) -> None:
        self._run = run

    def read(self, name: str) -> ServiceRecord | None:
        """Read a service's record. Blocks."""
        return read_model(self._path(name), ServiceRecord)

    def read_all(self) -> tuple[ServiceRecord, ...]:
        """Read every record that there is, the supervisor's own among them. Blocks."""
        found = (self.read(path.stem) for path in self._run.glob("*.json") if path.name != PORTS_FILE)
        return tuple(record for record in found if record is not None)

    def write(self, record: ServiceRecord) -> None:
        """Write a service's record so that it survives a loss of power. Blocks."""
        write_durably(self._path(record.name), to_bytes(record), mode=0o600)

    def _path(self, name: str) -> Path:
        return self._run / f"{name}.json"
