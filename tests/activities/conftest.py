"""A host whose guests are processes that sleep, with one VM to be made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures.host import HostWorld
from tests.fixtures.processes import SleepingGuests


@pytest.fixture
async def world(tmp_path: Path, netns: str) -> AsyncIterator[HostWorld]:
    world = HostWorld(tmp_path, netns, lambda names, boot_id: SleepingGuests(names, tmp_path / "monitors", boot_id))
    world.add("vm1")
    await world.restart()
    yield world
    await world.close()
