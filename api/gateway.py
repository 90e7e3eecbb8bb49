"""What a host may ask of Temporal: poll its own queues, and answer what it polled (S-7). Nothing passes by an id.

Every message that passes is made anew of the few fields that a host has a use for, and every task token leaves sealed
for the host that polled it: whose credential answers a task is whose task it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import grpc
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError, Message
from grpc import StatusCode
from temporalio.api.enums.v1 import TaskQueueKind
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    GetSystemInfoRequest,
    PollActivityTaskQueueRequest,
    PollActivityTaskQueueResponse,
    RecordActivityTaskHeartbeatRequest,
    RespondActivityTaskCanceledRequest,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskFailedRequest,
    ShutdownWorkerResponse,
)
from temporalio.service import RPCError, WorkflowService

from api.host_credentials import LOOK_SECONDS, HostCredentials
from model.errors import Unauthenticated, Unavailable
from model.temporal import bulk_queue, host_queue
from model.text import clean_text
from runtime.log import describe_exception
from store.host import KnownHost

POLL_TIMEOUT = timedelta(seconds=70)
CALL_TIMEOUT = timedelta(seconds=20)
_SERVICE = "/temporal.api.workflowservice.v1.WorkflowService/"
_NONCE_BYTES = 12
_NOT_ALLOWED = "a host polls its own queues and answers its own tasks: nothing else passes this gateway"
_STATUSES = {cast("tuple[int, str]", code.value)[0]: code for code in StatusCode}
_log = logging.getLogger("hostler.gateway")
M = TypeVar("M", bound=Message)


class Keys(Protocol):
    """Who knows the key that a host's task tokens are sealed with."""

    def gateway_key(self, host_id: str) -> bytes: ...


class CallRefused(Exception):
    """Ends a call with a status and one sentence."""

    def __init__(self, status: StatusCode, words: str = _NOT_ALLOWED) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


Pass = Callable[[str, KnownHost, bytes], Awaitable[Message]]
"""Answers a host's message; given also the text of its credential."""


