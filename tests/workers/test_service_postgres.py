"""Our own Postgres, real: who may enter, what is checked, what survives."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from drivers.confine import Confinement, Finished, is_alive, python_binds, read_boot_id, run_confined, signal_process
from model.errors import Conflict
from workers import users
from workers.folders import ensure_folders
from workers.installation import Installation, derive_settings, python
from workers.service import ServiceRecord, ServiceRecords
from workers.service_postgres import ensure_database, postgres_service
from workers.supervisor import Supervisor
from workers.users import ensure_users, need_user

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: Postgres runs as a user of its own")

QUERY = """
import asyncio, asyncpg, sys
async def main():
    connection = await asyncpg.connect(sys.argv[1])
    print(await connection.fetchval(sys.argv[2]))
    await connection.close()
asyncio.run(main())
"""


@pytest.fixture
def installation() -> Iterator[Installation]:
    """A state directory below a folder that only root enters; short, for the socket's path."""
    ensure_users()
    closed = Path(tempfile.mkdtemp(prefix="hst-"))
    installation = Installation(closed / "home", derive_settings("postgrestest"))
    ensure_folders(installation)
    yield installation
    shutil.rmtree(closed)


@pytest.fixture
async def supervisor(installation: Installation) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor([postgres_service(installation)], installation.run, installation.logs)
    running = asyncio.create_task(supervisor.run())
    await asyncio.wait_for(supervisor.keepers["postgres"].ready.wait(), 60)
    yield supervisor
    supervisor.stopping.set()
    await running


async def query(installation: Installation, sql: str, *, user: str, role: str = "hostler") -> Finished:
    database = "postgres" if role == "postgres" else "hostler"
    url = f"postgresql://{role}@/{database}?host={installation.postgres_socket}"
    found = need_user(user)
    order = Confinement(
        argv=(python(), "-c", QUERY, url, sql),
        uid=found.uid,
        gid=found.gid,
        bind=(*python_binds(), installation.home),
    )
    return await run_confined(order, timeout_seconds=30)


async def test_only_hostler_enters(installation: Installation, supervisor: Supervisor) -> None:
    """S-9, E14: peer authentication, no trust, no TCP, a socket folder that other users do not enter."""
    allowed = await query(installation, "select current_user", user=users.HOSTLER)
    assert allowed.stdout == b"hostler\n", allowed.stderr.decode()

    for user, role, refusal in (
        (users.HOSTLER, "postgres", b"eer authentication failed"),  # hostler is no superuser
        (users.ROOT, "hostler", b"eer authentication failed"),
        (users.TEMPORAL, "hostler", b"PermissionError"),
        (users.IMAGE, "postgres", b"PermissionError"),
    ):
        refused = await query(installation, "select 1", user=user, role=role)
        assert refused.returncode != 0
        assert refusal in refused.stderr, (user, refused.stderr.decode())

    admin = await query(installation, "show listen_addresses", user=users.POSTGRES, role="postgres")
    assert admin.stdout == b"\n"
    rules = "select string_agg(distinct type || ' ' || auth_method, ',') from pg_hba_file_rules"
    admin = await query(installation, rules, user=users.POSTGRES, role="postgres")
    assert admin.stdout == b"local peer\n"
    assert (
        await query(installation, "select rolsuper from pg_roles where rolname = 'hostler'", user=users.HOSTLER)
    ).stdout == b"False\n"


async def test_parents_stay_closed(installation: Installation, supervisor: Supervisor) -> None:
    """S-2, E14: no folder above is opened to make Postgres reach its data."""
    assert installation.home.parent.stat().st_mode & 0o777 == 0o700
    assert installation.postgres.stat().st_mode & 0o777 == 0o710
    assert (installation.postgres / "data").stat().st_mode & 0o777 == 0o700


async def test_killed_postgres_comes_back_with_its_data(installation: Installation, supervisor: Supervisor) -> None:
    await query(installation, "create table kept as select 41 + 1 as answer", user=users.HOSTLER)
    records = ServiceRecords(installation.run)
    before = records.read("postgres")
    assert before is not None
    assert before.process is not None
    signal_process(before.process, signal.SIGKILL)

    def back(record: ServiceRecord | None) -> bool:
        return record is not None and record.state == "ready" and record.process != before.process

    async with asyncio.timeout(30):
        while not back(after := records.read("postgres")):  # noqa: ASYNC110 - another process' state
            await asyncio.sleep(0.05)
    assert after is not None
    assert after.process is not None
    assert is_alive(after.process, read_boot_id())
    found = await query(installation, "select answer from kept", user=users.HOSTLER)
    assert found.stdout == b"42\n"


async def test_another_major_version_is_refused(installation: Installation) -> None:
    data = installation.postgres / "data"
    data.mkdir()
    (data / "PG_VERSION").write_text("9\n")
    with pytest.raises(Conflict, match="the data is of Postgres 9"):
        await ensure_database(installation)
    assert (data / "PG_VERSION").read_text() == "9\n"


async def test_a_half_made_data_directory_is_made_anew(installation: Installation) -> None:
    """A kill in the middle of the first start leaves data.new, or a data folder without a version."""
    for name in ("data.new", "data"):
        left = installation.postgres / name
        left.mkdir()
        (left / "leftover").touch()
        user = need_user(users.POSTGRES)
        os.chown(left, user.uid, user.gid)
    await ensure_database(installation)
    assert (installation.postgres / "data/PG_VERSION").exists()
    assert not (installation.postgres / "data/leftover").exists()
    assert not (installation.postgres / "data.new").exists()
