"""Every refusal of placement and admission in whole sentences, as its operator and as a project read it (H-A2, H-P4).

Each row makes real hosts and VMs in the store, asks for a VM there, and asks the host's own ledger for the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from drivers.ledger import Ledger
from model.capacity import Caps, without_host
from model.errors import NoRoom, Refused, Unavailable
from model.report import HypervisorReport
from store.audit import Actor
from store.database import Pool, reading
from store.floor import set_floor
from store.placement import Placing, entitlement_of, view_hosts
from store.vm_create import create_vm
from store.volume import VolumeStore
from tests.fixtures.rows import add_host, add_vm, new_vm, vm_spec
from tests.store.test_host_report import report

ACTOR = Actor("test")
AT = datetime(2030, 1, 1, tzinfo=UTC)
UNTIL = "2030-01-01T00:00:00Z"
OPERATOR_CAPS = "; its operator set that limit: ask for less, delete a VM there, or go elsewhere"
AWAY = "its host takes no new VM now; try again later"
QEMU = HypervisorReport(name="qemu", available=True, why="a probe guest ran")
NO_KVM = HypervisorReport(name="qemu", available=False, why="/dev/kvm is missing")
TOLD = HypervisorReport(name="simulated", available=True, why="only told of")
DELETED = {"deleted": True, "quarantine_kind": "tombstone", "quarantine_since": AT, "destroy_at": AT}
LEAVES: dict[str, Any] = {**DELETED, "quarantine_grace": timedelta(hours=1), "ssh_host_key": "key"}
GONE_QUIET = {"last_report_at": AT - timedelta(days=3650)}
QUIET = f"{AT - timedelta(days=3650):%Y-%m-%dT%H:%M:%SZ}"


@dataclass
class Case:
    """A host that tells `told`, with VMs of `vms`, asked for a VM of `spec`: what an operator and a project are told.

    Words of None: it takes the VM.
    """

    id: str
    operator: str | None
    project: str | None = AWAY
    told: dict[str, Any] | None = field(default_factory=dict[str, Any])
    vms: tuple[dict[str, Any], ...] = ()
    spec: dict[str, Any] = field(default_factory=dict[str, Any])
    host: dict[str, Any] = field(default_factory=dict[str, Any])
    floor: str | None = None

    @property
    def caps(self) -> Caps | None:
        return None if self.told is None else self.told.get("caps")


def vm(mib: int = 512, gib: int = 2, millicores: int = 1000, **columns: Any) -> dict[str, Any]:
    spec = vm_spec(cpu_millicores=millicores, memory_mib=mib, disk_gib=gib).model_dump(mode="json")
    return {"spec": spec, "disk_gib": gib, **columns}


def caps(**limits: int) -> dict[str, Any]:
    return {"caps": Caps(**limits)}


ROOM = [
    Case(
        "one dimension, held by live VMs",
        "memory: needs 512 MiB, holds 512 of 1023 MiB" + OPERATOR_CAPS,
        "memory: needs 512 MiB",
        told=caps(max_memory_mib=1023, max_vcpus=4, max_disk_gib=100),
        vms=(vm(),),
    ),
    Case(
        "several dimensions",
        "cpu: needs 1 vCPUs, holds 1.5 of 2 vCPUs; memory: needs 512 MiB, holds 768 of 1024 MiB; disk: needs 8 GiB, "
        "holds 3 of 10 GiB" + OPERATOR_CAPS,
        "cpu: needs 1 vCPUs; memory: needs 512 MiB; disk: needs 8 GiB",
        told=caps(max_vcpus=2, max_memory_mib=1024, max_disk_gib=10),
        vms=(vm(768, 3, 1500),),
        spec={"disk_gib": 8},
    ),
    Case(
        "capped in vcpus, more than it has",
        "cpu: needs 2.5 vCPUs, holds 0 of 2 vCPUs" + OPERATOR_CAPS,
        "cpu: needs 2.5 vCPUs",
        told=caps(max_vcpus=2),
        spec={"cpu_millicores": 2500},
    ),
    Case(
        "full to the last",
        "memory: needs 512 MiB, holds 1024 of 1024 MiB" + OPERATOR_CAPS,
        "memory: needs 512 MiB",
        told=caps(max_memory_mib=1024),
        vms=(vm(), vm()),
    ),
    Case(
        "held by one teardown",
        "memory: needs 512 MiB, holds 1024 of 1024 MiB; 1 VM still being torn down holds 512 MiB of memory until "
        f"{UNTIL}: wait, it ends by itself",
        "memory: needs 512 MiB",
        told=caps(max_memory_mib=1024),
        vms=(vm(), vm(**LEAVES)),
    ),
    Case(
        "held by the disks of teardowns",
        f"disk: needs 4 GiB, holds 8 of 10 GiB; 2 VMs still being torn down hold 8 GiB of disk until {UNTIL}: wait, "
        "it ends by itself",
        "disk: needs 4 GiB",
        told=caps(max_memory_mib=1024, max_disk_gib=10),
        vms=(
            vm(gib=3, quarantine_stopped_at=AT, **LEAVES) | {"destroy_at": AT - timedelta(hours=1)},
            vm(gib=5, quarantine_stopped_at=AT, **LEAVES),
        ),
        spec={"disk_gib": 4},
    ),
    Case(
        "a teardown that would not free enough",
        "memory: needs 1024 MiB, holds 1024 of 1024 MiB" + OPERATOR_CAPS,
        "memory: needs 1024 MiB",
        told=caps(max_memory_mib=1024),
        vms=(vm(), vm(**LEAVES)),
        spec={"memory_mib": 1024},
    ),
    Case(
        "over its cap already",
        "memory: needs 512 MiB, holds 1024 of 512 MiB" + OPERATOR_CAPS,
        "memory: needs 512 MiB",
        told=caps(max_memory_mib=512),
        vms=(vm(1024),),
    ),
    Case("exactly full fits", None, told=caps(max_vcpus=2, max_memory_mib=1024, max_disk_gib=4), vms=(vm(),)),
    Case("no cap", None, told=caps(), vms=(vm(1 << 20, 1 << 10, 10**6),)),
    Case("caps that it tells nothing of", None, told={"caps": None}, vms=(vm(1 << 20),)),
    Case("not reported yet", None, told=None, host={"status": "joining", "last_report_at": None, "instance_id": None}),
]
STATES = [
    *(
        Case(status, f"is {status} and takes no new VM", host={"status": status})
        for status in ("cordoned", "draining", "drained")
    ),
    Case(
        "maintenance",
        "is in maintenance and takes no new VM",
        host={"status": "maintenance", "maintenance_until": AT},
    ),
    Case("silent", f"is silent since {QUIET}", host=GONE_QUIET),
    Case("floored", "needs worker 1.4.0 or newer, it runs 1.2.0: upgrade it", floor="1.4.0"),
    Case("other labels", "is not labelled disk=nvme, room=2", host={"labels": {"disk": "hdd"}}, spec={}),
    Case(
        "another architecture",
        "is of architecture aarch64, the image is for x86_64",
        told={"architecture": "aarch64"},
    ),
    Case(
        "no such hypervisor",
        "does not run simulated guests: it has no such hypervisor",
        told={"hypervisors": (QEMU,)},
        spec={"hypervisor": "simulated"},
    ),
    Case(
        "a hypervisor that cannot run",
        "does not run qemu guests: /dev/kvm is missing",
        told={"hypervisors": (NO_KVM, TOLD)},
        spec={"hypervisor": "qemu"},
    ),
    Case(
        "simulated guests alone",
        "runs simulated guests only, which a VM must name (hypervisor)",
        told={"hypervisors": (TOLD,)},
    ),
    Case(
        "state before room", "is cordoned and takes no new VM", told=caps(max_memory_mib=1), host={"status": "cordoned"}
    ),
]


async def place(pool: Pool, case: Case) -> str:
    """Put a case's host and VMs into the store."""
    told = None if case.told is None else report(1, worker_version="1.2.0", **case.told)
    document = None if told is None else told.model_dump(mode="json", exclude={"vms"})
    columns = {"name": "h1", "report": document, "worker_version": "1.2.0", **case.host}
    host_id = await add_host(pool, **columns)
    await pool.execute("update fleet set heard_at = now(), hearing_since = now() - interval '1 day'")
    await set_floor(pool, case.floor, Actor("test"))
    for columns in case.vms:
        await add_vm(pool, host_id, first_ready_at=AT, **columns)
    return host_id


