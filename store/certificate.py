"""Host certificates: the first key of a VM, what was signed for it, what is revoked (S-41)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import asyncpg

from model.certificate import RENEW_BEFORE, HostCertificate
from model.errors import Conflict, NotFound
from model.passes import PassType
from store.audit import Actor, write_audit
from store.change import WAKE, pass_type_of
from store.database import reading, transaction

if TYPE_CHECKING:
    from store.database import Connection, Pool

_SELECT = """
select v.id, v.project, v.name, v.host_id, v.certified_key, v.spec -> 'host_certificate' as required,
    c.serial, c.certificate, c.valid_until, coalesce(c.valid_until < now() + $1, true) as due
from vms v left join host_certificates c on c.serial = v.certificate_serial
"""


@dataclass(frozen=True)
class Certified:
    """A VM with the key that its certificates are for, and the newest one. `due`: another one is to be signed."""

    vm_id: str
    project: str
    name: str
    host_id: str
    public_key: str
    newest: HostCertificate | None
    due: bool


@dataclass(frozen=True)
class Revoked:
    """A certificate that counts no more, although it may not have ended yet."""

    serial: int
    public_key: str
    valid_until: datetime


@dataclass(frozen=True)
class Woken:
    """A VM whose host has a certificate to fetch, and the pass that its row calls for."""

    vm_id: str
    pass_type: PassType
    host_id: str


class CertificateStore:
    """What was certified. No private key is ever here."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def find_ca(self) -> str | None:
        """Return the host CA's public key, once there is one."""
        async with reading(self._pool) as connection:
            found: str | None = await connection.fetchval("select public_key from ssh_cas where kind = 'host'")
        return found

    async def keep_ca(self, public_key: str) -> None:
        """Write down the host CA's public key; one that is there already stays."""
        async with transaction(self._pool) as connection:
            await connection.execute(
                "insert into ssh_cas (kind, public_key) values ('host', $1) on conflict do nothing", public_key
            )

    async def claim_key(self, host_id: str, vm_id: str, public_key: str) -> Certified:
        """Take the first key that a VM's host names for it; the same one again is fine, another one is a Conflict.

        Raise NotFound unless the VM's row names this host, Conflict for a VM that wants no certificate.
        """
        async with transaction(self._pool) as connection:
            await connection.execute(
                """update vms set certified_key = $3 where id = $1 and host_id = $2 and not destroying
                    and certified_key is null and (spec -> 'host_certificate')::boolean""",
                vm_id,
                host_id,
                public_key,
            )
            record = await connection.fetchrow(
                _SELECT + " where v.id = $2 and v.host_id = $3 and not v.destroying", RENEW_BEFORE, vm_id, host_id
            )
        if record is None:
            raise NotFound(f"this host has no VM {vm_id}")
        if not record["required"]:
            raise Conflict("the VM was made without a host certificate: none is signed for it")
        if record["certified_key"] != public_key:
            raise Conflict(
                "another host key was certified for this VM before, and a VM has one for its life: look why its host "
                "shows another one; to give it a new key, delete the VM and make it again"
            )
        return _certified(record)

    async def list_due(self, *, limit: int = 100) -> tuple[Certified, ...]:
        """List VMs whose key is known and whose certificate is missing or ends soon, the longest waiting first."""
        async with reading(self._pool) as connection:
            records = await connection.fetch(
                _SELECT
                + """ where v.certified_key is not null and not v.deleted
                    and coalesce(c.valid_until < now() + $1, true)
                order by c.valid_until nulls first, v.id limit $2""",
                RENEW_BEFORE,
                limit,
            )
        return tuple(map(_certified, records))

    async def next_serial(self) -> int:
        """Draw a serial number; one that is not used is lost."""
        async with reading(self._pool) as connection:
            drawn: int = await connection.fetchval("select nextval('host_certificate_serial')")
        return drawn

    async def keep(self, vm: Certified, signed: HostCertificate, *, wake: bool) -> Woken | None:
        """Write down what was signed, only while row, host and key are still those it was signed for; else None.

        wake: the VM's host is not asking right now, and has to come for it.
        """
        async with transaction(self._pool) as connection:
            row = await connection.fetchrow(
                """select deleted, first_ready_at from vms
                where id = $1 and host_id = $2 and certified_key = $3 and not destroying for update""",
                vm.vm_id,
                vm.host_id,
                vm.public_key,
            )
            if row is None:
                return None
            await connection.execute(
                """insert into host_certificates (serial, vm_id, host_id, public_key, certificate, valid_until)
                values ($1, $2, $3, $4, $5, $6)""",
                signed.serial,
                vm.vm_id,
                vm.host_id,
                vm.public_key,
                signed.certificate,
                signed.valid_until,
            )
            await connection.execute(
                f"""update vms set certificate_serial = greatest(certificate_serial, $2){f", {WAKE}" if wake else ""}
                where id = $1""",
                vm.vm_id,
                signed.serial,
            )
            await write_audit(
                connection,
                Actor(f"host/{vm.host_id}"),
                project=vm.project,
                action="certificate.sign",
                subject=f"vm/{vm.vm_id}",
                after={"serial": signed.serial, "valid_until": signed.valid_until.isoformat()},
            )
        kind = pass_type_of(row)
        return Woken(vm.vm_id, kind, vm.host_id)

    async def list_revoked(self) -> tuple[Revoked, ...]:
        """List what is revoked and would count otherwise; what has ended needs no list."""
        async with reading(self._pool) as connection:
            records = await connection.fetch(
                """select serial, public_key, valid_until from host_certificates
                where revoked_at is not null and valid_until > now() order by serial"""
            )
        return tuple(Revoked(record["serial"], record["public_key"], record["valid_until"]) for record in records)


async def revoke_certificates(connection: Connection, vm_id: str) -> None:
    """Revoke all that was signed for a VM, in the transaction of whoever makes it gone."""
    await connection.execute(
        "update host_certificates set revoked_at = now() where vm_id = $1 and revoked_at is null", vm_id
    )


def _certified(record: asyncpg.Record) -> Certified:
    newest = (
        HostCertificate(serial=record["serial"], certificate=record["certificate"], valid_until=record["valid_until"])
        if record["serial"] is not None
        else None
    )
    return Certified(
        vm_id=record["id"],
        project=record["project"],
        name=record["name"],
        host_id=record["host_id"],
        public_key=record["certified_key"],
        newest=newest,
        due=record["due"],
    )
