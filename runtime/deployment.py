"""Which release runs which pass: control workers are one Worker Deployment, passes stay on the build they began on."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import WorkerDeploymentConfig

from model.errors import Unavailable
from model.temporal import CONTROL_QUEUE
from model.versions import VERSION, release_order

DEPLOYMENT = "hostler-control"
_CALL_TIMEOUT = timedelta(seconds=5)
_ASK_SECONDS = 2.0
_LIST_SECONDS = 10.0
_RUNS_ON = SearchAttributeKey.for_keyword("TemporalWorkerDeploymentVersion")
_PAUSE_SECONDS = 0.1
_PACKAGES = ("model", "activities", "workflows", "runtime")
_MAY_PASS = {
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.FAILED_PRECONDITION,
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.ABORTED,
    RPCStatusCode.CANCELLED,
}


def find_build_id(root: Path | None = None, packages: tuple[str, ...] = _PACKAGES) -> str:
    """Return the build of the code that is running: the release, and a digest of all that a pass' order depends on.

    root: of another checkout. packages: those of which the digest is.

    Two checkouts of one release differ when their code does, so no run is replayed on code that it did not begin on.
    """
    digest, root = hashlib.sha256(), root or Path(__file__).resolve().parents[1]
    for package in packages:
        files = (path for ending in ("py", "sql") for path in (root / package).rglob(f"*.{ending}"))
        for path in sorted(files):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{VERSION}+{digest.hexdigest()[:12]}"


def deployment_config(build_id: str) -> WorkerDeploymentConfig:
    """Return the versioning of a control worker of this build; passes stay on the build that they began on."""
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=DEPLOYMENT, build_id=build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


async def current_build(client: Client) -> str | None:
    """Return the build that new passes begin on, or None when there is none yet."""
    request = DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=DEPLOYMENT)
    try:
        answer = await client.workflow_service.describe_worker_deployment(request, timeout=_CALL_TIMEOUT)
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return None
        raise
    return answer.worker_deployment_info.routing_config.current_deployment_version.build_id or None


def is_older(build_id: str | None, other: str) -> bool:
    """Tell whether a build is of an older release than another one; no build is older than any."""
    return build_id is None or release_order(build_id) < release_order(other)


async def find_older_build(
    client: Client, workflow_id: str | None, *, timeout_seconds: float = _ASK_SECONDS
) -> str | None:
    """Return the build of an older release that would answer a wish: the current one, or that of a workflow's open run.

    None where there is none, and where Temporal does not tell in time.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            builds = [await current_build(client)]
            if workflow_id is not None:
                builds.append(await _open_runs_build(client, workflow_id))
    except (RPCError, RuntimeError, TimeoutError):
        return None
    return next((build for build in builds if build is not None and is_older(build, VERSION)), None)


async def _open_runs_build(client: Client, workflow_id: str) -> str | None:
    try:
        run = (await client.get_workflow_handle(workflow_id).describe()).raw_description.workflow_execution_info
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return None
        raise
    is_open = run.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
    return run.versioning_info.deployment_version.build_id or None if is_open else None


async def make_current(client: Client, build_id: str, *, timeout_seconds: float = 30) -> bool:
    """Let new passes begin on this build unless a newer one is current; return whether this build is current now.

    Call it while the worker polls: the server learns of a build from its first poll. Errors: Unavailable.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            current = await current_build(client)
            if current == build_id:
                return True
            if current is not None and is_older(build_id, current):
                return False
            await _set_current(client, build_id)
            return True
        except RPCError as error:
            if error.status not in _MAY_PASS or time.monotonic() > deadline:
                raise Unavailable(
                    f"Temporal does not make build {build_id} of {DEPLOYMENT} current: passes wait until it does"
                ) from error
        await asyncio.sleep(_PAUSE_SECONDS)


async def end_runs_of_other_builds(client: Client, build_id: str) -> int:
    """End the passes that are pinned to another build, and return how many; the sweep begins them anew within a minute.

    For when the workers of every other build are gone for good. Errors: Unavailable.
    """
    ended = 0
    try:
        async for run in client.list_workflows(f"ExecutionStatus = 'Running' and TaskQueue = '{CONTROL_QUEUE}'"):
            if await _open_runs_build(client, run.id) not in (None, build_id):
                with contextlib.suppress(RPCError):  # it has ended by itself
                    await client.get_workflow_handle(run.id, run_id=run.run_id).terminate("nobody runs its build")
                ended += 1
    except RPCError as error:
        raise Unavailable("Temporal does not list its open runs: those of the other build are ended later") from error
    return ended


@dataclass(frozen=True)
class Builds:
    """The build that new passes begin on, and how many passes are open on which build."""

    current: str | None
    open_runs: dict[str, int]


async def find_builds(client: Client, *, timeout_seconds: float = _LIST_SECONDS) -> Builds:
    """Ask Temporal for the builds of control workers. Errors: Unavailable, where it does not tell in time."""
    counted: Counter[str] = Counter()
    try:
        async with asyncio.timeout(timeout_seconds):
            current = await current_build(client)
            async for run in client.list_workflows(f"ExecutionStatus = 'Running' and TaskQueue = '{CONTROL_QUEUE}'"):
                version = run.typed_search_attributes.get(_RUNS_ON)
                if version is not None:
                    counted[version.removeprefix(f"{DEPLOYMENT}:")] += 1
    except (RPCError, RuntimeError, TimeoutError) as error:
        raise Unavailable("Temporal does not tell which builds there are; try again") from error
    return Builds(current, dict(counted))


async def _set_current(client: Client, build_id: str) -> None:
    await client.workflow_service.set_worker_deployment_current_version(
        SetWorkerDeploymentCurrentVersionRequest(
            namespace=client.namespace,
            deployment_name=DEPLOYMENT,
            build_id=build_id,
            identity=client.identity,
            ignore_missing_task_queues=True,
        ),
        timeout=_CALL_TIMEOUT,
    )
