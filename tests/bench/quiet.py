"""Measure what a host of idle VMs costs while nothing happens: `python -m tests.bench.quiet [--vms N] [--minutes M]`.

A real API, control worker and host worker; the guests are only told of: an idle guest does nothing that its host would
tell. Counted, and given for an hour: events in Temporal's histories, calls of the API, and the bytes between the host
and both of them (payload, both ways). Ends with 0, or 1 when a run stayed open.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
from temporalio.client import Client

from tests.fixtures.image_server import running_image_server
from tests.fixtures.postgres import PostgresServer, run_postgres
from tests.fixtures.temporal import end_server, register_namespace, serve_in_memory
from tests.upgrades.fleet import Fleet
from tests.upgrades.lives import serve
from tests.upgrades.releases import Release, this_release

NAMESPACE = "quiet"
CALL = re.compile(rb"(?:GET|PUT|POST|PATCH|DELETE) [^ ]+ HTTP/1\.1\r\n")
SETTLE_SECONDS = 60.0
READY_SECONDS = 600.0
HOUR = 3600.0
MOST_VMS = 1000


class Relay:
    """Carry one server's connections, and count calls and bytes. Has a thread of its own."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self.port = self.calls = self.bytes = 0
        ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True).start()
        ready.wait()

    async def _serve(self, ready: threading.Event) -> None:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await server.serve_forever()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there, away = await asyncio.open_connection(*self._target)
            await asyncio.gather(self._pump(reader, away, asks=True), self._pump(there, writer, asks=False))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self.bytes += len(data)
                self.calls += len(CALL.findall(data)) if asks else 0
                writer.write(data)
                await writer.drain()
        writer.close()


@dataclass(frozen=True)
class Count:
    """What has been seen up to a moment."""

    at: float
    events: int
    open_runs: int
    calls: int
    api_bytes: int
    temporal_bytes: int

    def per_hour_since(self, before: Count) -> dict[str, float]:
        hours = (self.at - before.at) / HOUR
        names = ("events", "calls", "api_bytes", "temporal_bytes")
        return {name: round((getattr(self, name) - getattr(before, name)) / hours, 1) for name in names}


class QuietFleet(Fleet):
    """A fleet whose host reaches API and Temporal by relays."""

    def environment(self, release: Release) -> dict[str, str]:
        return {**super().environment(release), "HOSTLER_HOST_UID_COUNT": str(MOST_VMS)}

    def enrol_by_relays(self) -> tuple[Relay, Relay]:
        self.enrol(this_release())
        host, _, port = self.temporal_address.partition(":")
        api, temporal = Relay("127.0.0.1", self.port), Relay(host, int(port))
        place = self.host_home / "credentials.json"
        reached = {"api_url": f"http://127.0.0.1:{api.port}", "temporal_address": f"127.0.0.1:{temporal.port}"}
        place.write_text(json.dumps({**json.loads(place.read_text()), **reached}))
        return api, temporal


async def count(address: str, api: Relay, temporal: Relay) -> Count:
    client = await Client.connect(address, namespace=NAMESPACE)
    runs = [run async for run in client.list_workflows()]
    return Count(
        at=time.monotonic(),
        events=sum(run.history_length for run in runs),
        open_runs=sum(run.close_time is None for run in runs),
        calls=api.calls,
        api_bytes=api.bytes,
        temporal_bytes=temporal.bytes,
    )


@contextlib.contextmanager
def running(folder: Path) -> Generator[QuietFleet]:
    with run_postgres(folder / "postgres") as url:
        temporal = serve_in_memory(folder)
        asyncio.run(register_namespace(temporal.address, NAMESPACE))
        fleet = QuietFleet(folder / "fleet", asyncio.run(make_database(url)), temporal.address, NAMESPACE)
        fleet.simulated_guests = "only"
        try:
            yield fleet
        finally:
            fleet.end()
            end_server(temporal)


async def make_database(url: str) -> str:
    name = f"quiet_{secrets.token_hex(4)}"
    connection = await asyncpg.connect(url)
    await connection.execute(f"create database {name}")
    await connection.close()
    return PostgresServer(url, "").url_of(name)


def measure(vms: int, minutes: float) -> dict[str, object]:
    """Make the VMs, wait until they are quiet, count for a while."""
    with tempfile.TemporaryDirectory(prefix="hst-quiet-") as name, running_image_server() as images:
        folder = Path(name)
        folder.chmod(0o711)
        for place in ("postgres", "fleet"):
            (folder / place).mkdir(mode=0o711)
        with running(folder) as fleet:
            release = this_release()
            fleet.start("api", release)
            api, temporal = fleet.enrol_by_relays()
            fleet.start("control", release)
            fleet.start("host", release)
            fleet.until_host(release)
            image = serve(images)
            vm_ids = [fleet.create(image, hypervisor="simulated") for _ in range(vms)]
            for vm_id in vm_ids:
                fleet.ready(vm_id, READY_SECONDS)
            time.sleep(SETTLE_SECONDS)
            before = asyncio.run(count(fleet.temporal_address, api, temporal))
            time.sleep(minutes * 60)
            after = asyncio.run(count(fleet.temporal_address, api, temporal))
    return {
        "vms": vms,
        "minutes": minutes,
        "open_runs": [before.open_runs, after.open_runs],
        "per_hour": after.per_hour_since(before),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.quiet", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vms", type=int, default=100, help="how many VMs the host has (default: 100)")
    parser.add_argument("--minutes", type=float, default=12.0, help="how long is counted (default: 12)")
    given = parser.parse_args()
    if not 1 <= given.vms <= MOST_VMS:
        parser.error(f"--vms must be 1 to {MOST_VMS}")
    if os.geteuid() != 0:
        sys.stderr.write("it makes a network namespace: run it as root\n")
        return 1
    found = measure(given.vms, given.minutes)
    print(json.dumps(found, indent=2))
    return 1 if any(found["open_runs"]) else 0  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
