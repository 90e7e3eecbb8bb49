"""A store that is behind its hosts, as after a restore: seen, listed, settled by a person, and ended (H-R1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from model.report import HostReport
from store.fleet import Fleet, mark_behind, read_fleet

if TYPE_CHECKING:
    from store.database import Connection


async def compare_with_host(connection: Connection, host: asyncpg.Record, report: HostReport) -> Fleet:
    """Mark the store as behind where the host has seen an epoch or a pass that it has not reached; return the fleet.

    No host is ever ahead of the store that its orders come from: a pass is durable there before it orders anything.
    """
    fleet = await read_fleet(connection)
    last_pass: int = await connection.fetchval("select last_value from pass")
    if fleet.behind or (report.epoch <= fleet.epoch and report.pass_number <= last_pass):
        return fleet
    await mark_behind(
        connection,
        f"the host {host['name']} has seen pass {report.pass_number} of epoch {report.epoch}, the store has only "
        f"reached pass {last_pass} of epoch {fleet.epoch}",
    )
    return await read_fleet(connection)


async def keep_told(connection: Connection, host_id: str, report: HostReport) -> bool:
    """Keep what a host tells that it holds while the store is behind; say whether it is yet to tell all of it."""
    if report.whole:
        await connection.execute("delete from restore_told where host_id = $1", host_id)
    await connection.executemany(
        """insert into restore_told (host_id, vm_id, told) values ($1, $2, $3)
        on conflict (host_id, vm_id) do update set told = excluded.told, at = now()""",
        [(host_id, vm.vm_id, vm.model_dump(mode="json")) for vm in report.vms],
    )
    listed: bool = await connection.fetchval(
        "select coalesce(h.last_whole_at >= f.behind_since, false) from hosts h cross join fleet f where h.id = $1",
        host_id,
    )
    return not listed
