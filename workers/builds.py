"""What `hostler up` does where another build of Hostler was brought up: a newer release's stays, others give way."""

from __future__ import annotations

import asyncio
import functools
import signal
import time

from drivers.confine import await_end, signal_process
from model.errors import Conflict, StepFailed
from model.versions import VERSION, release_order
from runtime.deployment import find_build_id
from workers.installation import Installation
from workers.locks import is_supervised
from workers.service import ServiceRecord, ServiceRecords

SUPERVISOR = "supervisor"
PACKAGES = ("model", "store", "drivers", "activities", "workflows", "runtime", "api", "cli", "workers")
_END_SECONDS = 10.0
_LOOK_SECONDS = 0.05


@functools.cache
def find_own_build() -> str:
    """Return the build of the code that this process began with, all of it. Blocks at its first call."""
    return find_build_id(packages=PACKAGES)


def find_kept_build(installation: Installation) -> str | None:
    """Return the build of the last supervisor of a state directory; None where there was none, or it does not say."""
    record = _read(installation)
    return None if record is None else record.fingerprint


def check_not_newer(installation: Installation) -> None:
    """Raise Conflict where a newer release was brought up last: its schema and files are not for this one."""
    build = find_kept_build(installation)
    if build is not None and release_order(build) > release_order(VERSION):
        raise Conflict(
            f"a newer release, {build}, was brought up in this state directory, and this is {VERSION}: "
            "run `hostler up` of that one; docs/upgrades.md says what going back takes"
        )


async def end_other_supervisor(installation: Installation) -> bool:
    """End a supervisor of another build; return whether there was one. What it keeps runs on, for the next to decide.

    It is killed, since by a signal that it handles it would end all that it keeps. Errors: StepFailed.
    """
    if find_kept_build(installation) == find_own_build() or not is_supervised(installation.run):
        return False
    record = await asyncio.to_thread(_read, installation)
    if record is None or record.process is None:
        return False
    signal_process(record.process, signal.SIGKILL)
    await await_end(record.process, _END_SECONDS)
    deadline = time.monotonic() + _END_SECONDS
    while is_supervised(installation.run):  # a child that it had not let begin yet shares its lock for a moment
        if time.monotonic() > deadline:
            raise StepFailed("the supervisor of another build does not end: try again")
        await asyncio.sleep(_LOOK_SECONDS)
    return True


def _read(installation: Installation) -> ServiceRecord | None:
    return ServiceRecords(installation.run).read(SUPERVISOR)
