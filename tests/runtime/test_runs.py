"""Pokes, guarded runs, progress, versions: on a real server."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from activities.progress import report_progress
from model.errors import Permanent, Unavailable
from model.passes import PassStart
from model.record import HostOrder, View
from model.temporal import CONTROL_QUEUE, LOOK_AGAIN, SEARCH_HOST, SEARCH_VM, vm_workflow_id
from model.versions import VERSION, release_order
from runtime import deployment
from runtime.converter import data_converter
from runtime.deployment import current_build, find_builds, find_older_build, make_current
from runtime.failures import PAYLOAD_ERROR
from runtime.settings import Settings
from runtime.temporal import (
    connect,
    control_worker_options,
    poke,
    read_progress,
    register_search_attributes,
)
from tests.runtime.fleet import SECRET_WORDS, Fleet, a_view, running_fleet
from tests.runtime.flows import CreateVm, LocalPass, WaitsThreeDays

BOUND = 20


@activity.defn
async def refuse() -> None:
    raise Permanent(f"said {SECRET_WORDS}")


@activity.defn
async def stumble() -> None:
    raise KeyError(SECRET_WORDS)


@pytest_asyncio.fixture
async def fleet(temporal_address: str, temporal_namespace: str) -> AsyncIterator[Fleet]:
    async with running_fleet(temporal_address, temporal_namespace, activities=[refuse, stumble]) as running:
        yield running


async def test_a_poke_starts_one_run_and_wakes_it_again(fleet: Fleet) -> None:
    """S-8: one open run per VM; summary and attributes hold ids only."""
    await poke(fleet.control, "CreateVm", "v1", host_id="a", search_attributes=True)
    handle = fleet.control.get_workflow_handle(vm_workflow_id("v1"))
    described = await handle.describe()
    assert await described.static_summary() == "create of VM v1"
    assert described.typed_search_attributes[_key(SEARCH_VM)] == "v1"
    assert described.typed_search_attributes[_key(SEARCH_HOST)] == "a"
    config = described.raw_description.execution_config
    assert config.default_workflow_task_timeout.ToTimedelta() == timedelta(seconds=10)
    assert config.workflow_run_timeout.ToTimedelta() == timedelta(0)
    await poke(fleet.control, "CreateVm", "v1")
    assert await asyncio.wait_for(handle.result(), BOUND) == 2
    await poke(fleet.control, "CreateVm", "v1")
    assert (await handle.describe()).run_id != described.run_id


def _key(name: str):  # type: ignore[no-untyped-def]
    from runtime.temporal import SEARCH_KEYS

    return SEARCH_KEYS[name]


async def test_a_poke_at_a_silent_server_gives_up_in_time() -> None:
    """A request waits 300 ms for Temporal, and is told in our words."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = Settings(temporal_address=f"127.0.0.1:{silent.getsockname()[1]}")
        client = await connect(settings, data_converter(None), lazy=True)
        began = time.monotonic()
        with pytest.raises(Unavailable):
            await poke(client, "CreateVm", "v1")
        assert await read_progress(client, "v1") is None
        assert time.monotonic() - began < 2


async def test_a_connection_that_is_refused_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await connect(Settings(temporal_address="127.0.0.1:1"), data_converter(None))


@pytest.mark.parametrize(
    "argument",
    [
        [{"not": "a script"}],
        [],
        [1, 2],
        [RawValue(Payload(metadata={"encoding": b"binary/null"}))],
        [RawValue(Payload(metadata={"encoding": b"binary/made-up"}))],
        [RawValue(Payload(metadata={"encoding": b"json/external-storage-reference"}, data=b"{}"))],
    ],
    ids=["unfit", "none", "two", "null", "unknown", "reference"],
)
async def test_a_start_that_does_not_fit_ends_the_run(fleet: Fleet, argument: list[object]) -> None:
    """O13, E7: a payload error, never a run whose task fails for ever."""
    handle = await fleet.attacker.start_workflow(
        "ScriptedPass", args=argument, id=f"odd/{uuid.uuid4().hex[:6]}", task_queue="control"
    )
    with pytest.raises(WorkflowFailureError) as failed:
        await asyncio.wait_for(handle.result(), BOUND)
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == PAYLOAD_ERROR
    kinds = {event.event_type for event in (await handle.fetch_history()).events}
    assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED not in kinds


