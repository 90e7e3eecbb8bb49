"""The host certificate of a VM: its key is made once and stays here, its public line is what is certified (L-C2)."""

from __future__ import annotations

from drivers.host.parts import Parts
from drivers.host.prepare import PrepareSteps
from drivers.jobs import Job
from drivers.stored import StoredConfig, StoredHostCertificate, StoredStatus
from model.errors import NotFound, Unavailable, Unreadable
from model.record import HostOrder
from model.ssh import check_host_certificate

WAITING = "waiting for the host certificate"


class CertifySteps:
    """Ask for host certificates."""

    def __init__(self, parts: Parts, prepare: PrepareSteps) -> None:
        self._parts = parts
        self._prepare = prepare

    async def certify(self, job: Job, order: HostOrder) -> str | None:
        """Make the VM's host key durable, then fetch its certificate; the text of L-G10 while there is none.

        This is no part of an attempt: nothing is made but the VM's configuration.
        """
        vm_id = order.vm_id
        config = await self._ensure_key(job, order)
        try:
            signed = await self._parts.fetch_certificate(vm_id, config.host_key.public)
        except Unavailable:
            return WAITING
        check_host_certificate(signed.certificate, config.host_key.public, vm_id)
        kept = StoredHostCertificate(serial=signed.serial, text=signed.certificate)
        async with job.locked():
            now = self._parts.records.config(vm_id)
            await self._forget_seed(job, vm_id)
            await self._parts.records.write_config(now.model_copy(update={"host_certificate": kept}), job.guard)
        return None

    async def _ensure_key(self, job: Job, order: HostOrder) -> StoredConfig:
        entry = self._parts.records.find(order.vm_id)
        if entry is not None and entry.unreadable:
            raise Unreadable(entry.unreadable)
        if entry is not None and entry.config is not None:
            return entry.config
        wanted = await self._parts.fetch_input(order.vm_id, order.input_digest)
        async with job.locked():
            return await self._prepare.record_config(job, wanted, entry)

    async def _forget_seed(self, job: Job, vm_id: str) -> None:
        """Say first that the seed is not what it should be: whatever is cut off now, it is written anew."""

        def change(status: StoredStatus) -> StoredStatus:
            return status.model_copy(update={"record": status.record.model_copy(update={"seed_digest": None})})

        try:
            await self._parts.records.update(vm_id, change, job.guard)
        except NotFound:
            return  # no attempt has begun: there is no seed
