"""The fleet's database was restored: what has to be settled, and the end of the standstill (H-R1)."""

from __future__ import annotations

from fastapi import APIRouter

from api.adopting import take_by_hand
from api.documents.restore import RestoreDocument, RestoreItem, UnheardHost
from api.fleet_bodies import SettleBody
from api.gate import FleetOperator, FleetViewer, PartsOf
from api.parts import Parts
from api.route import GatedRoute
from model.ids import VmId
from model.restore import CHOICES
from store.restore import Item, begin_restore, finish_restore, list_restore
from store.restore_settle import settle

router = APIRouter(prefix="/v1/restore", tags=["restore"], route_class=GatedRoute)


@router.get("")
async def show(_caller: FleetViewer, parts: PartsOf) -> RestoreDocument:
    """Show whether the database is older than what hosts were ordered last, and what has to be settled then."""
    return await _document(parts)


@router.post("/begin")
async def begin(caller: FleetOperator, parts: PartsOf) -> RestoreDocument:
    """Declare the database restored, moved or new, where that cannot be seen: nothing is done until it is settled."""
    await begin_restore(parts.pool, caller.actor)
    return await _document(parts)


@router.post("/vms/{vm_id}")
async def settle_vm(vm_id: VmId, body: SettleBody, caller: FleetOperator, parts: PartsOf) -> RestoreItem:
    """Settle one VM. Nothing is sent to its host before the restore is finished."""

    async def take(host_id: str) -> None:
        becomes = "adopt" if body.choice == "adopt" else "quarantine"
        given = {"project": body.project, "name": body.name}
        await take_by_hand(parts, host_id, vm_id, becomes, caller.actor, **given, restoring=True)

    item = await settle(
        parts.pool, vm_id, body.choice, caller.actor, host=body.host, grace=parts.tombstone_grace, take=take
    )
    return _item(item).model_copy(update={"choice": body.choice})


@router.post("/finish")
async def finish(caller: FleetOperator, parts: PartsOf) -> RestoreDocument:
    """End the standstill once all hosts were heard and all VMs are settled: an epoch and every grace begin anew."""
    await finish_restore(parts.pool, caller.actor)
    return await _document(parts)


async def _document(parts: Parts) -> RestoreDocument:
    found = await list_restore(parts.pool)
    fleet = found.fleet
    return RestoreDocument(
        behind=fleet.behind,
        since=fleet.behind_since,
        why=fleet.behind_why,
        epoch=fleet.epoch,
        unheard=[UnheardHost(name=name, last_report_at=at) for name, at in found.unheard],
        items=[_item(item) for item in found.items],
    )


def _item(item: Item) -> RestoreItem:
    names = ("vm_id", "host_id", "host_name", "project", "name", "kind", "placed_on", "choice")
    return RestoreItem(
        **{name: getattr(item, name) for name in names},
        differs=list(item.differs),
        power_state=item.told.observed.power_state if item.told else None,
        choices=list(CHOICES[item.kind]),
    )