async def test_a_signal_that_does_not_fit_wedges_nothing(fleet: Fleet) -> None:
    """E7: one of unknown encoding is dropped; a bare one with arguments is a look as any other."""
    handle = await fleet.control.start_workflow(CreateVm.run, {}, id="vm/signals", task_queue="control")
    attacker = fleet.attacker.get_workflow_handle("vm/signals")
    reference = RawValue(Payload(metadata={"encoding": b"json/external-storage-reference"}, data=b"{}"))
    for odd in (RawValue(Payload(metadata={"encoding": b"binary/made-up"})), reference):
        await attacker.signal("look_again", args=[odd])
    assert await asyncio.wait_for(handle.query(CreateVm.count), BOUND) == 0
    await attacker.signal("look_again", args=[1, 2])
    await handle.signal(CreateVm.look_again)
    assert await asyncio.wait_for(handle.result(), BOUND) == 2


@pytest.mark.parametrize(("what", "kind"), [("refuse", "Permanent"), ("stumble", "StepFailed")])
async def test_a_local_activity_s_error_shows_fixed_words(fleet: Fleet, what: str, kind: str) -> None:
    """S-8: local activities stand in clear, so their errors show class and title only."""
    handle = await fleet.control.start_workflow(LocalPass.run, what, id=f"local/{what}", task_queue="control")
    told = await asyncio.wait_for(handle.result(), BOUND)
    assert told.error == kind
    assert told.final == (kind == "Permanent")
    history = b"".join(event.SerializeToString() for event in (await handle.fetch_history()).events)
    assert SECRET_WORDS.encode() not in history


async def test_progress_is_read_while_a_step_runs_and_a_cancel_arrives(fleet: Fleet) -> None:
    """Heartbeats carry the newest words, sealed; through them a cancel arrives."""
    cancelled = asyncio.Event()

    async def body(order: HostOrder) -> View:
        report_progress("looking")
        await asyncio.to_thread(report_progress, "42 of 100 MiB\n")
        try:
            await asyncio.sleep(BOUND)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return a_view()

    fleet.hosts["a"].body = body
    handle = await fleet.start("a", workflow_id=vm_workflow_id("v9"))
    async with asyncio.timeout(BOUND):
        while (words := await read_progress(fleet.control, "v9")) is None:  # noqa: ASYNC110 - another process tells
            await asyncio.sleep(0.1)
    assert words == "42 of 100 MiB\\n"
    assert await read_progress(fleet.attacker, "v9") is None
    await handle.cancel()
    await asyncio.wait_for(cancelled.wait(), BOUND)


async def test_search_attributes_are_registered_once_and_again(temporal_client: Client) -> None:
    """O16: a second start finds them."""
    assert await register_search_attributes(temporal_client)
    assert await register_search_attributes(temporal_client)


async def test_without_a_server_that_registers_runs_start_without(temporal_address: str) -> None:
    client = await Client.connect(temporal_address, namespace="no-such-namespace", lazy=True)
    assert not await register_search_attributes(client)


async def test_a_control_worker_makes_its_build_current(temporal_client: Client) -> None:
    """Passes are pinned to the build they began on; an older build never takes over from a newer one."""

    def worker(build: str) -> Worker:
        return Worker(temporal_client, workflows=[CreateVm], **control_worker_options(build_id=build))

    async with worker("1.9.0"):
        assert await make_current(temporal_client, "1.9.0")
        await poke(temporal_client, "CreateVm", "old")
        first = temporal_client.get_workflow_handle(vm_workflow_id("old"))
        async with asyncio.timeout(BOUND):
            while await first.query("count") < 1:  # noqa: ASYNC110 - another process tells
                await asyncio.sleep(0.05)
        async with worker("1.10.0"):
            assert await make_current(temporal_client, "1.10.0")
            assert not await make_current(temporal_client, "1.9.0")
            assert await current_build(temporal_client) == "1.10.0"
            await poke(temporal_client, "CreateVm", "new")
            second = temporal_client.get_workflow_handle(vm_workflow_id("new"))
            async with asyncio.timeout(BOUND):
                runs = {"1.9.0": 1, "1.10.0": 1}
                while (found := await find_builds(temporal_client)).open_runs != runs:  # noqa: ASYNC110 - shown later
                    await asyncio.sleep(0.1)
            assert found.current == "1.10.0"
            for handle, vm in ((first, "old"), (second, "new")):
                await poke(temporal_client, "CreateVm", vm)
                assert await asyncio.wait_for(handle.result(), BOUND) == 2
            assert await _build_of(first) == "1.9.0"
            assert await _build_of(second) == "1.10.0"


