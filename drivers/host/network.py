"""What a VM's network lets through, changed while the VM lives (N-5)."""

from __future__ import annotations

from drivers.host.parts import Parts
from drivers.host.prepare import attempt_of
from drivers.jobs import Job
from drivers.stored import StoredStatus
from model.errors import Superseded
from model.firewall import network_digest
from model.record import HostOrder


class NetworkSteps:
    """Change what VMs' networks let through. Whatever makes a VM's network later goes by the config that is kept."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def set_network(self, job: Job, order: HostOrder) -> None:
        """Take the rules of the order's digest, and have the kernel take them, too, where the VM has its network.

        Raises Superseded when others are wanted by now, Unavailable while the API does not answer.
        """
        vm_id, records = order.vm_id, self._parts.records
        wanted = await self._parts.fetch_input(vm_id, order.input_digest)
        if network_digest(wanted.firewall) != order.network_digest:
            raise Superseded("other rules are wanted by now; look at the row again")
        async with job.locked():
            record = records.status(vm_id).record
            if record.boot_id is None:
                attempt_of(record, order)
            config = records.config(vm_id)
            if config.input.digest != wanted.digest:
                # The rest of it waits for its own step, which may refuse it (L-V8).
                wanted = config.input.model_copy(update={"firewall": wanted.firewall})
            config = config.model_copy(update={"input": wanted})
            await records.write_config(config, job.guard)
            if record.boot_id is not None or (record.create is not None and record.create.booted):
                await self._parts.network.ensure(self._parts.attachment(config), guard=job.guard)

            def change(now: StoredStatus) -> StoredStatus:
                digest = {"network_digest": order.network_digest}
                return now.model_copy(update={"record": now.record.model_copy(update=digest)})

            await records.update(vm_id, change, job.guard)
