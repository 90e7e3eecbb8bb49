"""`?wait=30s`: hold the answer back until the VM is settled, and show it as it is then (A-6)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated

from fastapi import Query

from api.parts import Parts
from model.duration import parse_duration
from model.errors import Invalid
from store.vm import StoredVm

LONGEST_WAIT = timedelta(seconds=60)
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 0.5

WaitText = Annotated[str | None, Query(alias="wait", description="How long to wait until the VM is settled, as 30s")]


def read_duration(text: str, name: str, longest: timedelta) -> timedelta:
    """Read a query parameter that is a duration; raise Invalid with its name."""
    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise Invalid(f"{name}: {error}") from None
    if duration > longest:
        raise Invalid(f"{name}: at most {int(longest.total_seconds())}s, asked for {int(duration.total_seconds())}s")
    return duration


async def settled(parts: Parts, project: str | None, vm_id: str, text: str | None) -> StoredVm:
    """Return the VM, once it is settled if `text` says how long to wait for that."""
    vm = await parts.vms.get(project, vm_id)
    if text is None:
        return vm
    deadline = asyncio.get_running_loop().time() + read_duration(text, "wait", LONGEST_WAIT).total_seconds()
    pause = _FIRST_PAUSE_SECONDS
    while not vm.settled and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(pause)
        pause = min(pause * 1.3, _LONGEST_PAUSE_SECONDS)
        vm = await parts.vms.get(project, vm_id)
    return vm
