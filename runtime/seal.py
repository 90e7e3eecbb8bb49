"""The seal on everything that passes between the control plane and a host through Temporal (S-3).

Temporal carries orders and authorises none: whoever reaches its port can schedule an activity or complete one. What
counts is sealed (AES-256-GCM) with the host's key and bound to its label, which both sides build from what the SDK says
they were called with. Opening never raises, since an exception in a codec fails the workflow task again and again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
)

from model.errors import Permanent
from model.temporal import host_of_queue, is_host_queue
from runtime.keys import SealingKey

Side = Literal["control", "host"]
KeyLookup = Callable[[str, int | None], SealingKey | None]
"""Finds a host's key by host id and version (None: the current one)."""

SEALED_ENCODING = b"binary/sealed"
UNSEALED_ENCODING = b"binary/unsealed"
"""What does not open becomes a payload of this kind. No converter takes it, so it ends as a payload error."""

_SIDE = "sealed-by"
_VERSION = "key-version"
_QUEUE = "queue"
_NONCE_BYTES = 12
_TAG_BYTES = 16


@dataclass(frozen=True)
class Label:
    """What a sealed text is for. It is bound in: under another label the text does not open."""

    fleet_id: str
    namespace: str
    workflow_id: str
    activity_type: str
    queue: str
    side: Side
    key_version: int

    def associated_data(self) -> bytes:
        """Return the label as bytes that no other label has."""
        fields = (self.fleet_id, self.namespace, self.workflow_id, self.activity_type, self.queue, self.side)
        return json.dumps(["hostler-seal", 1, *fields, self.key_version], separators=(",", ":")).encode()


opened_order: ContextVar[Label | None] = ContextVar("opened_order", default=None)
"""The label of the order that this activity's task opened. None: nothing was opened, so nothing may run."""


class Seal(PayloadCodec, WithSerializationContext):
    """Seal the payloads of remote activities; let runs, local activities, summaries and attributes pass in clear.

    On a host everything must be sealed. `control_key` seals remote activities of queues that are no host's.
    """

    def __init__(
        self,
        *,
        side: Side,
        fleet_id: str,
        key_for: KeyLookup,
        control_key: SealingKey | None = None,
        context: SerializationContext | None = None,
    ) -> None:
        self.side: Side = side
        self.fleet_id = fleet_id
        self._key_for = key_for
        self._control_key = control_key
        self._context = context

    def with_context(self, context: SerializationContext) -> Seal:
        """Return this seal for the payloads of one run or activity."""
        return Seal(
            side=self.side,
            fleet_id=self.fleet_id,
            key_for=self._key_for,
            control_key=self._control_key,
            context=context,
        )

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Seal each payload, or return it as it is where nothing is sealed."""
        context = self._sealed_context()
        if context is None:
            if self.side == "host":
                raise Permanent("a host sends nothing but the answers of its steps: this payload belongs to none")
            return list(payloads)
        return [self._seal(payload, context) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Open each payload. What does not open becomes one of UNSEALED_ENCODING; nothing is raised."""
        context = self._sealed_context()
        if context is None:
            return [unsealed() for _ in payloads] if self.side == "host" else list(payloads)
        return [self._open_or_refuse(payload, context) for payload in payloads]

    def open_for(self, payload: Payload, *, namespace: str, workflow_id: str, activity_type: str) -> Payload | None:
        """Open what a host sealed for a known activity whose queue the payload itself names; None if it does not."""
        queue = payload.metadata.get(_QUEUE, b"").decode("utf-8", "replace")
        if not is_host_queue(queue) or queue.count("/") < 2:
            return None
        return self._open(payload, namespace, workflow_id, activity_type, queue)

    def _sealed_context(self) -> ActivitySerializationContext | None:
        context = self._context
        if not isinstance(context, ActivitySerializationContext) or context.is_local:
            return None
        return context

    def _seal(self, payload: Payload, context: ActivitySerializationContext) -> Payload:
        queue = context.activity_task_queue or ""
        key = self._key(queue, None)
        if key is None:
            raise Permanent("there is no key for this queue: nothing goes to it or comes from it unsealed")
        label = self._label(
            context.namespace, context.workflow_id, context.activity_type, queue, self.side, key.version
        )
        nonce = os.urandom(_NONCE_BYTES)
        sealed = AESGCM(key.secret).encrypt(nonce, payload.SerializeToString(), label.associated_data())
        metadata = {
            "encoding": SEALED_ENCODING,
            _SIDE: self.side.encode(),
            _VERSION: str(key.version).encode(),
            _QUEUE: queue.encode(),
        }
        return Payload(metadata=metadata, data=nonce + sealed)

    def _open_or_refuse(self, payload: Payload, context: ActivitySerializationContext) -> Payload:
        queue = context.activity_task_queue or ""
        opened = self._open(payload, context.namespace, context.workflow_id, context.activity_type, queue)
        return unsealed() if opened is None else opened

    def _open(
        self, payload: Payload, namespace: str, workflow_id: str | None, activity_type: str | None, queue: str
    ) -> Payload | None:
        side = _sealing_side(payload)
        version = _key_version(payload)
        if side is None or version is None or len(payload.data) < _NONCE_BYTES + _TAG_BYTES:
            return None
        # The control plane takes from a host's queue only what the host sealed, so that an order is never its own
        # answer. A host opens both: an order, and its own last heartbeat when a step is tried again.
        if self.side == "control" and is_host_queue(queue) and side != "host":
            return None
        key = self._key(queue, version)
        if key is None:
            return None
        label = self._label(namespace, workflow_id, activity_type, queue, side, version)
        opened = _decrypt(key.secret, payload.data, label)
        if opened is not None and self.side == "host" and side == "control":
            opened_order.set(label)
        return opened

    def _label(
        self, namespace: str, workflow_id: str | None, activity: str | None, queue: str, side: Side, version: int
    ) -> Label:
        return Label(self.fleet_id, namespace, workflow_id or "", activity or "", queue, side, version)

    def _key(self, queue: str, version: int | None) -> SealingKey | None:
        if is_host_queue(queue):
            return self._key_for(host_of_queue(queue)[0], version) if queue.count("/") >= 2 else None
        key = self._control_key
        return key if key is not None and version in (None, key.version) else None


def unsealed() -> Payload:
    """Return the payload of fixed kind that stands for one that did not open."""
    return Payload(metadata={"encoding": UNSEALED_ENCODING})


def _sealing_side(payload: Payload) -> Side | None:
    if payload.metadata.get("encoding") != SEALED_ENCODING:
        return None
    written = payload.metadata.get(_SIDE, b"")
    if written == b"control":
        return "control"
    return "host" if written == b"host" else None


def _key_version(payload: Payload) -> int | None:
    written = payload.metadata.get(_VERSION, b"")
    return int(written) if 0 < len(written) <= 6 and written.isdigit() else None


def _decrypt(secret: bytes, data: bytes, label: Label) -> Payload | None:
    try:
        plain = AESGCM(secret).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], label.associated_data())
        return Payload.FromString(plain)
    except (InvalidTag, DecodeError, ValueError):
        return None
