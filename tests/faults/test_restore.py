"""The fleet's database is restored from a copy while everything else runs on (H-R1)."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from model.ids import new_id
from store.database import open_pool
from store.fleet import ensure_fleet
from store.migrate import migrate
from tests.faults.fleet import Fleet, running_fleet, settled
from tests.faults.test_crowds import is_gone, is_up
from tests.fixtures.postgres import ENVIRONMENT, prepare_postgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class OwnPostgres:
    """A server of this test alone, whose files are copied and put back while it is down."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._prepared = prepare_postgres(folder)
        self._server: subprocess.Popen[bytes] | None = None
        self.url = self._prepared.url

    async def start(self) -> None:
        with (self._folder / "postgres.log").open("ab") as log:
            self._server = subprocess.Popen(  # noqa: ASYNC220 - it is a moment
                self._prepared.arguments, env=ENVIRONMENT, cwd="/", stdout=log, stderr=log
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                await (await asyncpg.connect(self.url, timeout=5)).close()
                return
            except (OSError, asyncpg.CannotConnectNowError):
                assert time.monotonic() < deadline, (self._folder / "postgres.log").read_text()[-4000:]
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)
            await asyncio.to_thread(self._server.wait, 60)
            self._server = None

    async def back_up(self) -> None:
        """Copy the files of the server, which is down for that."""
        await self.stop()
        await asyncio.to_thread(_copy, self._folder / "data", self._folder / "copy")
        await self.start()

    async def restore(self) -> None:
        """Put the copy in the place of what the server has, as an operator does."""
        await self.stop()
        await asyncio.to_thread(shutil.rmtree, self._folder / "data")
        await asyncio.to_thread(_copy, self._folder / "copy", self._folder / "data")
        await self.start()


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", source, target], check=True)


@pytest.fixture
async def postgres() -> AsyncIterator[OwnPostgres]:
    folder = Path(tempfile.mkdtemp(prefix="hst-pg-", dir="/dev/shm"))
    folder.chmod(0o711)  # the server's user passes through
    postgres = OwnPostgres(folder)
    await postgres.start()
    await migrate(postgres.url)
    pool = await open_pool(postgres.url)
    await ensure_fleet(pool)
    await pool.close()
    yield postgres
    await postgres.stop()
    shutil.rmtree(folder)


@pytest.fixture
async def fleet(
    postgres: OwnPostgres,
    temporal_address: str,
    temporal_namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Fleet]:
    async with running_fleet(postgres.url, temporal_address, temporal_namespace, tmp_path, monkeypatch) as fleet:
        yield fleet


async def make(fleet: Fleet, letter: str, count: int) -> list[str]:
    """Make VMs of this letter and wait until they run."""
    found = [(new_id(), f"{letter}{number}") for number in range(count)]
    body = {"image": "demo", "hypervisor": "simulated", "disk_gib": 1}
    for vm_id, name in found:
        await fleet.call("PUT", f"/v1/vms/{vm_id}", json={**body, "name": name})
    await asyncio.gather(*(fleet.until(vm_id, is_up) for vm_id, _ in found))
    return [vm_id for vm_id, _ in found]


def is_stopped(row: dict[str, Any] | None) -> bool:
    return row is not None and settled(row) and row["observed_power_state"] == "stopped"


def is_quarantined(row: dict[str, Any] | None) -> bool:
    return row is not None and row["deleted"] and row["quarantine_stopped_at"] is not None


async def until_listed(fleet: Fleet) -> dict[str, Any]:
    """Wait until the store is known to be behind, and its host has told all that it holds."""
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(AssertionError):
                found = await fleet.call("GET", "/v1/restore")
                if found["behind"] and not found["unheard"]:
                    return found
            await asyncio.sleep(0.2)


