"""Both releases, and a fleet that each test begins on one of them."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.fixtures.image_server import ImageServer
from tests.fixtures.postgres import PostgresServer
from tests.fixtures.temporal import TemporalServer, make_namespace
from tests.upgrades.fleet import Fleet
from tests.upgrades.lives import Serve, serve
from tests.upgrades.releases import Release, find_first_commit, this_release, unpack_first


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of it takes real guests and seconds; the host worker takes root."""
    for item in items:
        if "tests/upgrades/" in str(item.path):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(300))
            if os.geteuid() != 0:
                item.add_marker(pytest.mark.skip(reason="a host's taps and users need root"))


@pytest.fixture(scope="session")
def first() -> Iterator[Release]:
    """The first release's tree."""
    missing = find_first_commit()
    if missing is not None:
        pytest.skip(missing)
    folder = Path(tempfile.mkdtemp(prefix="hst-first-"))
    folder.chmod(0o755)
    yield unpack_first(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def this() -> Release:
    return this_release()


@pytest.fixture
def fleet(tmp_path: Path, postgres_server: PostgresServer, temporal_server: TemporalServer) -> Iterator[Fleet]:
    """A fleet with an empty database and a namespace of its own; nothing of it runs yet."""
    import asyncpg

    name = f"u_{os.urandom(8).hex()}"

    async def execute(statement: str) -> None:
        connection = await asyncpg.connect(postgres_server.url)
        await connection.execute(statement)
        await connection.close()

    asyncio.run(execute(f'create database "{name}"'))
    namespace = asyncio.run(make_namespace(temporal_server.address))
    fleet = Fleet(tmp_path, postgres_server.url_of(name), temporal_server.address, namespace)
    yield fleet
    fleet.end()
    asyncio.run(execute(f'drop database "{name}" with (force)'))


@pytest.fixture
def image(image_server: ImageServer) -> Serve:
    """Serve images that are all others."""
    return partial(serve, image_server)
