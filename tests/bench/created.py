"""The same guest by Hostler: `POST /v1/vms` to the SSH banner, and away again."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2

from drivers.cgroups import Cgroups
from tests.bench.banner import await_banner, find_process
from tests.bench.bare import BOOT_SECONDS, CPU_MILLICORES, DISK_GIB, MEMORY_MIB, Boot, fix_neighbour
from tests.bench.history import Timeline, fetch_timeline
from workers.installation import Installation

LOOK_SECONDS = 0.01
GONE_SECONDS = 60.0


@dataclass(frozen=True)
class Created:
    """A boot and where its time went. stages: names with seconds since the request was sent."""

    boot: Boot
    stages: dict[str, float]
    timeline: Timeline
    sent: float
    """When the request was sent, in seconds since the epoch."""
    throttled: float | None
    """How many seconds the guest's cgroup held its processes back until the banner."""
    arguments: tuple[str, ...]


class HostlerMachine:
    """A fleet whose API is asked for guests, one after the other."""

    def __init__(self, installation: Installation, image: str) -> None:
        self._installation = installation
        self._image = image
        self._client = httpx2.Client(
            base_url=installation.url,
            headers={"Authorization": f"Bearer {installation.token.read_text().strip()}"},
            timeout=30.0,
            trust_env=False,
        )

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self._client.request(method, path, json=body)
        if answer.status_code >= 300:
            raise RuntimeError(f"{method} {path} answered {answer.status_code}: {answer.text[:500]}")
        return answer.json()

    @contextlib.contextmanager
    def created(self, number: int) -> Generator[Created]:
        """Create a guest up to its banner; yield what was measured while it runs, then delete it and see it gone."""
        body = {
            "name": f"bench-{number}",
            "image": self._image,
            "cpu_millicores": CPU_MILLICORES,
            "memory_mib": MEMORY_MIB,
            "disk_gib": DISK_GIB,
        }
        self._call("GET", "/v1/images")  # the connection is there, as a client's is that has more than one wish
        sent, begun = time.time(), time.monotonic()
        vm = self._call("POST", "/v1/vms", body)
        answered = time.monotonic()
        try:
            address = self._await_address(vm["id"])
            given = time.monotonic()
            fix_neighbour(self._installation.settings.bridge, address, vm["mac"])
            await_banner(address, vm["mac"], self._installation.host / "dnsmasq" / "leases", BOOT_SECONDS)
            ended, pid = time.monotonic(), self._find_pid(vm["id"])
            process, throttled = find_process(pid), self._find_throttled(vm["id"])
            stages = {"the request is answered": answered - begun, "the address is given": given - begun}
            vm = self._call("GET", f"/v1/vms/{vm['id']}?wait=60s")
            if not vm["settled"] or vm["addresses"]["ip"] != address:
                raise RuntimeError(f"the VM is not settled at {address}: {vm['status_detail']} {vm['last_error']}")
            operation = vm["operations"][-1]
            stages["the row is claimed"] = read_time(operation["started_at"]) - sent
            stages["the guest's process begins"] = process.began - begun
            stages["the operation is settled"] = read_time(operation["ended_at"]) - sent
            stages["the SSH banner is read"] = ended - begun
            yield Created(
                boot=Boot(ended - begun, process.began - begun, process.worked_seconds),
                stages=dict(sorted(stages.items(), key=lambda stage: stage[1])),
                timeline=fetch_timeline(self._installation.temporal_address, vm["id"], operation["run_id"]),
                sent=sent,
                throttled=throttled,
                arguments=read_arguments(pid),
            )
        finally:
            self._delete(vm["id"])

    def _machine(self, vm_id: str) -> Path:
        return self._installation.host / "machines" / vm_id

    def _await_address(self, vm_id: str) -> str:
        """Find the address where the host writes it first: to ask the API would be work for what is timed."""
        record = self._machine(vm_id) / "config.json"
        deadline = time.monotonic() + BOOT_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                return json.loads(record.read_bytes())["allocation"]["address"]
            time.sleep(LOOK_SECONDS)
        vm = self._call("GET", f"/v1/vms/{vm_id}")
        raise TimeoutError(f"the host gave no address: {vm['status_detail']} {vm['last_error']}")

    def _find_pid(self, vm_id: str) -> int:
        return json.loads((self._machine(vm_id) / "status.json").read_bytes())["process"]["pid"]

    def _find_throttled(self, vm_id: str) -> float | None:
        """Read how long the guest was held back by its quota (cpu.stat of cgroup version 1 or 2)."""
        cgroups = Cgroups.detect(self._installation.settings.cgroup)
        folder = cgroups.root / ("cpu" if cgroups.backend == "v1" else "") / cgroups.name / vm_id
        with contextlib.suppress(OSError):
            for line in (folder / "cpu.stat").read_text().splitlines():
                name, _, value = line.partition(" ")
                if name in ("throttled_time", "throttled_usec"):
                    return int(value) / (1e9 if name == "throttled_time" else 1e6)
        return None

    def _delete(self, vm_id: str) -> None:
        self._call("DELETE", f"/v1/vms/{vm_id}?now=true")
        deadline = time.monotonic() + GONE_SECONDS
        while (answer := self._client.get(f"/v1/vms/{vm_id}")).status_code != 410 or self._machine(vm_id).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"a VM is not gone {GONE_SECONDS:g} s after it was deleted: {answer.text[:1500]}")
            time.sleep(0.1)


def read_time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def read_arguments(pid: int) -> tuple[str, ...]:
    return tuple(Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1])
