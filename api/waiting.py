"""`?wait=30s`: hold the answer back until the VM is settled, and show it as it is then (A-6)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated

from fastapi import Depends, Query

from api.parts import Parts
from model.duration import parse_duration
from model.errors import FieldError, Gone, Invalid
from store.vm import StoredVm

LONGEST_WAIT = timedelta(seconds=60)
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 0.5


def read_duration(text: str, name: str, longest: timedelta) -> timedelta:
    """Read a query parameter that is a duration; raise Invalid with its name."""
    try:
        duration = parse_duration(text)
        if duration > longest:
            raise ValueError(f"must be at most {int(longest.total_seconds())}s")
    except ValueError as error:
        raise Invalid(f"{name}: {error}", errors=(FieldError(f"query:{name}", str(error)),)) from None
    return duration


async def _wait_of(
    wait: Annotated[
        str | None, Query(description="How long to wait until the VM is settled, as 30s; at most 60s")
    ] = None,
) -> timedelta | None:
    """Read it before anything is accepted: who gets a refusal has changed nothing."""
    return None if wait is None else read_duration(wait, "wait", LONGEST_WAIT)


Wait = Annotated[timedelta | None, Depends(_wait_of)]


async def settled(parts: Parts, project: str | None, vm: StoredVm, wait: timedelta | None) -> StoredVm:
    """Return the VM once it is settled or the time is over; one that goes meanwhile as it was seen last."""
    if wait is None:
        return vm
    deadline = asyncio.get_running_loop().time() + wait.total_seconds()
    pause = _FIRST_PAUSE_SECONDS
    while not vm.settled and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(pause)
        pause = min(pause * 1.3, _LONGEST_PAUSE_SECONDS)
        try:
            vm = await parts.vms.get(project, vm.id)
        except Gone:
            return vm
    return vm
