"""The client and the workers of Temporal: what is the same for every process is set here, once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, DescribeWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Interceptor, PollerBehaviorAutoscaling
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from model.campaign import TYPES, CampaignKind, CampaignStart, campaign_workflow_id
from model.errors import Unavailable
from model.passes import PassStart, PassType
from model.sync import SyncStart
from model.temporal import (
    CONTROL_QUEUE,
    LOOK_AGAIN,
    SEARCH_HOST,
    SEARCH_PHASE,
    SEARCH_VM,
    host_workflow_id,
    vm_workflow_id,
)
from model.text import clean_text
from runtime.deployment import deployment_config
from runtime.interceptors import ControlInterceptor, HostInterceptor
from runtime.profile import connect_options
from runtime.seal import Seal
from runtime.settings import Settings

CALL_TIMEOUT = timedelta(milliseconds=300)
"""How long a request may wait for Temporal: what is lost, the sweep finds again."""

TASK_TIMEOUT = timedelta(seconds=10)
_REGISTER_TIMEOUT = timedelta(seconds=10)
_MEANT_BY_PASS = {"CreateVm": "create", "ConvergeVm": "converge", "ReapVm": "reap"}
_PASSED_THROUGH = ("activities", "model", "pydantic", "pydantic_core", "annotated_types", "typing_inspection")

SEARCH_KEYS = {name: SearchAttributeKey.for_keyword(name) for name in (SEARCH_HOST, SEARCH_VM, SEARCH_PHASE)}
_log = logging.getLogger("hostler.temporal")


async def connect(
    settings: Settings, converter: DataConverter, *, identity: str | None = None, lazy: bool = False
) -> Client:
    """Connect to Temporal as the settings say; lazy: at the first call. Errors: Unavailable, and of its profile."""
    options = connect_options(settings)
    if identity is not None:
        options["identity"] = identity
    return await dial(options | {"data_converter": converter}, "Temporal", lazy=lazy)


async def dial(options: Mapping[str, Any], name: str, *, lazy: bool = False) -> Client:
    """Connect as `Client.connect` is told; name: of who answers there. Errors: Unavailable."""
    try:
        client = await Client.connect(**options, lazy=lazy)
        if not lazy:
            await _find_namespace(client)
        return client
    except (RuntimeError, RPCError) as error:
        raise Unavailable(
            f"{name} at {options['target_host']} does not answer: start it or correct its address"
        ) from error


async def _find_namespace(client: Client) -> None:
    """Raise Unavailable while the client's namespace is not there: no worker can poll it (case O16)."""
    request = DescribeNamespaceRequest(namespace=client.namespace)
    try:
        await client.workflow_service.describe_namespace(request, timeout=_REGISTER_TIMEOUT)
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        raise Unavailable(f"Temporal has no namespace {client.namespace}: register it, or correct the name") from error


def workflow_runner() -> SandboxedWorkflowRunner:
    """Return the sandbox of every workflow. `workflows` itself is never passed through."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*_PASSED_THROUGH))


def control_worker_options(
    *, build_id: str | None, interceptors: tuple[Interceptor, ...] = (), remote_activities: bool = False
) -> dict[str, Any]:
    """Return what a control worker passes to `Worker` besides client, workflows and activities.

    `build_id` None: no worker versioning (tests). Without remote activities nobody can send it any through Temporal.
    """
    options: dict[str, Any] = {
        "task_queue": CONTROL_QUEUE,
        "interceptors": [ControlInterceptor(), *interceptors],
        "workflow_runner": workflow_runner(),
        "no_remote_activities": not remote_activities,
        "disable_eager_activity_execution": True,
        # A worker that was killed holds its cached runs no longer than this.
        "sticky_queue_schedule_to_start_timeout": timedelta(seconds=2),
        "max_heartbeat_throttle_interval": timedelta(seconds=2),
        "graceful_shutdown_timeout": timedelta(seconds=5),
    }
    if build_id is not None:
        options["deployment_config"] = deployment_config(build_id)
    return options


def host_worker_options(
    task_queue: str,
    *,
    fleet_id: str,
    interceptors: tuple[Interceptor, ...] = (),
    graceful_shutdown: timedelta = timedelta(seconds=10),
) -> dict[str, Any]:
    """Return what a host worker passes to `Worker` for one of its queues, besides client and activities.

    Slots for every VM: how much is done at once is the host's own admission, so that only a host which does not poll
    lets a schedule-to-start limit expire.
    """
    return {
        "task_queue": task_queue,
        "interceptors": [HostInterceptor(fleet_id=fleet_id), *interceptors],
        "max_concurrent_activities": 10_000,
        # A quiet host asks with one poller, a busy one with as many as the server says are of use.
        "activity_task_poller_behavior": PollerBehaviorAutoscaling(minimum=1, initial=2, maximum=20),
        "max_heartbeat_throttle_interval": timedelta(seconds=2),
        "default_heartbeat_throttle_interval": timedelta(seconds=2),
        "graceful_shutdown_timeout": graceful_shutdown,
    }


async def register_search_attributes(client: Client) -> bool:
    """Register Hostler's search attributes where they are missing; return whether runs may be started with them."""
    try:
        missing = set(SEARCH_KEYS) - await _registered(client)
        if missing:
            keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
            await client.operator_service.add_search_attributes(
                AddSearchAttributesRequest(
                    namespace=client.namespace, search_attributes=dict.fromkeys(missing, keyword)
                ),
                timeout=_REGISTER_TIMEOUT,
            )
        return await _await_registered(client)
    except (RPCError, RuntimeError) as error:
        if isinstance(error, RPCError) and error.status == RPCStatusCode.ALREADY_EXISTS:
            return True
        _log.warning("search attributes cannot be registered, runs start without: %s", clean_text(str(error)))
        return False


