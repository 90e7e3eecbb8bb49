"""Replay what a VM's runs did against this release's code: `python -m workers.replay VM_ID`.

A run that does not replay would be stuck if a worker of this release took it over. Ends with 0 when all replay, 1 when
one does not or nothing can be replayed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from temporalio.client import Client, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.service import RPCError
from temporalio.worker import Replayer

from drivers.confine import Confinement, python_binds, run_confined
from model.errors import HostlerError, NotFound, Unavailable
from model.temporal import vm_workflow_id
from model.text import clean_text
from runtime.finish import finish
from runtime.interceptors import ControlInterceptor
from runtime.keys import MasterKeys
from runtime.log import configure_logging
from runtime.settings import Settings
from runtime.temporal import workflow_runner
from store.fleet import get_fleet
from workers import process, users
from workers.control import WORKFLOWS
from workers.installation import read_installation
from workers.service_hostler import environment, module_arguments
from workers.users import need_user

_SECONDS = 300.0


@dataclass(frozen=True)
class Replayed:
    """One run. `failure` says why it does not replay, None when it does."""

    workflow_type: str
    run_id: str
    failure: str | None


async def replay(
    histories: Sequence[WorkflowHistory], converter: DataConverter, *, namespace: str = "default"
) -> tuple[Replayed, ...]:
    """Replay histories with the workflows of this release, in their sandbox and by the control worker's converter.

    namespace: where they were recorded; what is sealed opens only there.
    """
    replayer = Replayer(
        workflows=WORKFLOWS,
        namespace=namespace,
        data_converter=converter,
        workflow_runner=workflow_runner(),
        interceptors=[ControlInterceptor()],
    )
    results = await replayer.replay_workflows(_each(histories), raise_on_replay_failure=False)
    return tuple(_tell(history, results.replay_failures.get(history.run_id)) for history in histories)


async def fetch_histories(client: Client, vm_id: str) -> tuple[WorkflowHistory, ...]:
    """Fetch the histories of a VM's runs that Temporal still has, the oldest first. Errors: Unavailable, NotFound."""
    try:
        runs = [run async for run in client.list_workflows(f'WorkflowId = "{vm_workflow_id(vm_id)}"')]
        runs.sort(key=lambda run: run.start_time)
        handles = [client.get_workflow_handle(run.id, run_id=run.run_id) for run in runs]
        found = [await handle.fetch_history() for handle in handles]
    except (RPCError, RuntimeError) as error:
        raise Unavailable("Temporal does not give the VM's runs: see that it is up, then try again") from error
    if not found:
        raise NotFound("Temporal has no run of this VM: it keeps ended ones only for its retention time")
    return tuple(found)


async def main(vm_id: str) -> int:
    """Replay a VM's runs as whoever may; return the exit code. Root of an installation becomes its control worker."""
    settings = Settings()
    installation = await asyncio.to_thread(read_installation, settings.home) if os.geteuid() == 0 else None
    if installation is None:
        return await replay_vm(settings, vm_id)
    user = await asyncio.to_thread(need_user, users.HOSTLER)
    order = Confinement(
        argv=(*module_arguments("workers.replay"), vm_id),
        uid=user.uid,
        gid=user.gid,
        environment=environment(installation),
        bind=(*python_binds(), installation.home),
    )
    done = await run_confined(order, timeout_seconds=_SECONDS)
    sys.stdout.write(done.stdout.decode())
    sys.stderr.write(done.stderr.decode())
    return min(done.returncode, 1)


async def replay_vm(settings: Settings, vm_id: str) -> int:
    """Replay a VM's runs and print a line for each; return the exit code."""
    keys = await asyncio.to_thread(MasterKeys.load, settings.master_key_file)
    pool = await process.open_store(settings, application="hostler replay")
    try:
        fleet = await get_fleet(pool)
    finally:
        await pool.close()
    client = await process.connect_temporal(settings, process.control_seal(keys, fleet.id))
    histories = await fetch_histories(client, vm_id)
    results = await replay(histories, client.data_converter, namespace=client.namespace)
    for each in results:
        print(f"{each.workflow_type:<10}  {each.run_id}  {each.failure or 'replays'}")
    return 1 if any(each.failure for each in results) else 0


def _tell(history: WorkflowHistory, failure: Exception | None) -> Replayed:
    started = history.events[0].workflow_execution_started_event_attributes
    why = None if failure is None else f"does not replay: {type(failure).__name__}: {clean_text(str(failure))}"
    return Replayed(started.workflow_type.name, history.run_id, why)


async def _each(histories: Sequence[WorkflowHistory]) -> AsyncIterator[WorkflowHistory]:
    for history in histories:
        yield history


if __name__ == "__main__":
    configure_logging("console", "error")
    try:
        code = asyncio.run(main(sys.argv[1]))
    except HostlerError as error:
        print(f"error: {error.detail}", file=sys.stderr)
        code = 1
    finish(code)
