"""Users who ask for one thing after another, several of them of the same VMs, and again when no answer comes."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from random import Random
from typing import Any

import httpx2

from tests.chaos.fleet import Fleet
from tests.chaos.log import Log
from tests.chaos.model import Ask, Model, ModelVm

GRACES = (0, 0, 2, 8, 20, 3600)
AGAIN_SECONDS = 1.0
MOST_REAL = 3
"""Real guests that may be kept at once: each is emulated, and takes a good part of a processor while it boots."""
MOST_TRIES = 60
NOT_DONE = (400, 403, 409, 412, 422)


class User:
    """One user with a way of acting drawn from the run's seed. Each keeps a few VMs of everybody's going."""

    def __init__(self, name: str, fleet: Fleet, model: Model, log: Log, *, most_vms: int) -> None:
        self.name = name
        self.fleet = fleet
        self.model = model
        self.log = log
        self.rng = Random(f"{fleet.seed}/{name}")
        self.most_vms = most_vms
        self.made = 0

    async def live(self, until: asyncio.Event, pause_seconds: float) -> None:
        """Ask for things until told to end; what was begun is brought to an answer."""
        async with self.fleet.client() as client:
            while not until.is_set():
                await self._act(client)
                try:
                    await asyncio.wait_for(until.wait(), self.rng.uniform(0, 2 * pause_seconds))
                except TimeoutError:
                    continue

    async def _act(self, client: httpx2.AsyncClient) -> None:
        known = [vm for vm in self.model.vms.values() if vm.exists_surely and not vm.told_gone]
        kept = [vm for vm in known if vm.may_be_kept()]
        verb, what = self.rng.choices(VERBS, [each[2] for each in VERBS])[0][:2]
        if len(kept) < self.most_vms and (not kept or self.rng.random() < 0.3):
            await self._create(client)
            return
        pool = known if verb in ("undelete", "delete") else kept
        if pool:
            await what(self, client, self.rng.choice(sorted(pool, key=lambda vm: vm.vm_id)))

    async def _create(self, client: httpx2.AsyncClient) -> None:
        self.made += 1
        vm_id = str(uuid.UUID(int=self.rng.getrandbits(128), version=4))
        wanted = {
            "power_state": self.rng.choices(("running", "paused", "stopped"), (7, 1, 2))[0],
            "cpu_millicores": self.rng.choice((100, 1000)),
            "memory_mib": self.rng.choice((96, 128)),
            "disk_gib": self.rng.randint(1, 3),
            "metadata": {"number": str(self.made)},
            "termination_protection": False,
        }
        real = [
            vm for vm in self.model.vms.values() if vm.hypervisor == "qemu" and vm.may_be_kept() and not vm.told_gone
        ]
        hypervisor = "qemu" if len(real) < MOST_REAL and self.rng.random() < 0.3 else "simulated"
        body = {
            "name": f"{self.name}-{self.made}",
            "image": self.fleet.images[hypervisor],
            "host": self.fleet.host_id,
            "hypervisor": hypervisor,
            "stop_timeout_seconds": self.rng.choice((1, 3, 20)),
            "on_guest_poweroff": self.rng.choices(("start", "stop"), (4, 1))[0],
            **wanted,
        }
        await self._ask(client, "PUT", "", body, lambda: Ask(vm_id, "create", wanted, hypervisor=hypervisor))

    async def change(self, client: httpx2.AsyncClient, vm: ModelVm, **sets: Any) -> None:
        await self._ask(client, "PATCH", "", sets, lambda: Ask(vm.vm_id, "change", sets))

    async def power(self, client: httpx2.AsyncClient, vm: ModelVm) -> None:
        await self.change(client, vm, power_state=self.rng.choice(("running", "running", "stopped", "paused")))

    async def grow(self, client: httpx2.AsyncClient, vm: ModelVm) -> None:
        await self.change(client, vm, disk_gib=max(vm.possible("disk_gib")) + self.rng.choice((-1, 1, 1, 2)))

    async def resize(self, client: httpx2.AsyncClient, vm: ModelVm) -> None:
        await self.change(
            client, vm, memory_mib=self.rng.choice((96, 128, 256)), cpu_millicores=self.rng.choice((100, 500))
        )

    async def describe(self, client: httpx2.AsyncClient, vm: ModelVm) -> None:
        await self.change(client, vm, metadata={"number": str(self.rng.randint(0, 9))})

    async def protect(self, client: httpx2.AsyncClient, vm: ModelVm) -> None:
        await self.change(client, vm, termination_protection=self.rng.random() < 0.3)

    async def restart(self, client: httpx2.AsyncClient, vm: ModelVm) -> None:
        await self._ask(client, "POST", "/restart", None, lambda: Ask(vm.vm_id, "restart"))

    async def rebuild(self, client: httpx2.AsyncClient, vm: ModelVm) -> None:
        body = {"discard": self.rng.random() < 0.5}
        await self._ask(client, "POST", "/rebuild", body, lambda: Ask(vm.vm_id, "rebuild"))

    async def undo(self, client: httpx2.AsyncClient, vm: ModelVm) -> None:
        await self._ask(client, "POST", "/rebuild", {"undo": True}, lambda: Ask(vm.vm_id, "undo"))

    async def retry(self, client: httpx2.AsyncClient, vm: ModelVm) -> None:
        await self._ask(client, "POST", "/retry", None, lambda: Ask(vm.vm_id, "retry"))

    async def undelete(self, client: httpx2.AsyncClient, vm: ModelVm) -> None:
        await self._ask(client, "POST", "/undelete", None, lambda: Ask(vm.vm_id, "undelete"))

    async def delete(self, client: httpx2.AsyncClient, vm: ModelVm) -> None:
        grace = self.rng.choice(GRACES)
        await self._ask(client, "DELETE", f"?grace={grace}s", None, lambda: Ask(vm.vm_id, "delete", grace=grace))

    async def _ask(
        self, client: httpx2.AsyncClient, method: str, path: str, body: Any, make: Callable[[], Ask]
    ) -> None:
        """Ask until there is an answer. Each try is a request of its own to the model: any may have come to pass."""
        for _ in range(MOST_TRIES):
            ask = self.model.ask(make())
            what = f"{ask.verb} {ask.sets or ''}{path if '=' in path else ''}"
            self.log.note(self.name, f"asks {what}", ask.vm_id)
            try:
                answer = await client.request(method, f"/v1/vms/{ask.vm_id}{path}", json=body)
            except httpx2.HTTPError as error:
                ask.end("refused" if isinstance(error, httpx2.ConnectError) else "lost")
                self.model.answers[type(error).__name__] += 1
                self.log.note(self.name, f"has no answer to {what}: {type(error).__name__}", ask.vm_id)
            else:
                if self._take(ask, answer):
                    return
            await asyncio.sleep(AGAIN_SECONDS)

    def _take(self, ask: Ask, answer: httpx2.Response) -> bool:
        """Note an answer; return whether it is one to rely on."""
        status = answer.status_code
        self.model.answers[str(status)] += 1
        self.log.note(self.name, f"is answered {status} to {ask.verb} {_words(answer)}", ask.vm_id)
        if status < 300:
            document = answer.json()
            if ask.verb == "delete" and document["quarantine"] is not None:
                ask.destroy_at = datetime.fromisoformat(document["quarantine"]["destroy_at"]).timestamp()
            self.model.answer(ask, document)
            return True
        if status in NOT_DONE:
            ask.end("refused")
            return True
        # A VM may go between the change and the look that is answered: nobody knows.
        ask.end("lost")
        if status == 500:
            self.log.violated(f"the API has failed at {ask.verb}: {answer.text}", ask.vm_id)
        if status in (404, 410):
            self.model.vms[ask.vm_id].told_gone = True
            return True
        return False


def _words(answer: httpx2.Response) -> str:
    document = answer.json()
    if answer.status_code >= 300:
        return str(document.get("detail"))[:160]
    shown = ("generation", "desired_power_state", "phase", "power_state", "restart_generation", "disk_gib")
    return " ".join(f"{name}={document[name]}" for name in shown)


Act = Callable[..., Any]
VERBS: tuple[tuple[str, Act, int], ...] = (
    ("power", User.power, 10),
    ("restart", User.restart, 4),
    ("grow", User.grow, 3),
    ("resize", User.resize, 2),
    ("describe", User.describe, 2),
    ("protect", User.protect, 1),
    ("rebuild", User.rebuild, 2),
    ("undo", User.undo, 2),
    ("retry", User.retry, 1),
    ("delete", User.delete, 4),
    ("undelete", User.undelete, 3),
)


async def read_at(client: httpx2.AsyncClient, vm_id: str) -> tuple[int, dict[str, Any], float]:
    """Read one VM; return status, document and when it was asked for."""
    sent = time.monotonic()
    answer = await client.get(f"/v1/vms/{vm_id}")
    return answer.status_code, answer.json(), sent
