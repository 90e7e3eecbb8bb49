"""Ending the guests of an installation from outside its host worker."""

from __future__ import annotations

import os

import pytest

from drivers.machine import lock_worker
from model.errors import Conflict
from workers.guests import stop_guests
from workers.installation import Installation, derive_settings


async def test_no_guest_is_ended_beside_a_host_worker(tmp_path) -> None:
    """H-E3: `down --vms` works on the same records and processes, so it is a worker like any other."""
    held = lock_worker(tmp_path / "host")
    settings = derive_settings("one")
    with pytest.raises(Conflict, match=f"process {os.getpid()}"):
        await stop_guests(Installation(tmp_path, settings), settings)
    os.close(held)
