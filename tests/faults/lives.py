"""A VM's life in pieces: what a user, a guest or time does, and the level at which that piece is over.

Each begins where the one before it has ended, and the last one ends with nothing left.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.faults.fleet import Fleet, settled
from tests.faults.machines import ToldMachine

Row = dict[str, Any]
Act = Callable[[Fleet, str], Awaitable[Any]]


@dataclass(frozen=True)
class Life:
    """`act` begins it, `over` says from a settled row that it has come to its end.

    `prepare` comes before it, without a fault. `exact`: how often the machine is made to do each thing is as in the
    plain run. A create may begin anew, and so may a rebuild (L-C1, L-V10).
    """

    name: str
    act: Act
    over: Callable[[Row | None], bool]
    prepare: Act | None = None
    exact: bool = True


def _patch(**body: Any) -> Callable[[Fleet, str], Awaitable[Any]]:
    return lambda fleet, vm_id: fleet.call("PATCH", f"/v1/vms/{vm_id}", json=body)


def _post(verb: str, **body: Any) -> Callable[[Fleet, str], Awaitable[Any]]:
    json = body if verb == "rebuild" else None
    return lambda fleet, vm_id: fleet.call("POST", f"/v1/vms/{vm_id}/{verb}", json=json)


async def _end_keeping(fleet: Fleet, vm_id: str) -> None:
    """Let the time of the kept disk be over."""
    await fleet.pool.execute(
        "update vms set old_disk_until = now(), wake = wake + 1, due_at = now() where id = $1", vm_id
    )
    await fleet.poke(vm_id)


def _create(image: Any, **more: Any) -> Act:
    def create(fleet: Fleet, vm_id: str) -> Awaitable[Any]:
        body = {"name": f"vm-{vm_id}", "image": image, "disk_gib": 1, "host_certificate": True}
        return fleet.call("PUT", f"/v1/vms/{vm_id}", json={**body, **more})

    return create


def _volume(vm_id: str) -> str:
    return f"v-{vm_id}"


async def _make_volume(fleet: Fleet, vm_id: str) -> None:
    await fleet.call("POST", "/v1/volumes", json={"name": _volume(vm_id), "size_gib": 1})


def _create_with_volume(image: Any, **more: Any) -> Act:
    async def create(fleet: Fleet, vm_id: str) -> None:
        await _create(image, volumes=[_volume(vm_id)], **more)(fleet, vm_id)

    return create


def _change_volumes(method: str) -> Act:
    return lambda fleet, vm_id: fleet.call(method, f"/v1/vms/{vm_id}/volumes/{_volume(vm_id)}")


async def _grow_volume(fleet: Fleet, vm_id: str) -> None:
    await fleet.call("PATCH", f"/v1/volumes/{_volume(vm_id)}", json={"size_gib": 2})


def _delete(query: str) -> Callable[[Fleet, str], Awaitable[Any]]:
    return lambda fleet, vm_id: fleet.call("DELETE", f"/v1/vms/{vm_id}?{query}")


async def _crash(fleet: Fleet, vm_id: str) -> None:
    fleet.machine.crash(vm_id)


async def _crash_before(fleet: Fleet, vm_id: str) -> None:
    """Have the guest die, and be back."""
    await _crash(fleet, vm_id)
    await fleet.until(vm_id, lambda row: row is not None and _is("running")(row) and bool(row["setbacks"]))


async def _crash_for_good(fleet: Fleet, vm_id: str) -> None:
    """End the guest and have every boot refused, until that shows."""
    assert isinstance(fleet.machine, ToldMachine)
    fleet.machine.simulation.control(vm_id, refuse_boots=1 << 30)
    await _crash(fleet, vm_id)
    await fleet.until(vm_id, lambda row: row is not None and row["failures"] > 0 and row["retry_at"] is not None)


async def _stop_unseen(fleet: Fleet, vm_id: str) -> None:
    """Want a VM stopped whose guest has ended while its host's worker was away."""
    assert fleet.faults.apart is not None
    async with fleet.faults.apart.away():
        await _crash(fleet, vm_id)
        await _patch(power_state="stopped")(fleet, vm_id)


async def _until_booted(fleet: Fleet, vm_id: str) -> None:
    """A guest lets go of a disk once its kernel runs; before, a detach may be tried more than once.

    What it printed while no worker lived is lost (S-14): then it has had the time of a boot.
    """
    log = fleet.home / "host" / "machines" / vm_id / "console.log"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(30):
            while not log.exists() or b"login:" not in log.read_bytes():  # noqa: ASYNC110 - a file
                await asyncio.sleep(0.2)


