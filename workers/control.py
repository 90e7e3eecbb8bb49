"""The control worker: it runs the passes, and sweeps up what is due. `python -m workers.control`."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.campaign import CampaignActivities
from activities.passes import PassActivities
from activities.sync import SyncStoreActivities
from model.errors import Unavailable
from runtime.deployment import current_build, find_build_id, is_older, make_current
from runtime.keys import MasterKeys
from runtime.settings import Settings
from runtime.temporal import control_worker_options, poke, register_search_attributes
from store.campaign import CampaignStore
from store.change import WokenVm
from store.database import Pool
from store.fleet import get_fleet
from store.migrate import check_schema
from store.passes import PassStore
from store.roll import RollStore
from store.sync import SyncStore
from workers import process
from workers.sweep import Sweep
from workflows.converge import ConvergeVm
from workflows.create import CreateVm
from workflows.drain import DrainHost
from workflows.reap import ReapVm
from workflows.roll import RollFleet
from workflows.sync_host import SyncHost

_log = logging.getLogger("hostler.control")
LOOK_SECONDS = 10.0
WORKFLOWS = (CreateVm, ConvergeVm, ReapVm, DrainHost, RollFleet, SyncHost)


async def main(settings: Settings, stopping: asyncio.Event) -> None:
    """Run until told to stop. Runs in flight go on when another control worker polls."""
    keys = await asyncio.to_thread(MasterKeys.load_or_create, settings.master_key_file)
    open_store = partial(process.open_store, settings, application="hostler control")
    pool = await process.await_server("Postgres", stopping, open_store)
    await process.await_server("the database's schema", stopping, partial(check_schema, pool))
    fleet = await process.await_server("the fleet's row", stopping, partial(get_fleet, pool))
    seal = process.control_seal(keys, fleet.id)
    client = await process.await_server("Temporal", stopping, partial(process.connect_temporal, settings, seal))
    search_attributes = await register_search_attributes(client)
    build = await asyncio.to_thread(find_build_id)
    async with control_worker(client, pool, build_id=build):
        current = await make_current(client, build)
        _log.info("the control worker runs", extra={"build": build, "current": current})
        if not current:
            _log.warning("a newer release's build is current: new passes begin there, this worker only ends its own")
        sweep = asyncio.create_task(Sweep(pool, client, search_attributes=search_attributes).run())
        known = asyncio.create_task(keep_known(client, build, search_attributes=search_attributes))
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait([sweep, known, stopped], return_when=asyncio.FIRST_COMPLETED)
        for task in (sweep, known):
            if task.done():
                task.result()
            task.cancel()
    await pool.close()


async def keep_known(
    client: Client, build_id: str, *, search_attributes: bool, every_seconds: float = LOOK_SECONDS
) -> None:
    """Tell a Temporal that was emptied again what passes need of it: search attributes, then a current build.

    search_attributes: whether runs are started with them. A build of an older release, whose
    worker was the first to tell, does not stay current.
    """
    while True:
        await asyncio.sleep(every_seconds)
        try:
            current = await current_build(client)
            if current is None and not await register_search_attributes(client) and search_attributes:
                continue
            if is_older(current, build_id) and await make_current(client, build_id):
                _log.warning("Temporal knew %s to run passes on: it is told of this one again", current or "no build")
        except (RPCError, Unavailable) as error:
            _log.info("whether Temporal knows a build cannot be seen now: %s", type(error).__name__)


def control_worker(client: Client, pool: Pool, *, build_id: str | None, passes: PassActivities | None = None) -> Worker:
    """Return a worker that runs every type of pass, campaigns, and syncs of hosts."""

    async def hurry(vm: WokenVm) -> None:
        try:
            await poke(client, vm.pass_type, vm.vm_id)
        except Unavailable as error:
            _log.info("a wake-up was lost, the sweep finds it: %s", error.detail, extra={"vm": vm.vm_id})

    owners = (
        passes or PassActivities(PassStore(pool)),
        CampaignActivities(CampaignStore(pool), RollStore(pool), hurry),
        SyncStoreActivities(SyncStore(pool)),
    )
    methods = [getattr(owner, name) for owner in owners for name in dir(owner) if not name.startswith("_")]
    options = control_worker_options(build_id=build_id)
    return Worker(client, workflows=WORKFLOWS, activities=methods, **options)


if __name__ == "__main__":
    process.run(main)
