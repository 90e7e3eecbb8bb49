"""The first start of everything, in every order: nothing is there yet that another process makes."""

from __future__ import annotations

import asyncio
import os
from itertools import permutations
from pathlib import Path

import asyncpg
import pytest

from runtime.temporal_server import ServerPorts
from tests.fixtures.image_server import ImageServer
from tests.fixtures.postgres import PostgresServer
from tests.fixtures.temporal import TemporalServer, end_server, free_ports, register_namespace, serve_in_memory
from tests.upgrades.fleet import Fleet
from tests.upgrades.lives import serve
from tests.upgrades.releases import this_release

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace, so it needs root"),
]
NAMESPACE = "first-start"


def orders() -> list[tuple[str, ...]]:
    """Every order of the three, and the namespace at the very end of every other one, else right after Temporal."""
    found: list[tuple[str, ...]] = []
    for number, order in enumerate(permutations(("api", "control", "temporal"))):
        place = order.index("temporal") + 1 if number % 2 else len(order)
        found.append((*order[:place], "namespace", *order[place:]))
    return found


@pytest.mark.parametrize("order", orders(), ids="-".join)
def test_case_o16_all_become_ready_in_every_order(
    tmp_path: Path, postgres_server: PostgresServer, image_server: ImageServer, order: tuple[str, ...]
):
    """Case O16: an empty database, no namespace, no search attributes; nobody ends, and the VM is made."""
    ports, servers = ServerPorts(*free_ports(3)), list[TemporalServer]()
    fleet = Fleet(tmp_path, asyncio.run(_make_database(postgres_server)), f"127.0.0.1:{ports.grpc}", NAMESPACE)
    fleet.simulated_guests = "only"
    release, vm_id = this_release(), ""
    try:
        for step in order:
            if step == "temporal":
                servers.append(serve_in_memory(tmp_path, ports))
            elif step == "namespace":
                asyncio.run(register_namespace(servers[0].address, NAMESPACE))
            else:
                fleet.launch(step, release)
            if step == "api":
                fleet.until_said("api", b"Uvicorn running")
                fleet.enrol(release)
                fleet.launch("host", release)
                fleet.until_host(release)
                vm_id = fleet.create(serve(image_server), hypervisor="simulated")
        fleet.ready(vm_id, 60)
        ended = [name for name, process in fleet.processes.items() if process.poll() is not None]
        assert ended == [], [fleet.tail(name) for name in ended]
    finally:
        fleet.end()
        for server in servers:
            end_server(server)


async def _make_database(server: PostgresServer) -> str:
    name = f"f_{os.urandom(8).hex()}"
    connection = await asyncpg.connect(server.url)
    await connection.execute(f'create database "{name}"')
    await connection.close()
    return server.url_of(name)