def _is(power: str) -> Callable[[Row | None], bool]:
    """As wanted, and applied."""

    def over(row: Row | None) -> bool:
        return (
            row is not None
            and settled(row)
            and row["phase"] == "ready"
            and row["observed_power_state"] == power
            and row["observed_generation"] == row["generation"]
        )

    return over


def _keeps(is_kept: bool) -> Callable[[Row | None], bool]:
    """Running, with or without a root disk that a rebuild put aside."""
    return lambda row: row is not None and _is("running")(row) and (row["old_disk_until"] is not None) is is_kept


def _crashed(row: Row | None) -> bool:
    """The one piece that moves no generation: it is known by how the last process ended, and that another runs."""
    return row is not None and _is("running")(row) and (row["last_exit"] or {}).get("by") == "hypervisor"


def _crashed_again(row: Row | None) -> bool:
    """Counted, and back after its pause."""
    return row is not None and _is("running")(row) and row["setbacks"] > 1


def _quarantined(row: Row | None) -> bool:
    return row is not None and row["phase"] == "quarantined" and row["waiting_for"] == "grace"


def _away(row: Row | None) -> bool:
    return row is not None and row["waiting_for"] == "attempt_pause" and row["claim_until"] is None


_NOBODY = {"url": "http://127.0.0.1:1/root.raw", "sha256": "a" * 64}
_TOLD = {"hypervisor": "simulated", "stop_timeout_seconds": 1}
_REAL = {"memory_mib": 128, "stop_timeout_seconds": 3}
_LIVED = (
    Life("pause", _patch(power_state="paused"), _is("paused")),
    Life("resume", _patch(power_state="running"), _is("running")),
    Life("grow", _patch(disk_gib=2), _is("running")),
    Life("seed", _patch(metadata={"role": "web"}), _is("running")),
    Life("restart", _post("restart"), _is("running")),
    Life("stop", _patch(power_state="stopped"), _is("stopped")),
    Life("start", _patch(power_state="running"), _is("running")),
    Life("rebuild", _post("rebuild"), _keeps(True), exact=False),
    Life("undo", _post("rebuild", undo=True), _keeps(True)),
    Life("end of the kept disk", _end_keeping, _keeps(False)),
    Life("crash", _crash, _crashed),
    Life("start anew", _post("retry"), lambda row: _is("running")(row) and row is not None and row["setbacks"] == 0),
    Life("crash again", _crash, _crashed_again, prepare=_crash_before),
    Life("delete", _delete("grace=1h"), _quarantined),
    Life("undelete", _post("undelete"), _is("running")),
)
_DESTROY = Life("destroy", _delete("now=true"), lambda row: row is None)
_LONG = (
    Life("create", _create_with_volume("demo", **_TOLD), _is("running"), prepare=_make_volume, exact=False),
    Life("grow a volume", _grow_volume, _is("running")),
    Life("detach", _change_volumes("DELETE"), _is("running")),
    Life("attach", _change_volumes("PUT"), _is("running")),
    Life("firewall", _patch(firewall={"enabled": True}), _is("running")),
    *_LIVED,
    Life("stop what is gone", _patch(power_state="stopped"), _is("stopped"), prepare=_crash_for_good),
    _DESTROY,
)
_SHORT = (
    Life("create without its image", _create(_NOBODY, **_TOLD), _away, exact=False),
    Life("destroy what was never made", _delete("now=true"), lambda row: row is None, exact=False),
)
STORIES = (_LONG, _SHORT)

REAL_STORIES = (
    (
        Life("create", _create("demo", **_REAL), _is("running"), exact=False),
        *_LIVED,
        Life("stop what is gone", _stop_unseen, _is("stopped")),
        _DESTROY,
    ),
    (
        Life("create stopped", _create("demo", power_state="stopped", **_REAL), _is("stopped"), exact=False),
        Life("first start", _patch(power_state="running"), _is("running")),
        Life("destroy what runs", _delete("now=true"), lambda row: row is None),
    ),
    (
        Life(
            "create with a volume",
            _create_with_volume("demo", **_REAL),
            _is("running"),
            prepare=_make_volume,
            exact=False,
        ),
        Life("detach", _change_volumes("DELETE"), _is("running"), prepare=_until_booted),
        Life("destroy beside its volume", _delete("now=true"), lambda row: row is None),
    ),
)
"""With real guests, which take some seconds to boot."""