class Gateway(grpc.GenericRpcHandler):
    """Let calls of hosts through to one namespace of Temporal. `ending`: no poll stays open any more."""

    def __init__(self, temporal: WorkflowService, namespace: str, keys: Keys, credentials: HostCredentials) -> None:
        self._temporal = temporal
        self._namespace = namespace
        self._keys = keys
        self._credentials = credentials
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._passes: dict[str, Pass] = {
            "PollActivityTaskQueue": self._poll,
            "RespondActivityTaskCompleted": self._complete,
            "RespondActivityTaskFailed": self._fail,
            "RespondActivityTaskCanceled": self._cancel,
            "RecordActivityTaskHeartbeat": self._heartbeat,
            "GetSystemInfo": self._system,
            "DescribeNamespace": self._describe,
            "ShutdownWorker": self._shut_down,
        }

    def end(self) -> None:
        """Answer every open poll with nothing: its host asks again, of whoever then listens."""
        if not self._ending.done():
            self._ending.set_result(None)

    def service(self, handler_call_details: Any) -> Any:
        """Return who answers a call; every call is answered, so that a refusal says why."""
        path = str(handler_call_details.method)
        passes = self._passes.get(path.removeprefix(_SERVICE)) if path.startswith(_SERVICE) else None
        return cast("Any", grpc).unary_unary_rpc_method_handler(partial(self._answer, passes))

    async def _answer(self, passes: Pass | None, message: bytes, context: Any) -> bytes:
        try:
            given: dict[str, Any] = dict(context.invocation_metadata() or ())
            authorization = str(given.get("authorization", ""))
            host = await self._host_of(authorization)
            if passes is None:
                raise CallRefused(StatusCode.PERMISSION_DENIED)
            return (await passes(authorization, host, message)).SerializeToString()
        except CallRefused as refused:
            why = refused
        except RPCError as error:
            why = CallRefused(_STATUSES[int(error.status)], clean_text(error.message))
        except Exception as error:
            _log.error("unexpected error: %s", describe_exception(error))
            why = CallRefused(StatusCode.INTERNAL, "a fault of the gateway: its log says more")
        return await context.abort(why.status, why.words)

    async def _host_of(self, authorization: str) -> KnownHost:
        try:
            return await self._credentials.host_of(authorization)
        except Unauthenticated as error:
            raise CallRefused(StatusCode.UNAUTHENTICATED, error.detail) from error
        except Unavailable as error:
            raise CallRefused(StatusCode.UNAVAILABLE, error.detail) from error

    async def _poll(self, authorization: str, host: KnownHost, message: bytes) -> Message:
        asked = self._read(PollActivityTaskQueueRequest, message)
        check_queue(asked.task_queue.name, host)
        request = PollActivityTaskQueueRequest(
            namespace=self._namespace,
            task_queue=TaskQueue(name=asked.task_queue.name, kind=TaskQueueKind.TASK_QUEUE_KIND_NORMAL),
            identity=_identity(host),
        )
        # Not tried again here, and cancelled with its caller: a poll without one would take a task that nobody does.
        polling = asyncio.ensure_future(
            self._temporal.poll_activity_task_queue(request, retry=False, timeout=POLL_TIMEOUT)
        )
        try:
            while not polling.done() and not self._ending.done():
                await asyncio.wait((polling, self._ending), timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                # It is open for up to a minute: a credential that was revoked meanwhile gets no order any more.
                check_queue(asked.task_queue.name, await self._host_of(authorization))
            task = polling.result() if polling.done() else None
        finally:
            polling.cancel()
        if task is None or not task.task_token:
            return PollActivityTaskQueueResponse()
        task.task_token = self._seal(host, task.task_token)
        return task

    async def _complete(self, _: str, host: KnownHost, message: bytes) -> Message:
        asked = self._read(RespondActivityTaskCompletedRequest, message)
        request = RespondActivityTaskCompletedRequest(result=asked.result, **self._own(host, asked.task_token))
        return await self._temporal.respond_activity_task_completed(request, retry=False, timeout=CALL_TIMEOUT)

    async def _fail(self, _: str, host: KnownHost, message: bytes) -> Message:
        asked = self._read(RespondActivityTaskFailedRequest, message)
        request = RespondActivityTaskFailedRequest(
            failure=asked.failure,
            last_heartbeat_details=asked.last_heartbeat_details,
            **self._own(host, asked.task_token),
        )
        return await self._temporal.respond_activity_task_failed(request, retry=False, timeout=CALL_TIMEOUT)

    async def _cancel(self, _: str, host: KnownHost, message: bytes) -> Message:
        asked = self._read(RespondActivityTaskCanceledRequest, message)
        request = RespondActivityTaskCanceledRequest(details=asked.details, **self._own(host, asked.task_token))
        return await self._temporal.respond_activity_task_canceled(request, retry=False, timeout=CALL_TIMEOUT)

    async def _heartbeat(self, _: str, host: KnownHost, message: bytes) -> Message:
        asked = self._read(RecordActivityTaskHeartbeatRequest, message)
        request = RecordActivityTaskHeartbeatRequest(details=asked.details, **self._own(host, asked.task_token))
        return await self._temporal.record_activity_task_heartbeat(request, retry=False, timeout=CALL_TIMEOUT)

    async def _system(self, _: str, _host: KnownHost, _message: bytes) -> Message:
        return await self._temporal.get_system_info(GetSystemInfoRequest(), retry=False, timeout=CALL_TIMEOUT)

    async def _describe(self, _: str, _host: KnownHost, message: bytes) -> Message:
        self._read(DescribeNamespaceRequest, message)
        request = DescribeNamespaceRequest(namespace=self._namespace)
        found = await self._temporal.describe_namespace(request, retry=False, timeout=CALL_TIMEOUT)
        # That it is there, how large a payload may be, how pollers scale; what it can do besides is nothing for hosts.
        told, seen = DescribeNamespaceResponse(), found.namespace_info
        told.namespace_info.name, told.namespace_info.state = seen.name, seen.state
        told.namespace_info.limits.CopyFrom(seen.limits)
        told.namespace_info.capabilities.poller_autoscaling = seen.capabilities.poller_autoscaling
        return told

    async def _shut_down(self, _: str, _host: KnownHost, _message: bytes) -> Message:
        """A host's worker says that it ends; its polls end by themselves, with their streams."""
        return ShutdownWorkerResponse()

    def _read(self, kind: type[M], message: bytes) -> M:
        try:
            read = kind.FromString(message)
        except DecodeError as error:
            raise CallRefused(StatusCode.INVALID_ARGUMENT, "the message cannot be read") from error
        asked: Any = read
        if asked.namespace != self._namespace:
            raise CallRefused(StatusCode.PERMISSION_DENIED)
        return read

    def _own(self, host: KnownHost, token: bytes) -> dict[str, Any]:
        return {"task_token": self._open(host, token), "identity": _identity(host), "namespace": self._namespace}

    def _seal(self, host: KnownHost, token: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self._keys.gateway_key(host.id)).encrypt(nonce, token, host.id.encode())

    def _open(self, host: KnownHost, sealed: bytes) -> bytes:
        nonce, body = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return AESGCM(self._keys.gateway_key(host.id)).decrypt(nonce, body, host.id.encode())
        except (InvalidTag, ValueError) as error:
            raise CallRefused(StatusCode.PERMISSION_DENIED) from error


def check_queue(queue: str, host: KnownHost) -> None:
    """Refuse a queue that is not one of this host's present instance (H-E4); raise CallRefused."""
    own = host.instance_id
    if own is not None and queue in (host_queue(host.id, own), bulk_queue(host.id, own)):
        return
    if queue.startswith(f"host/{host.id}/"):
        # Not for ever: an instance gets its queues with its first report, which may be on its way.
        raise CallRefused(StatusCode.UNAVAILABLE, "this host has not reported as this instance: its queues wait")
    raise CallRefused(StatusCode.PERMISSION_DENIED)


def _identity(host: KnownHost) -> str:
    return f"host/{host.id}"
