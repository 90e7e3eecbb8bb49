"""Read VMs for users and hosts. Every read for a project names the project (S-31)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import asyncpg
import pydantic

from model.decide import pass_type
from model.decide.setback import FAILING
from model.errors import Gone, NotFound
from model.passes import PassType
from model.specification import VmSpec
from model.versions import describe_floor
from model.vm import LastExit, Phase, PowerState, Quarantine
from store.database import reading
from store.deadlines import OVERDUE
from store.fleet import BELOW_FLOOR
from store.rows import to_quarantine

if TYPE_CHECKING:
    from store.database import Connection, Pool

GONE_FOR = "interval '30 days'"
SOON = "interval '1 hour'"
"""Before the end of a grace that is longer than that, people are told of it."""
GONE_HOW = "case when forgotten is null then 'destroyed' else 'given up with what was on its host' end"

# The phase that a user sees. What nobody can look at is unknown, not changed: it is computed here, never written
# (H-S10). A deletion shows from the moment it is accepted, an undelete likewise.
# The worker of a VM's host is below the fleet's floor: nobody there looks, whatever the last pass wrote (H-S5).
FLOORED = f"(not v.deleted and not host_is_silent(h) and {BELOW_FLOOR})"
SHOWN_PHASE = f"""case
    when v.destroying then 'destroying'
    when v.deleted then 'quarantined'
    when h.last_report_at is not null and host_is_silent(h) then 'unknown'
    when {FLOORED} then 'failed'
    when v.phase in ('quarantined', 'destroying')
        then case when v.first_ready_at is null then 'creating' else 'ready' end
    else v.phase end"""
# Work for a silent host waits for it, whatever a pass said before (case L5).
_AWAY = """case when v.due_at is not null and v.waiting_for is distinct from 'grace' and h.last_report_at is not null
    and host_is_silent(h) then 'waiting for its host, silent since '
    || to_char(h.last_report_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') end"""
# No run has taken the row since it was made, deleted, brought back or tried again (case C5).
SHOWN_DETAIL = f"""coalesce({_AWAY}, v.status_detail,
    case when v.run_id is null and v.due_at is not null then 'accepted, not started' end)"""
SHOWN_POWER = f"""case when host_is_silent(h) or v.unreadable is not null or {FLOORED} then null
    else v.observed_power_state end"""

_SAME = (
    *("id", "project", "name", "host_id", "labels", "mac", "input_digest", "fingerprint", "deleted", "destroying"),
    *(
        "termination_protection",
        "host_labels",
        "anti_affinity_group",
        "held",
        "held_by",
        "held_since",
        "expected_by",
        "generation",
        "spec_generation",
        "restart_generation",
        "rebuild_generation",
    ),
    *("observed_generation", "observed_at", "last_error", "resting", "failures", "retry_at"),
    *("setbacks", "up_again_at"),
    *(
        "create_attempts",
        "restart_count",
        "first_ready_at",
        "ssh_host_key",
        "emulated",
        "unreadable",
        "pass_number",
        "run_id",
    ),
    *("told_project", "old_disk_until", "wake", "due_at", "created_at", "updated_at", "waiting_for", "waiting_since"),
)
_SELECT = f"""
select {", ".join(f"v.{name}" for name in _SAME)}, v.spec, v.power_state, v.phase, v.last_exit,
    v.observed_power_state, v.quarantine_kind, v.quarantine_since, v.destroy_at, v.quarantine_stopped_at,
    v.certificate_serial, c.valid_until as certificate_valid_until,
    case when v.spec ? 'volumes' and v.spec -> 'volumes' <> '[]' then (
        select jsonb_agg(jsonb_build_object('id', o.id, 'name', o.name, 'size_gib', o.size_gib) order by w.place)
        from jsonb_array_elements_text(v.spec -> 'volumes') with ordinality as w (id, place)
        join volumes o on o.id = w.id and o.vm_id = v.id) end as volumes,
    host(v.address) as address, host(v.address_refused) as address_refused, h.name as host_name,
    case when {FLOORED} then f.min_worker_version end as floor, h.worker_version,
    h.last_report_at as host_last_report_at, host_is_silent(h) as host_silent, f.frozen or h.frozen as frozen, f.behind,
    {SHOWN_PHASE} as shown_phase, {SHOWN_POWER} as shown_power,
    {SHOWN_DETAIL} as status_detail, {OVERDUE} as overdue, now() as now
from vms v join hosts h on h.id = v.host_id cross join fleet f
    left join host_certificates c on c.serial = v.certificate_serial
"""
_COMPUTED = (
    *("status_detail", "overdue", "certificate_serial", "certificate_valid_until"),
    *("host_name", "host_silent", "host_last_report_at", "frozen", "behind", "address", "address_refused", "now"),
)


@dataclass(frozen=True)
class StoredVm:
    """A VM as users may read it. `phase` and `power_state` are what is shown now; `last_…` what was seen last.

    `told_project`: of one that vanished, whose it is by its host's record, which nobody has confirmed (S-5).
    `below_floor`: why nobody looks at it, while the worker of its host is too old (H-S5).
    """

    id: str
    project: str
    name: str
    host_id: str
    host_name: str
    host_silent: bool
    host_last_report_at: datetime | None
    spec: VmSpec
    labels: dict[str, str]
    host_labels: dict[str, str]
    anti_affinity_group: str | None
    mac: str
    volumes: tuple[dict[str, Any], ...]
    input_digest: str
    fingerprint: str
    desired_power_state: PowerState
    deleted: bool
    destroying: bool
    termination_protection: bool
    held: bool
    held_by: str | None
    held_since: datetime | None
    expected_by: datetime | None
    overdue: bool
    frozen: bool
    behind: bool
    generation: int
    spec_generation: int
    restart_generation: int
    rebuild_generation: int
    old_disk_until: datetime | None
    observed_generation: int
    quarantine: Quarantine | None
    told_project: str | None
    phase: Phase
    last_phase: Phase
    power_state: PowerState | None
    last_power_state: PowerState | None
    observed_at: datetime | None
    status_detail: str | None
    last_error: str | None
    last_exit: LastExit | None
    resting: bool
    failures: int
    retry_at: datetime | None
    below_floor: str | None
    setbacks: int | None
    up_again_at: datetime | None
    create_attempts: int
    restart_count: int
    first_ready_at: datetime | None
    address: str | None
    address_refused: str | None
    ssh_host_key: str | None
    emulated: bool | None
    certificate_serial: int | None
    certificate_valid_until: datetime | None
    unreadable: str | None
    pass_number: int
    run_id: str | None
    waiting_for: str | None
    waiting_since: datetime | None
    wake: int
    due_at: datetime | None
    created_at: datetime
    updated_at: datetime
    now: datetime

    @property
    def pass_type(self) -> PassType:
        """The type of pass that the row calls for."""
        return pass_type(deleted=self.deleted, created=self.first_ready_at is not None)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do now: no pass is due but for a kept disk's end, or it waits in quarantine."""
        if self.quarantine is not None and not self.destroying:
            # Noted as stopped a moment before what was seen is stored.
            return self.quarantine.stopped_at is not None and self.last_power_state in (None, PowerState.STOPPED)
        return self.due_at is None or self.due_at == self.old_disk_until


@dataclass(frozen=True)
class VmFilter:
    """What a list is narrowed to. `label` is (key, value); `image` a reference."""

    host_id: str | None = None
    phase: Phase | None = None
    power_state: PowerState | None = None
    label: tuple[str, str] | None = None
    image: str | None = None
    name: str | None = None
    overdue: bool | None = None


@dataclass(frozen=True)
class SealedInput:
    """What a VM's host may fetch: the specification, and the secrets as they are sealed."""

    vm_id: str
    project: str
    name: str
    mac: str
    digest: str
    spec: VmSpec
    secrets: bytes
    created_at: datetime


class VmStore:
    """The VMs, read."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def get(self, project: str | None, vm_id: str) -> StoredVm:
        """Return one VM; raise Gone for one that was destroyed lately, NotFound else. project None: any project's."""
        async with reading(self._pool) as connection:
            record = await connection.fetchrow(
                _SELECT + " where v.id = $1 and ($2::text is null or v.project = $2)", vm_id, project
            )
            if record is None:
                raise await missing(connection, project, vm_id)
        return to_stored_vm(record)

    async def list(
        self, project: str | None, narrowed: VmFilter | None = None, *, limit: int = 100, after: str | None = None
    ) -> tuple[StoredVm, ...]:
        """List VMs by id, from the one above the id `after` on, whether that one still exists or not (A-5)."""
        wanted = narrowed or VmFilter()
        label = {wanted.label[0]: wanted.label[1]} if wanted.label else None
        async with reading(self._pool) as connection:
            records = await connection.fetch(
                f"""{_SELECT} where ($1::text is null or v.project = $1) and ($2::text is null or v.id > $2)
                    and ($3::text is null or v.host_id = $3) and ($4::text is null or v.name = $4)
                    and ($5::jsonb is null or v.labels @> $5)
                    and ($6::text is null or v.spec #>> '{{image,reference}}' = $6)
                    and ($7::text is null or {SHOWN_PHASE} = $7) and ($8::text is null or {SHOWN_POWER} = $8)
                    and ($9::boolean is null or {OVERDUE} = $9)
                order by v.id limit $10""",
                project,
                after,
                wanted.host_id,
                wanted.name,
                label,
                wanted.image,
                wanted.phase,
                wanted.power_state,
                wanted.overdue,
                limit,
            )
        return tuple(to_stored_vm(record) for record in records)

    async def list_troubled(self, project: str | None, *, limit: int = 500) -> tuple[StoredVm, ...]:
        """List VMs that want a person's eye: failed, overdue, ending again and again, unreadable, or soon destroyed."""
        async with reading(self._pool) as connection:
            records = await connection.fetch(
                f"""{_SELECT} where ($1::text is null or v.project = $1) and ({SHOWN_PHASE} = 'failed' or {OVERDUE}
                    or v.setbacks >= {FAILING} or v.unreadable is not null
                    or (v.deleted and v.destroy_at < now() + {SOON} and v.quarantine_grace > {SOON}))
                order by v.id limit $2""",
                project,
                limit,
            )
        return tuple(to_stored_vm(record) for record in records)

    async def count_phases(self) -> dict[str, int]:
        """Count the fleet's VMs by the phase that is shown."""
        async with reading(self._pool) as connection:
            records = await connection.fetch(
                f"""select {SHOWN_PHASE} as phase, count(*) from vms v join hosts h on h.id = v.host_id
                cross join fleet f group by 1"""
            )
        return {record["phase"]: record["count"] for record in records}

    async def input_for_host(self, host_id: str, vm_id: str) -> SealedInput:
        """Return a VM's input for the host that its row names; raise NotFound for any other (S-5)."""
        async with reading(self._pool) as connection:
            record = await connection.fetchrow(
                """select id, project, name, mac, input_digest, spec, secrets, created_at from vms
                where id = $1 and host_id = $2""",
                vm_id,
                host_id,
            )
        if record is None:
            raise NotFound(f"this host has no VM {vm_id}")
        return SealedInput(
            vm_id=record["id"],
            project=record["project"],
            name=record["name"],
            mac=record["mac"],
            digest=record["input_digest"],
            spec=VmSpec.model_validate(record["spec"]),
            secrets=record["secrets"],
            created_at=record["created_at"],
        )


async def missing(connection: Connection, project: str | None, vm_id: str) -> NotFound | Gone:
    """Say why a VM is not there: gone within 30 days, or never heard of. Another project's is never heard of."""
    gone = await connection.fetchrow(
        f"""select {GONE_HOW} as how, at from gone where vm_id = $1 and ($2::text is null or project = $2)
        and at > now() - {GONE_FOR}""",
        vm_id,
        project,
    )
    if gone is not None:
        return Gone(f"the VM {vm_id} was {gone['how']} at {gone['at']:%Y-%m-%dT%H:%M:%SZ}")
    return NotFound(f"there is no VM {vm_id}")


def to_stored_vm(record: asyncpg.Record) -> StoredVm:
    """Make a StoredVm of one record of the list's columns."""
    plain: dict[str, Any] = {name: record[name] for name in (*_SAME, *_COMPUTED)}
    return StoredVm(
        **plain,
        spec=VmSpec.model_validate(record["spec"]),
        desired_power_state=PowerState(record["power_state"]),
        quarantine=to_quarantine(record),
        phase=Phase(record["shown_phase"]),
        last_phase=Phase(record["phase"]),
        power_state=_power(record["shown_power"]),
        last_power_state=_power(record["observed_power_state"]),
        last_exit=_read_last_exit(record["last_exit"]),
        below_floor=describe_floor(record["worker_version"], record["floor"]) if record["floor"] else None,
        volumes=tuple(record["volumes"] or ()),
    )


def _power(value: str | None) -> PowerState | None:
    return None if value is None else PowerState(value)


def _read_last_exit(stored: dict[str, Any] | None) -> LastExit | None:
    """Read what a host told of an exit; what is none shows as nothing, and keeps no VM from being listed (case I9)."""
    if stored is None:
        return None
    try:
        return LastExit.model_validate(stored)
    except pydantic.ValidationError:
        return None
