"""What a test asks of a fleet: by its API, and by looking at the machine that its guests run on."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Api:
    """One fleet of one host. first_uid: of the ids of its guests' users."""

    def __init__(self, host_home: Path) -> None:
        self.host_home = host_home
        self.port = 0
        self.token = ""
        self.first_uid = 0

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Row]:
        """Ask the API; return status and document."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def do(self, method: str, path: str, body: object = None) -> Row:
        """Ask the API for something that it does."""
        status, answer = self.call(method, path, body)
        assert status < 300, (status, answer)
        return answer

    def create(self, image: Row, **fields: Any) -> str:
        """Ask for a VM; return its id at once."""
        named = {"name": f"vm-{uuid.uuid4().hex[:8]}", "image": image, "memory_mib": 64}
        body = {**named, "stop_timeout_seconds": 1, **fields}
        return self.do("POST", "/v1/vms", body)["id"]

    def row(self, vm_id: str) -> Row:
        return self.do("GET", f"/v1/vms/{vm_id}")

    def until(self, vm_id: str, holds: Callable[[Row], bool], seconds: float = 40) -> Row:
        """Wait for a level of a VM's row."""
        deadline = time.monotonic() + seconds
        while not holds(row := self.row(vm_id)):
            assert time.monotonic() < deadline, row
            time.sleep(0.1)
        return row

    def ready(self, vm_id: str, seconds: float = 40) -> Row:
        return self.until(vm_id, lambda row: row["phase"] == "ready" and row["settled"], seconds)

    def until_gone(self, vm_id: str, seconds: float = 40) -> None:
        deadline = time.monotonic() + seconds
        while (answer := self.call("GET", f"/v1/vms/{vm_id}"))[0] not in (404, 410):
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)

    def guests(self) -> dict[str, tuple[int, int]]:
        """Return (pid, start time) of the one hypervisor process of each VM that has any."""
        found: dict[str, tuple[int, int]] = {}
        for entry in (each for each in Path("/proc").iterdir() if each.name.isdigit()):
            with contextlib.suppress(OSError, IndexError, ValueError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if entry.stat().st_uid in range(self.first_uid, self.first_uid + 10) and b"-name" in words:
                    vm_id = words[words.index(b"-name") + 1].decode()
                    assert vm_id not in found, f"two processes of {vm_id}"
                    found[vm_id] = (int(entry.name), int(stat[19]))
        return found

    def disk(self, vm_id: str) -> int:
        """Return which file the VM's root disk is: a disk that was made anew is another one."""
        return (self.host_home / "machines" / vm_id / "disk").stat().st_ino

    def change(self, vm_id: str, wanted: str) -> Row:
        """Ask for a power state, and wait until it is there."""
        self.do("PATCH", f"/v1/vms/{vm_id}", {"power_state": wanted})
        return self.until(vm_id, lambda row: row["power_state"] == wanted and row["settled"])

    def quarantine(self, vm_id: str, grace: str) -> Row:
        """Delete a VM, and wait until it waits out its grace, which begins anew once the guest is stopped."""
        self.do("DELETE", f"/v1/vms/{vm_id}?grace={grace}")
        return self.until(vm_id, lambda row: row["quarantine"] and row["quarantine"]["destroy_at"] == row["due_at"])

    def delete(self, vm_id: str) -> None:
        """Delete a VM without a grace, and wait until it is gone."""
        self.do("DELETE", f"/v1/vms/{vm_id}?now=true")
        self.until_gone(vm_id)

    def fetching(self, vm_id: str) -> Row:
        """Wait until a create is seen in the middle of its fetch."""
        return self.until(vm_id, lambda row: (row["status_detail"] or "").startswith("fetching the image: "))
