"""What must hold at every instant of a run, whatever users ask and whatever fails."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import httpx2

from tests.chaos.fleet import Fleet
from tests.chaos.log import Log
from tests.chaos.model import Model

LOOK_SECONDS = 0.1
LIST_SECONDS = 2.0
CLOCK_MARGIN_SECONDS = 0.2
PAGE = 200


class Watch:
    """Follows the machine and the fleet's list beside users and faults."""

    def __init__(self, fleet: Fleet, model: Model, log: Log) -> None:
        self.fleet = fleet
        self.model = model
        self.log = log
        self.ready_disks: set[str] = set()
        self.gone: set[str] = set()

    async def follow_machine(self) -> None:
        """Look at the simulated machine many times a second."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        for line in self.fleet.machine.read():
            self.fleet.machine.follow(line)
            self._note(line)
            self._check(line)
        for vm_id, pid in self.fleet.machine.real.look():
            self.log.note("machine", f"real boot {pid}", vm_id)
            self._check_boot(vm_id)
        self._check_disks()
        self._check_doubles()

    def _note(self, line: dict[str, Any]) -> None:
        more = " ".join(str(line[name]) for name in ("what", "size_bytes") if name in line)
        pid = (line.get("process") or {}).get("pid", "")
        self.log.note("machine", f"{line['effect']} {more} {pid}".replace("  ", " "), line["vm_id"])

    def _check(self, line: dict[str, Any]) -> None:
        vm_id, machine = line["vm_id"], self.fleet.machine
        vm = self.model.vms.get(vm_id)
        if vm is None:
            self.log.violated("something happens to a VM that nobody made", vm_id)
            return
        if line["effect"] == "boot":
            self._check_boot(vm_id)
            if line["boot_id"] == machine.boot_id() and len(machine.plugged(vm_id)) != 1:
                self.log.violated(f"its guest was started with {len(machine.plugged(vm_id))} taps", vm_id)
        if line["effect"] == "disk" and vm_id in self.ready_disks and not vm.may_be_remade:
            self.log.violated("its root disk was made anew although it had been ready", vm_id)
        if vm_id in self.gone and line["effect"] not in ("kill", "remove_tap", "happen"):
            self.log.violated(f"something was made of a VM that is gone: {line['effect']}", vm_id)

    def _check_boot(self, vm_id: str) -> None:
        live, vm = self.fleet.machine.live(vm_id), self.model.vms.get(vm_id)
        if len(live) > 1:
            self.log.violated(f"two processes of one VM live: {live}", vm_id)
        if vm is None or vm.rests_since is not None:
            self.log.violated("its guest was started although it was stopped and nobody asked for it", vm_id)

    def _check_disks(self) -> None:
        """A disk that was there, of a VM that was ready, goes only at the end of an accepted grace."""
        before, now = self.ready_disks, time.time()
        there = self.fleet.machine.disk_ids()
        for vm_id in before - there:
            if not self.model.vms[vm_id].may_be_destroyed(now + CLOCK_MARGIN_SECONDS):
                self.log.violated("its root disk was destroyed, and no accepted delete was over its grace", vm_id)
        self.ready_disks = {vm_id for vm_id in there if (vm := self.model.vms.get(vm_id)) and vm.was_ready}

    def _check_doubles(self) -> None:
        machine = self.fleet.machine
        plugged = [(tap, vm_id) for vm_id in machine.known() for tap in machine.plugged(vm_id)]
        for name in ("tap", "mac", "address"):
            for value, count in Counter(tap[name] for tap, _ in plugged).items():
                if count > 1 and value is not None:
                    owners = sorted({vm_id for tap, vm_id in plugged if tap[name] == value})
                    self.log.violated(f"{name} {value} is there {count} times: {owners}", owners[0])

    async def follow_list(self) -> None:
        """Read the fleet's list again and again, as a user does."""
        async with self.fleet.client() as client:
            while True:
                try:
                    await self.read_list(client)
                except httpx2.HTTPError:
                    pass  # nobody answers now: that tells nothing
                await asyncio.sleep(LIST_SECONDS)

    async def read_list(self, client: httpx2.AsyncClient) -> dict[str, dict[str, Any]] | None:
        """Read the whole list and check it; None when the API could not answer."""
        sent, sent_at = time.monotonic(), time.time()
        found = await read_pages(client)
        if found is None:
            return None
        now = time.time()
        for document in found.values():
            for wrong in self.model.read(document, sent):
                self.log.violated(wrong, document["id"])
        for name, of in (("MAC", lambda d: d["mac"]), ("address", lambda d: d["addresses"]["ip"])):
            for value, count in Counter(of(document) for document in found.values()).items():
                if value is not None and count > 1:
                    self.log.violated(f"the list shows {name} {value} {count} times")
        for vm_id, vm in self.model.vms.items():
            if vm_id in found or not any(
                a.verb == "create" and a.outcome == "accepted" and a.over < sent for a in vm.asks
            ):
                continue
            if not vm.may_be_destroyed(now + CLOCK_MARGIN_SECONDS):
                self.log.violated("it is not in the list, and no accepted delete was over its grace", vm_id)
            elif not vm.may_be_kept():
                self._take_for_gone(vm_id, sent_at)
        return found

    def _take_for_gone(self, vm_id: str, at: float) -> None:
        """Nothing may be left of a VM that the list does not show any more (L-R6)."""
        if vm_id in self.gone:
            return
        self.look()
        self.gone.add(vm_id)
        machine = self.fleet.machine
        left = {
            "process": machine.live(vm_id),
            "tap": [tap["tap"] for tap in machine.plugged(vm_id)],
            "disk": [vm_id] if vm_id in machine.disk_ids() else [],
            "record": [vm_id] if vm_id in machine.folder_ids() else [],
        }
        for kind, found in left.items():
            if found:
                self.log.violated(f"the fleet has forgotten it, and its {kind} is still on the host: {found}", vm_id)


async def read_pages(client: httpx2.AsyncClient) -> dict[str, dict[str, Any]] | None:
    """Return every VM of the list by its id."""
    found: dict[str, dict[str, Any]] = {}
    after = ""
    while True:
        answer = await client.get(f"/v1/vms?limit={PAGE}{after}")
        if answer.status_code != 200:
            return None
        page = answer.json()
        for document in page["items"]:
            found[document["id"]] = document
        if page["next_cursor"] is None:
            return found
        after = f"&cursor={page['next_cursor']}"