async def test_a_restored_database_loses_nothing_and_a_person_settles_the_list(
    fleet: Fleet, postgres: OwnPostgres
) -> None:
    """H-R1: restored to before ten VMs were made, ten changed, ten deleted and one undeleted."""
    changed, deleted = await make(fleet, "c", 10), await make(fleet, "d", 10)
    (undeleted,) = await make(fleet, "u", 1)
    (same,) = await make(fleet, "s", 1)
    await fleet.call("DELETE", f"/v1/vms/{undeleted}?grace=1h")
    await fleet.until(undeleted, is_quarantined)
    await postgres.back_up()

    made = await make(fleet, "n", 10)
    for vm_id in changed:
        await fleet.call("PATCH", f"/v1/vms/{vm_id}", json={"power_state": "stopped"})
    kept, destroyed = deleted[:5], deleted[5:]
    for vm_id in kept:
        await fleet.call("DELETE", f"/v1/vms/{vm_id}?grace=1h")
    for vm_id in destroyed:
        await fleet.call("DELETE", f"/v1/vms/{vm_id}?now=true")
    await fleet.call("POST", f"/v1/vms/{undeleted}/undelete")
    await asyncio.gather(
        fleet.until(undeleted, is_up),
        *(fleet.until(vm_id, is_stopped) for vm_id in changed),
        *(fleet.until(vm_id, is_quarantined) for vm_id in kept),
        *(fleet.until(vm_id, is_gone) for vm_id in destroyed),
    )
    effects, there = len(fleet.simulation.journal()), fleet.simulation.inventory(fleet.home / "host" / "machines")

    await postgres.restore()
    # As if the copy were a day old: the grace of what was undeleted since is over by its row.
    await fleet.pool.execute("update vms set destroy_at = now() - interval '1 hour', due_at = now() where deleted")
    await fleet.pool.execute("update vms set due_at = now()")
    found = await until_listed(fleet)
    assert {item["vm_id"]: item["kind"] for item in found["items"]} == {
        **dict.fromkeys(made, "unknown"),
        **dict.fromkeys([*changed, *kept, undeleted], "changed"),
        **dict.fromkeys(destroyed, "missing"),
    }
    await asyncio.gather(*(fleet.until(vm_id, waits_for_the_restore) for vm_id in (*changed, *kept, undeleted)))
    assert len(fleet.simulation.journal()) == effects, "nothing was booted, stopped or destroyed"
    assert fleet.simulation.inventory(fleet.home / "host" / "machines") == there

    adopted, stopped, left = made[:4], made[4:6], made[6:]
    choices = {**dict.fromkeys(left, "leave"), **dict.fromkeys([*changed, *kept, undeleted], "host")}
    choices |= {**dict.fromkeys(adopted, "adopt"), **dict.fromkeys(stopped, "quarantine")}
    choices |= {**dict.fromkeys(destroyed, "give_up"), destroyed[0]: "recreate"}
    for vm_id, choice in choices.items():
        body = {"choice": choice, **({"project": "default"} if choice == "adopt" else {})}
        await fleet.call("POST", f"/v1/restore/vms/{vm_id}", json=body)
    assert len(fleet.simulation.journal()) == effects, "only rows were changed by that"
    done = await fleet.call("POST", "/v1/restore/finish")
    assert (done["behind"], done["epoch"]) == (False, 2)
    await asyncio.gather(
        *(fleet.until(vm_id, is_up) for vm_id in (same, undeleted, destroyed[0], *adopted)),
        *(fleet.until(vm_id, is_stopped) for vm_id in changed),
        *(fleet.until(vm_id, is_quarantined) for vm_id in (*kept, *stopped)),
        *(fleet.until(vm_id, is_gone) for vm_id in destroyed[1:]),
    )
    since = {effect.vm_id for effect in fleet.simulation.journal()[effects:]}
    assert since <= {destroyed[0], *stopped}, "only what was to be made anew, or to be stopped, was touched"
    now = fleet.simulation.inventory(fleet.home / "host" / "machines")
    assert set(now.disks) == {*there.disks, destroyed[0]}
    assert set(now.processes) == {*there.processes, destroyed[0]} - set(stopped)
    await fleet.call("PATCH", f"/v1/vms/{same}", json={"power_state": "stopped"})
    await fleet.until(same, is_stopped)


def waits_for_the_restore(row: dict[str, Any] | None) -> bool:
    return row is not None and row["waiting_for"] == "behind" and row["claim_until"] is None


async def test_an_empty_database_beside_a_full_host_destroys_nothing(
    fleet: Fleet, postgres: OwnPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """H-R1: it knows no host, so none takes its word; once the backup is there again, everything goes on."""
    vm_ids = await make(fleet, "v", 3)
    await postgres.back_up()
    effects = len(fleet.simulation.journal())
    await fleet.pool.execute("drop schema public cascade")
    await fleet.pool.execute("create schema public")
    await migrate(postgres.url)
    empty = await ensure_fleet(fleet.pool)
    assert not await fleet.pool.fetchval("select count(*) from hosts")
    await fleet.stop_host()
    starting = asyncio.create_task(fleet.run_host(stopping := asyncio.Event()))
    async with asyncio.timeout(60):
        while "refuses this host's credential" not in caplog.text:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.1)
    stopping.set()
    await starting
    assert len(fleet.simulation.journal()) == effects
    await postgres.restore()
    assert (await ensure_fleet(fleet.pool)).id != empty.id
    await fleet.start_host()
    for vm_id in vm_ids:
        await fleet.call("PATCH", f"/v1/vms/{vm_id}", json={"power_state": "stopped"})
    await asyncio.gather(*(fleet.until(vm_id, is_stopped) for vm_id in vm_ids))
