"""Find what is due and wake it: lost pokes, terminated runs and stuck ones alike (design: Sweep)."""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import timedelta
from typing import TYPE_CHECKING, get_args

from temporalio.api.enums.v1 import PendingWorkflowTaskState
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError, RPCStatusCode

from model.campaign import CampaignType, campaign_workflow_id
from model.errors import Unavailable
from model.passes import PassType
from model.temporal import CONTROL_QUEUE, host_workflow_id, vm_workflow_id
from runtime.temporal import poke, poke_campaign, poke_host
from store.fleet import get_fleet
from store.sweep import (
    DueCampaign,
    DueHost,
    DueVm,
    due_campaigns,
    due_hosts,
    due_vms,
    only_sweeper,
    prune,
)

if TYPE_CHECKING:
    from store.database import Pool

EVERY_SECONDS = 10.0
WHEN_BUSY_SECONDS = 1.0
POKES_A_SECOND = 50
PRUNE_EVERY_SWEEPS = 360
_TYPES = (*get_args(PassType), *get_args(CampaignType), "SyncHost")
_CALL_TIMEOUT = timedelta(seconds=2)
_log = logging.getLogger("hostler.sweep")


class Sweep:
    """One sweeper of the fleet at a time; the others wait for its lock."""

    def __init__(self, pool: Pool, client: Client, *, search_attributes: bool) -> None:
        self._pool = pool
        self._client = client
        self._search_attributes = search_attributes
        self._last: DueVm | None = None

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            try:
                async with only_sweeper(self._pool) as mine:
                    if mine:
                        await self._sweep_while_mine()
            except Unavailable as error:
                _log.warning("the sweep waits: %s", error.detail)
            await asyncio.sleep(EVERY_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311

    async def _sweep_while_mine(self) -> None:
        count = 0
        while True:
            found = await self.sweep_once()
            if count % PRUNE_EVERY_SWEEPS == 0:
                await prune(self._pool)
            count += 1
            pause = WHEN_BUSY_SECONDS if found >= POKES_A_SECOND else EVERY_SECONDS
            await asyncio.sleep(pause * random.uniform(0.9, 1.1))  # noqa: S311

    async def sweep_once(self) -> int:
        """Wake what is due, the longest due first; return how many rows that were.

        A sweep goes on behind the last one where more was due than is woken at once, so that rows which no pass can
        claim hide nothing behind them.
        """
        # A read of the fleet proves that the connection that holds the lock is not the only one that lives.
        await get_fleet(self._pool)
        due = await due_vms(self._pool, POKES_A_SECOND, self._last)
        self._last = due[-1] if len(due) >= POKES_A_SECOND else None
        for vm in due:
            await self._wake(vm)
            await asyncio.sleep(random.uniform(0, 2 / POKES_A_SECOND))  # noqa: S311
        for campaign in await due_campaigns(self._pool):
            await self._wake_campaign(campaign)
        for host in await due_hosts(self._pool, POKES_A_SECOND):
            await self._wake_host(host)
        return len(due)

    async def _wake(self, vm: DueVm) -> None:
        if vm.stuck:
            await self._end_stuck(vm_workflow_id(vm.vm_id))
        try:
            await poke(self._client, vm.pass_type, vm.vm_id, search_attributes=self._search_attributes)
        except Unavailable as error:
            _log.warning("a due VM was not woken, the next sweep tries again: %s", error.detail, extra={"vm": vm.vm_id})

    async def _wake_campaign(self, campaign: DueCampaign) -> None:
        kind, campaign_id, host_id = campaign.kind, campaign.campaign_id, campaign.host_id
        if campaign.stuck:
            await self._end_stuck(campaign_workflow_id(kind, campaign_id, host_id))
        try:
            await poke_campaign(
                self._client, kind, campaign_id, host_id=host_id, search_attributes=self._search_attributes
            )
        except Unavailable as error:
            _log.warning("a due campaign was not woken, the next sweep tries again: %s", error.detail)

    async def _wake_host(self, host: DueHost) -> None:
        if host.stuck:
            await self._end_stuck(host_workflow_id(host.host_id))
        try:
            await poke_host(self._client, host.host_id, search_attributes=self._search_attributes)
        except Unavailable as error:
            _log.warning("the due sync of a host was not begun, the next sweep tries again: %s", error.detail)

    async def _end_stuck(self, workflow_id: str) -> None:
        """End whatever run is open: one that claims nothing does not run, or is none of ours.

        One that nobody has begun yet only waits for its turn: to end it would send it to the end of a long queue again
        and again.
        """
        handle = self._client.get_workflow_handle(workflow_id)
        try:
            if _waits_for_its_turn(await handle.describe(rpc_timeout=_CALL_TIMEOUT)):
                return
            await handle.terminate("stuck: no claim was taken or renewed", rpc_timeout=_CALL_TIMEOUT)
            _log.warning("ended a stuck run", extra={"run_of": workflow_id})
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                _log.warning("a stuck run could not be ended: %s", error.status.name, extra={"run_of": workflow_id})


def _waits_for_its_turn(found: WorkflowExecutionDescription) -> bool:
    """Tell whether a run is in the control workers' queue, and no worker of any build has had it yet."""
    raw, waiting = found.raw_description, found.raw_description.pending_workflow_task
    begun = raw.workflow_execution_info.versioning_info.HasField("deployment_version")
    queued = waiting.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED and waiting.attempt <= 1
    return found.task_queue == CONTROL_QUEUE and found.workflow_type in _TYPES and queued and not begun
