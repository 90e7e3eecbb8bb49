"""Reserve a host for a new VM, or for what a VM is to have more, under the host's row lock (H-P6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import asyncpg

from model.capacity import Caps, Entitlement, find_shortages
from model.errors import Conflict, Unavailable
from model.placement import (
    HostView,
    Policy,
    Reason,
    Wish,
    describe_shortage,
    find_reason,
    rank,
    refuse_all,
    refuse_named,
)
from model.report import HostReport
from model.specification import NewVm, VmSpec
from model.versions import floor_for
from store.room import HELD, held_of

if TYPE_CHECKING:
    from store.database import Connection

_VIEW = f"""
select h.id, h.name, h.status, h.labels, h.worker_version, h.last_report_at, h.report, host_is_silent(h) as silent,
    f.min_worker_version, held.*, (select count(*) from vms n where n.host_id = h.id
        and n.created_at > now() - interval '5 minutes' and n.id is distinct from $2) as placed_lately,
    (select z.made_by || ' since ' || to_char(z.since, 'YYYY-MM-DD"T"HH24:MI:SS"Z"') from freezes z
        where z.creates and (z.host_id is null or z.host_id = h.id) order by z.since limit 1) as creates_frozen,
    (select count(*) from vms g where g.host_id = h.id and not g.deleted
        and g.project = $3 and g.anti_affinity_group = $4) as of_group
from hosts h cross join fleet f cross join lateral ({HELD} and v.id is distinct from $2) held
where case when $1::text is null then h.status <> 'forgotten' else h.id = $1 end order by h.name"""


@dataclass(frozen=True)
class Placing:
    """How hosts are ranked, and whether the caller may read of them (S-32)."""

    policy: Policy = field(default_factory=Policy)
    see_hosts: bool = True


@dataclass(frozen=True)
class Placed:
    """Where a VM's volumes are, None while none was placed; what they take there beside what is made of them."""

    host_id: str | None = None
    to_make_gib: int = 0


@dataclass(frozen=True)
class Asked:
    """A new VM as placement sees it: what it asks of a host, and whose it is."""

    wish: Wish
    project: str | None = None

    @staticmethod
    def by(new: NewVm, volumes: Placed) -> Asked:
        spec = new.spec
        wish = Wish(
            entitlement=entitlement_of(spec) + Entitlement(disk_gib=volumes.to_make_gib),
            hypervisor=spec.hypervisor,
            architecture=spec.image.architecture,
            host_labels=new.host_labels,
            group=new.anti_affinity_group,
            volumes_on=volumes.host_id,
        )
        return Asked(wish, new.project)


async def view_hosts(
    connection: Connection, host_id: str | None = None, *, without: str | None = None, asked: Asked | None = None
) -> tuple[HostView, ...]:
    """Read hosts as placement sees them, in one statement; `without` is a VM that does not count."""
    group = (asked.project, asked.wish.group) if asked else (None, None)
    return tuple(to_view(record) for record in await connection.fetch(_VIEW, host_id, without, *group))


def to_view(record: asyncpg.Record) -> HostView:
    """Make a HostView of a record of a host with its report and what is held."""
    report = HostReport.model_validate(record["report"]) if record["report"] else None
    told = {} if report is None else {name: getattr(report, name) for name in _TOLD}
    return HostView(
        id=record["id"],
        name=record["name"],
        status=record["status"],
        labels=record["labels"],
        silent=record["silent"],
        heard_at=record["last_report_at"],
        version=record["worker_version"],
        floor=floor_for(record["worker_version"], record["min_worker_version"]),
        **held_of(record),
        placed_lately=record["placed_lately"],
        of_group=record["of_group"],
        creates_frozen=record["creates_frozen"],
        **told,
    )


_TOLD = ("hypervisors", "architecture", "caps", "capacity")


async def reserve_host(connection: Connection, new: NewVm, placing: Placing, volumes: Placed) -> str:
    """Return the host that a new VM goes to; its row stays locked until the VM's is there. Raise why there is none."""
    asked = Asked.by(new, volumes)
    if new.host_id is not None:
        for host in await view_hosts(connection, new.host_id, asked=asked):
            refused = await _reserve(connection, host, asked, named=True)
            if refused is not None:
                raise refuse_named(*refused, see_hosts=placing.see_hosts)
            return host.id
        raise Conflict(f"there is no host {new.host_id}; choose another one")
    for apart in (True, False) if asked.wish.group else (False,):
        views = await view_hosts(connection, asked=asked)
        fitting = (view for view in views if find_reason(view, asked.wish) is None)
        for host in rank(fitting, asked.wish, placing.policy):
            if await _reserve(connection, host, asked, apart=apart) is None:
                return host.id
    reasons = [(view, find_reason(view, asked.wish)) for view in await view_hosts(connection, asked=asked)]
    found = [(view, reason) for view, reason in reasons if reason is not None]
    if len(found) < len(reasons):
        raise Unavailable("a host had room again this moment; try again")
    raise refuse_all(found, see_hosts=placing.see_hosts)


async def _reserve(
    connection: Connection, host: HostView, asked: Asked, *, named: bool = False, apart: bool = False
) -> tuple[HostView, Reason] | None:
    """Lock a host and look again; return why it does not take the VM any more, with its lock let go.

    Creates on a host without caps share its lock: there is nothing that they could take from each other but, where they
    are kept `apart`, the place of the first of their group.
    """
    alone = _has_caps(host) or apart
    mode = "for no key update" if alone else "for share"
    savepoint = connection.transaction()  # rolled back, it releases the lock, so that nobody ever holds two
    await savepoint.start()
    await connection.execute(f"select 1 from hosts where id = $1 {mode}", host.id)
    (now,) = await view_hosts(connection, host.id, asked=asked)
    reason = find_reason(now, asked.wish, named=named)
    if reason is None and apart and now.of_group > host.of_group:
        reason = Reason(filter="group", words=f"was given another VM of the group {asked.wish.group} this moment")
    if reason is None and (alone or not _has_caps(now)):
        await savepoint.commit()
        return None
    await savepoint.rollback()
    return (now, reason) if reason is not None else await _reserve(connection, now, asked, named=named, apart=apart)


def _has_caps(host: HostView) -> bool:
    return host.caps is not None and host.caps != Caps()


async def lock_host_of(connection: Connection, vm_id: str) -> None:
    """Lock the row of the host that a VM lives on: before the VM's own, as a host's report does."""
    await connection.execute(
        "select 1 from hosts h where h.id = (select host_id from vms where id = $1) for no key update", vm_id
    )


async def check_increase(connection: Connection, record: asyncpg.Record, wanted: VmSpec, *, see_hosts: bool) -> None:
    """Raise NoRoom where a VM's host would refuse what it is to have from now on; the host's row is locked (L-V8)."""
    before, after = entitlement_of(VmSpec.model_validate(record["spec"])), entitlement_of(wanted)
    if before | after == before:
        return
    for host in await view_hosts(connection, record["host_id"], without=record["id"]):
        short = find_shortages(host.caps, host.held, after, before) if host.caps else ()
        if short:
            words = describe_shortage(host, Wish(entitlement=after), short)
            raise refuse_named(host, Reason(filter="no room", words=words, shortages=short), see_hosts=see_hosts)


def entitlement_of(spec: VmSpec) -> Entitlement:
    """Say what a specification asks of its host."""
    return Entitlement(cpu_millicores=spec.cpu_millicores, memory_mib=spec.memory_mib, disk_gib=spec.disk_gib or 0)