async def test_an_older_build_that_would_answer_a_wish_is_found(temporal_client: Client) -> None:
    """H-D4: the current one, and that of an open run; one that has ended answers nothing."""
    older, own, run = "0.0.9+a", f"{VERSION}+b", vm_workflow_id("old")

    def worker(build: str) -> Worker:
        return Worker(temporal_client, workflows=[CreateVm], **control_worker_options(build_id=build))

    async def found(workflow_id: str | None) -> str | None:
        return await find_older_build(temporal_client, workflow_id, timeout_seconds=BOUND)

    assert await found(run) is None
    async with worker(older), worker(own):
        await make_current(temporal_client, older)
        assert await found(None) == older
        handle = await temporal_client.start_workflow(
            "CreateVm", PassStart(vm_id="old"), id=run, task_queue=CONTROL_QUEUE, start_signal=LOOK_AGAIN
        )
        async with asyncio.timeout(BOUND):
            while await handle.query("count") < 1:  # noqa: ASYNC110 - another process tells
                await asyncio.sleep(0.05)
        await make_current(temporal_client, own)
        assert await found(None) is None
        assert await found(run) == older
        await handle.signal(LOOK_AGAIN)
        await asyncio.wait_for(handle.result(), BOUND)
        assert await found(run) is None


def test_a_build_is_named_after_its_code(tmp_path: Path) -> None:
    """A dev checkout whose passes differ is another build of the same release; a release's own order is unchanged."""
    here = deployment.find_build_id()
    assert here == deployment.find_build_id()
    assert release_order(here) == release_order(VERSION)
    for package in ("model", "activities", "workflows", "runtime"):
        shutil.copytree(Path(deployment.__file__).parents[1] / package, tmp_path / package)
    assert deployment.find_build_id(tmp_path) == here
    with (tmp_path / "workflows" / "create.py").open("a") as file:
        file.write("# another order\n")
    assert deployment.find_build_id(tmp_path) != here


async def _build_of(handle) -> str:  # type: ignore[no-untyped-def]
    described = await handle.describe()
    return described.raw_description.workflow_execution_info.versioning_info.deployment_version.build_id


async def test_a_build_that_nobody_polls_is_not_made_current(temporal_client: Client) -> None:
    with pytest.raises(Unavailable):
        await make_current(temporal_client, "3.0.0", timeout_seconds=0.3)


async def test_three_days_pass_at_once_on_the_time_skipping_server(time_skipping_env: WorkflowEnvironment) -> None:
    """The fixture for timers, with the workers' own options."""
    client = time_skipping_env.client
    began = time.monotonic()
    async with Worker(client, workflows=[WaitsThreeDays], **control_worker_options(build_id=None)):
        assert await client.execute_workflow(WaitsThreeDays.run, id="w", task_queue="control") == "done"
    assert time.monotonic() - began < BOUND


async def test_preparing_a_workflow_is_quick(temporal_client: Client) -> None:
    """What is passed through the sandbox is not imported again for every run."""
    async with Worker(temporal_client, workflows=[CreateVm], **control_worker_options(build_id=None)):
        for vm in ("warm", "r1", "r2", "r3"):
            began = time.monotonic()
            await poke(temporal_client, "CreateVm", vm)
            await poke(temporal_client, "CreateVm", vm)
            handle = temporal_client.get_workflow_handle(vm_workflow_id(vm))
            await asyncio.wait_for(handle.result(), BOUND)
            taken = time.monotonic() - began
        assert (await handle.describe()).status == WorkflowExecutionStatus.COMPLETED
    assert taken < 1
