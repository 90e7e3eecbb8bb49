"""Read a VM's row as a pass sees it: one statement, one consistent answer, nobody's text (S-8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from model.firewall import Firewall, network_digest
from model.row import Desired, HostState, Row, Status
from model.versions import floor_for
from model.vm import Phase, PowerState, Quarantine
from model.volume import WantedVolume

if TYPE_CHECKING:
    from store.database import Connection

# The row may be older than what its host was ordered last (H-R1). Whoever restores a database starts its server: until
# a host was heard since, nobody knows.
BEHIND = "(f.behind or coalesce(h.last_report_at < pg_postmaster_start_time(), false))"
MAY_DESTROY = f"""exists (select 1 from hosts h cross join fleet f
    where h.id = v.host_id and not f.frozen and not h.frozen and not {BEHIND})"""

ROW = f"""
select v.id, v.project, v.host_id, v.power_state, v.deleted, v.generation, v.spec_generation, v.restart_generation,
    v.rebuild_generation, v.kept_by, v.undo_of, v.old_disk_until, v.applied_rebuild_generation,
    v.input_digest, v.disk_gib, v.stop_timeout_seconds, v.on_guest_poweroff, v.poweroff_taken, v.phase,
    v.pass_number, v.ended_pass, v.setbacks, v.setback, v.up_again_at,
    v.attempt_pass, v.create_attempts, v.refunds, v.step_refunds, v.failures, v.retry_at, v.resting,
    v.unreachable_since,
    v.observed_generation, v.first_ready_at, v.destroying, v.held, v.hold_stops,
    v.quarantine_kind, v.quarantine_since, v.destroy_at, v.quarantine_stopped_at,
    coalesce((v.spec -> 'host_certificate')::boolean, false) as host_certificate,
    v.spec -> 'firewall' as firewall, v.certificate_serial, v.run_id, v.claim_until, v.wake, now() as now,
    case when v.spec ? 'volumes' and v.spec -> 'volumes' <> '[]' then (
        select jsonb_agg(jsonb_build_object('volume_id', o.id, 'size_gib', o.size_gib, 'made', o.made_at is not null)
            order by w.place)
        from jsonb_array_elements_text(v.spec -> 'volumes') with ordinality as w (id, place)
        join volumes o on o.id = w.id and o.vm_id = v.id) end as volumes,
    h.instance_id, h.status as host_status, h.activity_names, h.worker_version,
    host_is_silent(h) as host_silent,
    (h.report #>> '{{capacity,storage_bytes_free}}')::bigint as storage_bytes_free,
    (h.report #>> '{{capacity,storage_bytes_total}}')::bigint as storage_bytes_total,
    f.id as fleet_id, f.epoch, f.min_worker_version, f.max_create_attempts,
    f.frozen or h.frozen as frozen, {BEHIND} as behind
from vms v join hosts h on h.id = v.host_id cross join fleet f
"""

# A pass owns the row while its number is the row's and it has not ended; it is `v.pass_number = $2` everywhere.
OWNED = "v.pass_number = $2 and v.ended_pass is distinct from $2"


async def read_row(connection: Connection, vm_id: str, pass_number: int) -> Row | None:
    """Return the row for the pass that asks, or None when there is none any more."""
    record = await connection.fetchrow(ROW + " where v.id = $1", vm_id)
    return None if record is None else to_row(record, pass_number)


def to_row(record: asyncpg.Record, pass_number: int | None = None) -> Row:
    """Make a Row of one record of `ROW`; without a pass that asks, it is nobody's."""
    owner = record["pass_number"] == pass_number and record["ended_pass"] != pass_number
    return Row(
        vm_id=record["id"],
        project=record["project"],
        fleet_id=record["fleet_id"],
        epoch=record["epoch"],
        min_worker_version=floor_for(record["worker_version"], record["min_worker_version"]),
        max_create_attempts=record["max_create_attempts"],
        frozen=record["frozen"],
        behind=record["behind"],
        host=HostState(
            host_id=record["host_id"],
            instance_id=record["instance_id"],
            status=record["host_status"],
            silent=record["host_silent"],
            activity_names=tuple(record["activity_names"]),
            storage_bytes_free=record["storage_bytes_free"],
            storage_bytes_total=record["storage_bytes_total"],
        ),
        desired=_desired(record),
        status=_status(record),
        wake=record["wake"],
        now=record["now"],
        owner=owner,
        claimed=record["run_id"] is not None,
    )


def _desired(record: asyncpg.Record) -> Desired:
    return Desired(
        power_state=PowerState(record["power_state"]),
        deleted=record["deleted"],
        generation=record["generation"],
        spec_generation=record["spec_generation"],
        restart_generation=record["restart_generation"],
        rebuild_generation=record["rebuild_generation"],
        kept_by=record["kept_by"],
        undo_of=record["undo_of"],
        old_disk_until=record["old_disk_until"],
        input_digest=record["input_digest"],
        disk_gib=record["disk_gib"],
        stop_timeout_seconds=record["stop_timeout_seconds"],
        on_guest_poweroff=record["on_guest_poweroff"],
        poweroff_taken=record["poweroff_taken"],
        host_certificate=record["host_certificate"],
        certificate_serial=record["certificate_serial"],
        volumes=tuple(WantedVolume.model_validate(each) for each in record["volumes"] or ()),
        network_digest=network_digest(Firewall.model_validate(record["firewall"] or {})),
    )


def _status(record: asyncpg.Record) -> Status:
    return Status(
        phase=Phase(record["phase"]),
        pass_number=record["pass_number"],
        attempt_pass=record["attempt_pass"],
        create_attempts=record["create_attempts"],
        refunds=record["refunds"],
        step_refunds=record["step_refunds"],
        setbacks=record["setbacks"],
        setback=record["setback"],
        up_again_at=record["up_again_at"],
        failures=record["failures"],
        retry_at=record["retry_at"],
        resting=record["resting"],
        unreachable_since=record["unreachable_since"],
        observed_generation=record["observed_generation"],
        applied_rebuild_generation=record["applied_rebuild_generation"],
        first_ready_at=record["first_ready_at"],
        destroying=record["destroying"],
        held=record["held"],
        hold_stops=record["hold_stops"],
        quarantine=to_quarantine(record),
    )


def to_quarantine(record: asyncpg.Record) -> Quarantine | None:
    """Make a Quarantine of a record with its columns; None when the VM is in none."""
    if record["quarantine_kind"] is None:
        return None
    return Quarantine(
        kind=record["quarantine_kind"],
        since=record["quarantine_since"],
        destroy_at=record["destroy_at"],
        stopped_at=record["quarantine_stopped_at"],
    )