async def ask(pool: Pool, case: Case, host_id: str | None, *, see_hosts: bool) -> Refused | Unavailable | None:
    """Ask for the case's VM on a host, or on any; return the refusal."""
    spec = vm_spec(**{"disk_gib": 2, **case.spec})
    labels = {"disk": "nvme", "room": "2"} if case.id == "other labels" else {}
    new = new_vm("", spec=spec, host_labels=labels).model_copy(update={"host_id": host_id})
    try:
        await create_vm(pool, new, ACTOR, Placing(see_hosts=see_hosts))
    except (Refused, Unavailable) as error:
        return error
    return None


async def ask_ledger(pool: Pool, case: Case, host_id: str) -> str | None:
    """Ask a host that holds what the rows say for the same VM; return its refusal."""
    async with reading(pool) as connection:
        (view,) = await view_hosts(connection, host_id)
    ledger = Ledger(case.caps or Caps(), lambda: [("others", view.held)], "h1")
    try:
        with ledger.admitted("new", entitlement_of(vm_spec(**{"disk_gib": 2, **case.spec}))):
            return None
    except NoRoom as error:
        return error.detail


@pytest.mark.parametrize("case", ROOM, ids=lambda case: case.id)
async def test_a_refusal_for_want_of_room(pool: Pool, case: Case) -> None:
    """H-A2, H-A3, H-P2 to H-P5, S-32: host and control plane in the same words, a project's token its wish alone."""
    host_id = await place(pool, case)
    host = await ask_ledger(pool, case, host_id)
    for see_hosts, words, named in (
        (True, case.operator, f"host h1 ({host_id}) refuses: "),
        (False, case.project, "its host refuses: "),
    ):
        refused = await ask(pool, case, host_id, see_hosts=see_hosts)
        if case.operator is None:
            assert (refused, host) == (None, None)
            return
        assert isinstance(refused, NoRoom)
        assert refused.detail == f"{named}{words}"
        anywhere = await ask(pool, case, None, see_hosts=see_hosts)
        every = f": h1 ({host_id}) refuses: {words}" if see_hosts else f" (no room: 1); {words}"
        assert anywhere is not None
        assert anywhere.detail == f"no host takes this VM{every}"
    assert host is not None
    assert case.operator.startswith(host.removeprefix("host h1 refuses: "))
    assert without_host(host) == f"its host refuses: {case.project}"


