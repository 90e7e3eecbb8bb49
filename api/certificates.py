"""Signing VMs' host certificates: when a host asks, and later what had to wait or ends soon (S-41, L-C2)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from model.certificate import CLOCK_SKEW, VALID_FOR, HostCertificate, principals
from model.errors import Invalid, NotFound, Unavailable
from runtime.ssh_ca import SshCa
from store.certificate import CertificateStore, Certified, Woken

_log = logging.getLogger("hostler.certificates")


@dataclass
class Certificates:
    """The fleet's host certificates. The authority's key may be away: all but signing goes on without it."""

    store: CertificateStore
    authority: SshCa
    domain: str

    async def establish(self) -> None:
        """Make the authority's key once in the fleet's life: one that was lost is never replaced in silence."""
        if await self.store.find_ca() is None:
            await self.store.keep_ca(await asyncio.to_thread(self.authority.create))

    async def for_host(self, host_id: str, vm_id: str, public_key: str) -> HostCertificate:
        """Return the certificate for the key of a VM that lives on the asking host; sign one if none holds.

        Errors: NotFound, Conflict as the store says; Unavailable while the authority's key is away: the VM's key is
        noted all the same, and its row is woken once it was signed.
        """
        kind, key, *_ = public_key.split()
        if kind != "ssh-ed25519":
            raise Invalid("a host certificate is signed for an ed25519 key only")
        vm = await self.store.claim_key(host_id, vm_id, f"{kind} {key}")
        if vm.newest is not None and not vm.due:
            return vm.newest
        signed = await self._sign(vm)
        if await self.store.keep(vm, signed, wake=False) is None:
            raise NotFound(f"this host has no VM {vm_id}")
        return signed

    async def sign_due(self) -> tuple[Woken, ...]:
        """Sign what is missing or ends soon, and return whom to poke."""
        woken: list[Woken] = []
        for vm in await self.store.list_due():
            kept = await self.store.keep(vm, await self._sign(vm), wake=True)
            if kept is not None:
                woken.append(kept)
        return tuple(woken)

    async def _sign(self, vm: Certified) -> HostCertificate:
        ca = await self.store.find_ca()
        if ca is None:
            raise Unavailable("the fleet has no SSH CA yet: the API makes it at its start")
        serial, now = await self.store.next_serial(), datetime.now(UTC).replace(microsecond=0)
        line = await asyncio.to_thread(
            self.authority.sign_host,
            vm.public_key,
            ca=ca,
            serial=serial,
            key_id=f"vm/{vm.vm_id}",
            principals=principals(vm_id=vm.vm_id, name=vm.name, project=vm.project, domain=self.domain),
            valid_from=now - CLOCK_SKEW,
            valid_until=now + VALID_FOR,
        )
        _log.info("host certificate %s was signed", serial, extra={"vm": vm.vm_id})
        return HostCertificate(serial=serial, certificate=line, valid_until=now + VALID_FOR)