async def _registered(client: Client) -> set[str]:
    try:
        listed = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace), timeout=_REGISTER_TIMEOUT
        )
    except RPCError as error:
        # The time-skipping test server registers them but has no list.
        if error.status == RPCStatusCode.UNIMPLEMENTED:
            return set()
        raise
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    return {name for name, kind in listed.custom_attributes.items() if kind == keyword}


async def _await_registered(client: Client) -> bool:
    try:
        await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace), timeout=_REGISTER_TIMEOUT
        )
    except RPCError as error:
        if error.status == RPCStatusCode.UNIMPLEMENTED:
            return True
        raise
    return set(SEARCH_KEYS) <= await _registered(client)


async def poke(
    client: Client, pass_type: PassType, vm_id: str, *, host_id: str | None = None, search_attributes: bool = False
) -> None:
    """Start the pass that a row calls for, or tell the running one to look again; at most 300 ms. Errors: Unavailable.

    No time-out is set for the run: no code of it would run after one. Search attributes only where they are registered.
    """
    pairs = [SearchAttributePair(SEARCH_KEYS[SEARCH_VM], vm_id)]
    if host_id is not None:
        pairs.append(SearchAttributePair(SEARCH_KEYS[SEARCH_HOST], host_id))
    await _start(
        client,
        pass_type,
        PassStart(vm_id=vm_id),
        vm_workflow_id(vm_id),
        f"{_MEANT_BY_PASS[pass_type]} of VM {vm_id}",
        pairs if search_attributes else None,
    )


async def poke_campaign(
    client: Client, kind: CampaignKind, campaign_id: str, *, host_id: str | None = None, search_attributes: bool = False
) -> None:
    """Start a campaign's run, or tell the running one to look again; as `poke` does for a VM. Errors: Unavailable."""
    pairs = [SearchAttributePair(SEARCH_KEYS[SEARCH_HOST], host_id)] if host_id is not None else []
    await _start(
        client,
        TYPES[kind],
        CampaignStart(campaign_id=campaign_id),
        campaign_workflow_id(kind, campaign_id, host_id),
        f"drain of host {host_id}" if kind == "drain" else f"rolling restart {campaign_id}",
        pairs if search_attributes and pairs else None,
    )


async def poke_host(client: Client, host_id: str, *, search_attributes: bool = False) -> None:
    """Start a host's sync, or tell the running one to look again; as `poke` does for a VM. Errors: Unavailable."""
    await _start(
        client,
        "SyncHost",
        SyncStart(host_id=host_id),
        host_workflow_id(host_id),
        f"sync of host {host_id}",
        [SearchAttributePair(SEARCH_KEYS[SEARCH_HOST], host_id)] if search_attributes else None,
    )


async def _start(
    client: Client,
    workflow_type: str,
    start: PassStart | CampaignStart | SyncStart,
    workflow_id: str,
    summary: str,
    pairs: Sequence[SearchAttributePair[Any]] | None,
) -> None:
    try:
        async with asyncio.timeout(CALL_TIMEOUT.total_seconds()):
            await client.start_workflow(
                workflow_type,
                start,
                id=workflow_id,
                task_queue=CONTROL_QUEUE,
                start_signal=LOOK_AGAIN,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                task_timeout=TASK_TIMEOUT,
                static_summary=summary,
                search_attributes=TypedSearchAttributes(pairs) if pairs is not None else None,
                rpc_timeout=CALL_TIMEOUT,
            )
    except (RPCError, RuntimeError, TimeoutError) as error:
        raise Unavailable("Temporal did not take the wake-up in time: the sweep finds the row again") from error


async def read_progress(client: Client, vm_id: str) -> str | None:
    """Return what a VM's host says it is doing right now, or None; at most 300 ms, never an error of Temporal's."""
    seal = client.data_converter.payload_codec
    workflow_id = vm_workflow_id(vm_id)
    request = DescribeWorkflowExecutionRequest(namespace=client.namespace)
    request.execution.workflow_id = workflow_id
    try:
        async with asyncio.timeout(CALL_TIMEOUT.total_seconds()):
            described = await client.workflow_service.describe_workflow_execution(request, timeout=CALL_TIMEOUT)
    except (RPCError, RuntimeError, TimeoutError):
        return None
    if not isinstance(seal, Seal):
        return None
    pending = sorted(described.pending_activities, key=lambda each: each.last_heartbeat_time.ToNanoseconds())
    for step in reversed(pending):
        words = _words(client, seal, workflow_id, step)
        if words is not None:
            return words
    return None


def _words(client: Client, seal: Seal, workflow_id: str, step: PendingActivityInfo) -> str | None:
    for payload in step.heartbeat_details.payloads:
        opened = seal.open_for(
            payload, namespace=client.namespace, workflow_id=workflow_id, activity_type=step.activity_type.name
        )
        if opened is None:
            continue
        details: Any = client.data_converter.payload_converter.from_payloads([opened])[0]
        words = cast("dict[str, Any]", details).get("words") if isinstance(details, dict) else None
        if isinstance(words, str):
            return clean_text(words)
    return None