@pytest.mark.parametrize("case", STATES, ids=lambda case: case.id)
async def test_a_refusal_by_a_hosts_state_or_a_filter(pool: Pool, case: Case) -> None:
    """H-P1, H-P4 to H-P6, H-A4, S-32: a project's token reads nothing of its host."""
    host_id = await place(pool, case)
    refused = await ask(pool, case, host_id, see_hosts=True)
    assert refused is not None
    assert refused.detail == f"the host h1 ({host_id}) {case.operator}; choose another one"
    assert isinstance(refused, Unavailable) == (case.id == "silent"), "a silent host may be back in a moment"
    hidden = await ask(pool, case, host_id, see_hosts=False)
    assert hidden is not None
    assert hidden.detail == case.project


async def test_a_vm_whose_volumes_are_on_another_host(pool: Pool) -> None:
    """H-V1, H-P1, H-P5: refused where a host is named; else every other host is passed over, and says why."""
    here, there = await place(pool, Case("here", None)), await add_host(pool, name="h2", status="cordoned")
    volume = await VolumeStore(pool).create(project="default", name="data", size_gib=1, host_id=there, actor=ACTOR)
    case = Case("volumes", None, spec={"volumes": (volume.id,)})
    told = [await ask(pool, case, host_id, see_hosts=see) for host_id in (here, None) for see in (True, False)]
    assert [each and each.detail for each in told] == [
        "the volume data is on the host h2, the VM is to be on another: a VM goes where its volumes are; leave the "
        "host out",
        "the volume data is on a host, the VM is to be on another: a VM goes where its volumes are; leave the host out",
        f"no host takes this VM: h1 ({here}) is not where the VM's volumes are; h2 ({there}) is cordoned and takes no "
        "new VM",
        "no host takes this VM (cordoned: 1, volumes elsewhere: 1)",
    ]


async def test_why_no_host_takes_it(pool: Pool) -> None:
    """H-P5, S-32, case G8: every host with the filter that excluded it; counts and the wish for a project."""
    nowhere = await ask(pool, Case("", None), None, see_hosts=True)
    assert isinstance(nowhere, Unavailable)
    assert nowhere.detail == "no host is visible now, none can be asked; `hostler host ls` shows why. Try again later"
    full = await place(pool, Case("", None, told=caps(max_memory_mib=1024), vms=(vm(), vm())))
    told = report(1, architecture="aarch64", worker_version="1.2.0").model_dump(mode="json", exclude={"vms"})
    other = await add_host(pool, name="h2", report=told, worker_version="1.2.0")
    shut = await add_host(pool, name="h3", status="draining")
    quiet = await add_host(pool, name="h4", **GONE_QUIET)
    new = await add_host(pool, name="h5", status="joining", last_report_at=None, instance_id=None)
    operator = await ask(pool, Case("", None), None, see_hosts=True)
    project = await ask(pool, Case("", None), None, see_hosts=False)
    assert isinstance(operator, NoRoom)
    assert operator.detail == (
        f"no host takes this VM: h1 ({full}) refuses: memory: needs 512 MiB, holds 1024 of 1024 MiB{OPERATOR_CAPS}; "
        f"h2 ({other}) is of architecture aarch64, the image is for x86_64; h3 ({shut}) is draining and takes no new "
        f"VM; h4 ({quiet}) is silent since {QUIET}; h5 ({new}) has not reported yet"
    )
    assert isinstance(project, NoRoom)
    assert project.detail == (
        "no host takes this VM (draining: 1, joining: 1, no room: 1, other architecture: 1, silent: 1); "
        "memory: needs 512 MiB"
    )
