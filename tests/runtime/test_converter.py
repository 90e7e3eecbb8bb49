"""Values through the converter: what fits comes back equal, what does not is a payload error (O13, O11, E7)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import ActivitySerializationContext
from temporalio.exceptions import ApplicationError

from activities.image import ImageActivities
from activities.passes import PassActivities
from activities.vm import VmActivities
from model.passes import ClaimRequest, Finish, Finished, GiveBack, Outcome, PassRef, PassStart, StepNote, TakeOver
from model.record import CreateProgress, HostOrder, Record, View
from model.report import HostReport
from model.row import Row
from model.vm import VmInput
from runtime.converter import data_converter
from runtime.failures import PAYLOAD_ERROR
from tests.runtime.fleet import a_view, an_order, control_seal, host_seal
from tests.runtime.odd import odd_failures
from workflows.create import CreateVm
from workflows.life import PassEnd

CLEAR = data_converter(None)
PLAIN: list[type[Any]] = [PassStart, ClaimRequest, PassRef, GiveBack, StepNote, Finish, TakeOver]
MODELS: list[type[Any]] = [
    *PLAIN,
    Finished,
    PassEnd,
    Outcome,
    HostOrder,
    View,
    Record,
    Row,
    VmInput,
    HostReport,
]


def context(**more: Any) -> ActivitySerializationContext:
    values: dict[str, Any] = {
        "namespace": "n",
        "activity_id": None,
        "activity_type": "find_vm",
        "activity_task_queue": "host/a/i1",
        "workflow_id": "vm/1",
        "workflow_type": "CreateVm",
        "is_local": False,
    }
    return ActivitySerializationContext(**{**values, **more})


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_case_o13_models_come_back_equal(model: type[Any], data: st.DataObject) -> None:
    """O13: enums, zoned datetimes, empty and large values."""
    value = data.draw(st.from_type(model)) if model in PLAIN else _example(model, data)
    payloads = CLEAR.payload_converter.to_payloads([value])
    assert CLEAR.payload_converter.from_payloads(payloads, [model]) == [value]


def _example(model: type[Any], data: st.DataObject) -> Any:
    text = data.draw(st.text(max_size=50).map(lambda each: each.encode(errors="replace").decode()))
    now = datetime(2026, 1, 1, 1, 2, 3, 456789, UTC)
    examples: dict[Any, Any] = {
        HostOrder: an_order(project="p", disk_gib=data.draw(st.one_of(st.none(), st.integers(0, 2**40)))),
        View: a_view(guest_ended=text),
        Record: Record(input_digest=text, quarantined_at=now, create=CreateProgress(pass_number=2**60)),
    }
    if model in examples:
        return examples[model]
    return model.model_validate(_least(model, text, now))


def _least(model: type[Any], text: str, now: datetime) -> dict[str, Any]:
    desired = {
        "power_state": "running",
        "deleted": False,
        "generation": 1,
        "spec_generation": 1,
        "restart_generation": 0,
        "rebuild_generation": 0,
        "input_digest": text,
        "disk_gib": None,
        "stop_timeout_seconds": 90,
    }
    host = {"host_id": "a", "instance_id": None, "status": "up", "silent": False}
    status = {"phase": "ready", "pass_number": 1, "retry_at": now}
    image = {"owner": text, "rootfs": {"url": text, "sha256": "0" * 64}}
    values: dict[str, dict[str, Any]] = {
        "Finished": {"ended": False, "row": None},
        "PassEnd": {"result": "waiting", "pass_number": 2**60, "wait": timedelta(days=30, microseconds=1)},
        "Outcome": {"vm_id": "v", "pass_number": 1, "step": 1, "phase": "ready", "error": text, "view": a_view()},
        "Row": {
            "vm_id": "v",
            "project": "p",
            "fleet_id": "f",
            "epoch": 1,
            "host": host,
            "desired": desired,
            "status": status,
            "wake": 1,
            "now": now,
        },
        "VmInput": {
            "vm_id": "v",
            "project": "p",
            "digest": text,
            "name": text,
            "mac": "m",
            "image": image,
            "cpu_millicores": 1,
            "memory_mib": 1,
            "disk_gib": None,
            "created_at": now,
            "metadata": {text: text},
        },
        "HostReport": {
            "number": 1,
            "instance_id": "i",
            "machine_id": "m",
            "boot_id": "b",
            "worker_version": "1.0",
            "clock": now,
            "whole": True,
        },
    }
    return values[model.__name__]


def test_case_o13_every_type_that_travels_is_tried() -> None:
    """Case O13: what a workflow or an activity takes or gives is one of those above."""
    used: set[Any] = {*get_type_hints(CreateVm.run).values()}
    for owner in (PassActivities, VmActivities, ImageActivities):
        for name, method in vars(owner).items():
            if not name.startswith("_"):
                for hint in get_type_hints(method).values():
                    used |= set(get_args(hint)) or {hint}
    assert used - {NoneType, bool} <= {*MODELS}


def test_case_o13_an_older_payload_still_fits() -> None:
    """O13: fields of a newer release are ignored, missing ones take their defaults."""
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b'{"vm_id":"v","since_later":1}')
    assert CLEAR.payload_converter.from_payloads([payload], [PassStart]) == [PassStart(vm_id="v")]


@given(
    st.binary(max_size=60), st.binary(max_size=60), st.sampled_from([b"json/plain", b"binary/null", b"binary/plain"])
)
@settings(deadline=None)
def test_any_payload_is_a_value_or_a_payload_error(encoding: bytes, content: bytes, known: bytes) -> None:
    """E7: no other exception leaves the converter, and its details hold nothing of the payload."""
    for each in (encoding, known, b"json/protobuf", b"binary/protobuf"):
        payload = Payload(metadata={"encoding": each, "messageType": b"temporal.api.common.v1.Payload"}, data=content)
        refused: ApplicationError | None = None
        try:
            CLEAR.payload_converter.from_payloads([payload], [PassStart])
        except ApplicationError as error:
            refused = error
        if refused is not None:
            assert (refused.type, refused.__cause__, refused.__context__) == (PAYLOAD_ERROR, None, None)


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_any_failure_is_read(content: bytes) -> None:
    """E7."""
    try:
        failure = Failure.FromString(content)
    except Exception:
        return
    for converter in (CLEAR, data_converter(control_seal()).with_context(context())):
        assert isinstance(converter.failure_converter.from_failure(failure, converter.payload_converter), Exception)


async def test_case_o11_the_largest_order_and_view_stay_small() -> None:
    """O11: every sealed payload is below 128 KiB."""
    sealed = data_converter(control_seal()).with_context(context())
    order = an_order(project="p" * 63, vm_id="v" * 63, min_worker_version="1" * 64)
    [payload] = await sealed.encode([order])
    assert payload.ByteSize() < 8 * 1024
    text = "é" * 2048
    view = View(record=Record(input_digest="0" * 64), observed=a_view(guest_ended=text).observed, unreadable=text)
    [answer] = await data_converter(host_seal("a")).with_context(context()).encode([view])
    assert answer.ByteSize() < 128 * 1024


@pytest.mark.parametrize(
    "changed",
    [
        {"namespace": "m"},
        {"workflow_id": "vm/2"},
        {"workflow_id": None},
        {"activity_type": "ensure_booted"},
        {"activity_task_queue": "host/a/i2"},
        {"activity_task_queue": "host/a/i1/bulk"},
        {"activity_task_queue": "host/b/i1"},
        {"activity_task_queue": "host/"},
        {"activity_task_queue": "control"},
        {"activity_task_queue": None},
    ],
    ids=str,
)
async def test_every_part_of_the_label_is_bound(changed: dict[str, Any]) -> None:
    """S-3: namespace, workflow, activity, queue; and a reader in a wrong place gets a payload error."""
    [payload] = await data_converter(control_seal()).with_context(context()).encode([an_order()])
    reader = data_converter(host_seal("a"))
    assert await reader.with_context(context()).decode([payload], [HostOrder]) == [an_order()]
    with pytest.raises(ApplicationError) as refused:
        await reader.with_context(context(**changed)).decode([payload], [HostOrder])
    assert refused.value.type == PAYLOAD_ERROR


async def test_a_host_says_nothing_outside_its_steps() -> None:
    """S-3: a host neither sends nor takes anything in clear."""
    reader = data_converter(host_seal("a"))
    with pytest.raises(ApplicationError):
        await reader.decode([Payload(metadata={"encoding": b"json/plain"}, data=b"1")])


async def test_no_side_takes_what_it_sealed_itself() -> None:
    """S-3: an order is not its own answer."""
    control = data_converter(control_seal()).with_context(context())
    [order] = await control.encode([an_order()])
    with pytest.raises(ApplicationError):
        await control.decode([order], [HostOrder])


async def test_another_fleet_s_seal_does_not_open() -> None:
    """S-3: the fleet is bound in, whatever the key."""
    seal = control_seal()
    seal.fleet_id = "fleet-2"
    [order] = await data_converter(seal).with_context(context()).encode([an_order()])
    with pytest.raises(ApplicationError):
        await data_converter(host_seal("a")).with_context(context()).decode([order], [HostOrder])


@pytest.mark.parametrize("shape", sorted(odd_failures()))
def test_an_odd_failure_is_read_in_clear_and_sealed_contexts(shape: str) -> None:
    """E7: numbers that no enum has, spans that no clock has, payloads of unknown encoding."""
    for converter in (CLEAR, data_converter(control_seal()), data_converter(control_seal()).with_context(context())):
        read = converter.failure_converter.from_failure(odd_failures()[shape], converter.payload_converter)
        assert isinstance(read, Exception)
