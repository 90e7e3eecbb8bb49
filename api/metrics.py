"""A fleet for Prometheus: counts, and conditions to alert on (A-10). No user's text in any label (S-34)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from api.conditions import SEVERITIES, find_conditions
from api.gate import FleetViewer, PartsOf
from api.route import GatedRoute
from model.vm import Phase
from store.troubles import find_late

router = APIRouter(tags=["health"], route_class=GatedRoute)


@router.get("/metrics", include_in_schema=False)
async def metrics(_caller: FleetViewer, parts: PartsOf) -> Response:
    """Tell the fleet's state in Prometheus' text format; every condition there can be has a series, mostly of 0."""
    registry = CollectorRegistry(auto_describe=False)
    hosts = await parts.hosts.list(limit=500)
    found = Counter(each.condition for each in await find_conditions(parts))
    _gauge(registry, "hostler_conditions", "What is wrong now", "condition", dict.fromkeys(SEVERITIES, 0) | found)
    phases = dict.fromkeys((str(phase) for phase in Phase), 0) | await parts.vms.count_phases()
    _gauge(registry, "hostler_vms", "VMs by phase", "phase", phases)
    states = Counter("silent" if host.silent else host.status for host in hosts)
    _gauge(registry, "hostler_hosts", "Hosts by state", "state", states)
    late = Gauge("hostler_due_vms", "VMs that are due for two minutes and not taken up", registry=registry)
    late.set((await find_late(parts.pool)).count)
    for name, words in _HELD:
        held = {host.name: getattr(host.live, name) + getattr(host.leaving, name) for host in hosts}
        _gauge(registry, f"hostler_host_held_{name}", words, "host", held)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


_HELD = (
    ("cpu_millicores", "What VMs hold of a host's processors, in thousandths of one"),
    ("memory_mib", "What VMs hold of a host's memory, in MiB"),
    ("disk_gib", "What VMs and volumes hold of a host's disk, in GiB"),
)


def _gauge(registry: CollectorRegistry, name: str, words: str, label: str, values: Mapping[str, float]) -> None:
    gauge = Gauge(name, words, (label,), registry=registry)
    for value, number in sorted(values.items()):
        gauge.labels(value).set(number)
