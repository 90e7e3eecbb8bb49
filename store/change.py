"""What every accepted change of a VM has in common: the locked row, the wake, the operation, the audit entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg

from model.decide import pass_type
from model.errors import Conflict, GenerationMoved, Gone
from model.generations import Wish
from model.passes import PassType
from model.specification import VmSpec
from model.vm import PowerState
from model.waiting import Waiting
from store.audit import Actor, write_audit
from store.deadlines import EXPECT
from store.operation import OperationKind, open_operation
from store.vm import missing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from store.database import Connection

# A reason to look (design: Wake). It belongs to no part of the row.
WAKE = f"wake = wake + 1, due_at = now(), {EXPECT}"

# Take the row from whatever pass owns it: a pass number that no run has. What a run still writes is refused; it
# claims anew and looks. So a count that a user cleared is not written back by a pass that read it before.
DISOWN = """pass_number = nextval('pass'), run_id = null, claim_until = null, step = 0, status_detail = null,
    waiting_for = null, waiting_since = null"""
# A user's start: the next pass takes over what befell the guest before, without counting it (L-V4). A VM that was not
# made yet has nothing to be taken over.
BEGIN_ANEW = "setbacks = case when first_ready_at is null then 0 end, up_again_at = null"
CLEAR = f"""{DISOWN}, {BEGIN_ANEW}, create_attempts = 0, attempt_pass = null, given_back_pass = null, refunds = 0,
    step_refunds = '{{}}', failures = 0, retry_at = null, resting = false, unreachable_since = null,
    last_error = null"""


def wake_for(work_time: str) -> str:
    """Wake a row for work that somebody asked for now: its deadline begins anew (L-G13)."""
    return f"wake = wake + 1, due_at = now(), expected_by = now() + {work_time}"


@dataclass(frozen=True)
class Accepted:
    """An accepted request: which pass to poke, and the operation, if it changed anything.

    `at_next_boot` names what of it the guest takes only then.
    """

    vm_id: str
    pass_type: PassType
    operation_id: str | None
    changed: bool
    at_next_boot: tuple[str, ...] = ()


async def lock_vm(connection: Connection, project: str | None, vm_id: str, generation: int | None) -> asyncpg.Record:
    """Lock a VM's row and return it; raise Gone or NotFound without one, GenerationMoved for another generation."""
    record = await connection.fetchrow(
        "select * from vms where id = $1 and ($2::text is null or project = $2) for update", vm_id, project
    )
    if record is None:
        raise await missing(connection, project, vm_id)
    if generation is not None and generation != record["generation"]:
        raise GenerationMoved(
            f"the VM is at generation {record['generation']}, the request is for {generation}: read it again"
        )
    return record


def refuse_unless_changeable(record: asyncpg.Record) -> None:
    """Raise what keeps the VM from being changed: a teardown, a quarantine, a hold (L-G12)."""
    if record["destroying"]:
        raise Gone(f"the VM {record['id']} is being destroyed")
    if record["deleted"]:
        raise Conflict(
            f"the VM {record['id']} was deleted and will be destroyed at {record['destroy_at']:%Y-%m-%dT%H:%M:%SZ}; "
            "undelete it first"
        )
    refuse_if_held(record)


def refuse_if_held(record: asyncpg.Record) -> None:
    """Raise Conflict, with its name, while an operation holds the VM (L-G12)."""
    if record["held"]:
        raise Conflict(f"the VM {record['id']} is held by {record['held_by'] or 'another operation'}; wait for its end")


def refuse_if_protected(record: asyncpg.Record, what: str) -> None:
    """Raise Conflict while termination protection is on; `what` was asked for (L-R9)."""
    if record["termination_protection"]:
        raise Conflict(
            f"the VM {record['id']} has termination_protection on and is not {what}; clear it first "
            f"(`hostler vm unprotect {record['name']}`, or PATCH termination_protection to false)"
        )


async def refuse_if_unknown(connection: Connection, host_id: str, step: str, what: str) -> None:
    """Raise Conflict where a host's worker has no such step: a pass would begin `what`, and go no further (H-D4)."""
    name = await connection.fetchval(
        "select name from hosts where id = $1 and worker_version is not null and not $2 = any(activity_names)",
        host_id,
        step,
    )
    if name is not None:
        raise Conflict(f"the worker of the host {name} is too old for {what}: upgrade Hostler there, then ask again")


async def refuse_unless_stopped(connection: Connection, record: asyncpg.Record) -> None:
    """Raise Conflict unless the guest was seen stopped last, and is wanted so (L-V8).

    A create that rests, or was refused, has no guest. Of one that goes on nobody can say what its guest was started
    with.
    """
    if record["first_ready_at"] is None and (record["resting"] or record["waiting_for"] == Waiting.REFUSED):
        return
    wanted = "CPU and memory are changed while the guest is stopped"
    if record["power_state"] != PowerState.STOPPED:
        raise Conflict(f"{wanted}; this one is wanted {record['power_state']}: stop it first")
    silent = await connection.fetchval("select host_is_silent(h) from hosts h where id = $1", record["host_id"])
    seen = record["observed_power_state"] if record["observed_instance"] and not record["unreadable"] else None
    if silent or seen is None:
        why = "its host is silent" if silent else "its host has not told"
        raise Conflict(f"{wanted}; whether this one is nobody can tell now: {why}. Try again when the host answers")
    if seen != PowerState.STOPPED:
        raise Conflict(f"{wanted}; this one is {seen} still: wait until it is stopped")


def wish_of(record: asyncpg.Record) -> Wish:
    """Read the desired state out of a VM's row."""
    return Wish(
        power_state=PowerState(record["power_state"]),
        labels=record["labels"],
        termination_protection=record["termination_protection"],
        spec=VmSpec.model_validate(record["spec"]),
        generation=record["generation"],
        spec_generation=record["spec_generation"],
        restart_generation=record["restart_generation"],
        rebuild_generation=record["rebuild_generation"],
    )


def unchanged(record: asyncpg.Record) -> Accepted:
    """Accept a request that asks for what is wanted already (L-N1)."""
    return Accepted(record["id"], pass_type_of(record), None, False)


def pass_type_of(record: asyncpg.Record) -> PassType:
    """Say which pass a VM's row calls for."""
    return pass_type(deleted=record["deleted"], created=record["first_ready_at"] is not None)


@dataclass(frozen=True)
class WokenVm:
    """A VM to look at now, and the pass that its row calls for."""

    vm_id: str
    pass_type: PassType


async def find_woken(connection: Connection, vm_ids: Iterable[str]) -> tuple[WokenVm, ...]:
    """Say which pass each of these VMs calls for."""
    records = await connection.fetch(
        "select id, deleted, first_ready_at from vms where id = any($1) order by id", list(vm_ids)
    )
    return tuple(WokenVm(record["id"], pass_type_of(record)) for record in records)


async def accept(
    connection: Connection,
    actor: Actor,
    record: asyncpg.Record,
    kind: OperationKind,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> Accepted:
    """Write operation and audit entry of a change; `record` is the row as it is after it."""
    operation_id = await open_operation(
        connection, vm_id=record["id"], project=record["project"], kind=kind, generation=record["generation"]
    )
    await write_audit(
        connection,
        actor,
        project=record["project"],
        action=f"vm.{kind}",
        subject=f"vm/{record['id']}",
        before=before,
        after=after,
    )
    return Accepted(record["id"], pass_type_of(record), operation_id, True)
