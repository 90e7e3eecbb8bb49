"""Payloads and failures that nobody honest sends."""

from __future__ import annotations

import json

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure

from tests.runtime.fleet import a_view


def plain(value: object) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(value).encode())


def odd_results() -> dict[str, Payload]:
    view = a_view().model_dump_json().encode()
    return {
        "plain": Payload(metadata={"encoding": b"json/plain"}, data=view),
        "null": Payload(metadata={"encoding": b"binary/null"}),
        "nothing": Payload(),
        "unknown": Payload(metadata={"encoding": b"binary/made-up"}, data=b"x"),
        "bytes-in-encoding": Payload(metadata={"encoding": b"\xff\xfe"}, data=b"x"),
        "unsealed": Payload(metadata={"encoding": b"binary/unsealed"}, data=view),
        "reference": Payload(metadata={"encoding": b"json/external-storage-reference"}, data=b"{}"),
        "new-reference": Payload(
            metadata={
                "encoding": b"json/protobuf",
                "messageType": b"temporal.api.sdk.v1.ExternalStorageReference",
            },
            data=b"{}",
        ),
        "marked-reference": Payload(
            metadata={"encoding": b"json/plain", "__temporal_external_storage_reference": b"true"}, data=view
        ),
        "short": Payload(metadata={"encoding": b"binary/sealed", "sealed-by": b"host", "key-version": b"1"}, data=b"x"),
        "odd-version": Payload(
            metadata={"encoding": b"binary/sealed", "sealed-by": b"host", "key-version": "²".encode()}, data=bytes(99)
        ),
    }


def odd_failures() -> dict[str, Failure]:
    def application(**more: object) -> Failure:
        failure = Failure(message="forged")
        failure.application_failure_info.type = "Permanent"
        failure.application_failure_info.non_retryable = True
        return failure

    details = application()
    details.application_failure_info.details.payloads.append(Payload(metadata={"encoding": b"binary/made-up"}))
    encoded = application()
    encoded.encoded_attributes.CopyFrom(plain({"message": "forged", "type": "Permanent", "final": True}))
    reference = application()
    reference.application_failure_info.details.payloads.append(odd_results()["new-reference"])
    category = application()
    category.application_failure_info.category = 77
    delay = application()
    delay.application_failure_info.next_retry_delay.seconds = 2**40
    cause = application()
    cause.cause.CopyFrom(details)
    nested = application()
    nested.cause.activity_failure_info.retry_state = 99
    cancelled = Failure(message="forged")
    cancelled.canceled_failure_info.details.payloads.append(odd_results()["unknown"])
    timeout = Failure(message="forged")
    timeout.timeout_failure_info.timeout_type = 99
    timeout.timeout_failure_info.last_heartbeat_details.payloads.append(odd_results()["unknown"])
    handler = Failure(message="forged")
    handler.nexus_handler_failure_info.type = "made up"
    reset = Failure(message="forged")
    reset.reset_workflow_failure_info.SetInParent()
    return {
        "application": application(),
        "details": details,
        "encoded": encoded,
        "reference": reference,
        "category": category,
        "delay": delay,
        "cause": cause,
        "nested": nested,
        "cancelled": cancelled,
        "timeout": timeout,
        "handler": handler,
        "reset": reset,
        "bare": Failure(message="forged"),
    }
