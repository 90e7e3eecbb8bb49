"""What is signed for a VM, once, for whom, and until when (S-41)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from model.certificate import HostCertificate
from model.errors import Conflict, NotFound
from model.passes import ClaimRequest, PassRef
from store.certificate import CertificateStore
from store.database import Pool
from store.passes import PassStore
from tests.fixtures.rows import add_host, add_vm, vm_spec

KEY, OTHER = "ssh-ed25519 AAAA", "ssh-ed25519 BBBB"
WANTED = vm_spec(host_certificate=True).model_dump(mode="json")


@pytest.fixture
def certificates(pool: Pool) -> CertificateStore:
    return CertificateStore(pool)


async def sign(
    certificates: CertificateStore, host_id: str, vm_id: str, *, days: float = 365, wake: bool = False
) -> int:
    claimed = await certificates.claim_key(host_id, vm_id, KEY)
    serial = await certificates.next_serial()
    valid_until = datetime.now(UTC) + timedelta(days=days)
    signed = HostCertificate(serial=serial, certificate=f"cert {serial}", valid_until=valid_until)
    assert await certificates.keep(claimed, signed, wake=wake) is not None
    return serial


async def read(pool: Pool, vm_id: str) -> dict[str, Any]:
    return dict(await pool.fetchrow("select * from vms where id = $1", vm_id))


async def test_only_the_first_key_of_a_vm_is_ever_certified(pool: Pool, certificates: CertificateStore) -> None:
    """S-41: the same key again is fine, another one is refused for the VM's whole life."""
    host_id = await add_host(pool)
    vm_id = await add_vm(pool, host_id, spec=WANTED)
    assert (await certificates.claim_key(host_id, vm_id, KEY)).due
    await sign(certificates, host_id, vm_id)
    again = await certificates.claim_key(host_id, vm_id, KEY)
    assert not again.due
    assert again.newest is not None
    with pytest.raises(Conflict, match="another host key"):
        await certificates.claim_key(host_id, vm_id, OTHER)
    assert (await read(pool, vm_id))["certified_key"] == KEY


async def test_only_the_host_of_the_row_gets_a_certificate(pool: Pool, certificates: CertificateStore) -> None:
    """S-41: another host's VM is as unknown as one that never was; a VM that wants none gets none."""
    mine, other = await add_host(pool), await add_host(pool)
    vm_id = await add_vm(pool, mine, spec=WANTED)
    for vm in (vm_id, "nobody"):
        with pytest.raises(NotFound):
            await certificates.claim_key(other, vm, KEY)
    plain = await add_vm(pool, mine, spec=vm_spec().model_dump(mode="json"))
    with pytest.raises(Conflict, match="without a host certificate"):
        await certificates.claim_key(mine, plain, KEY)
    assert [(await read(pool, vm))["certified_key"] for vm in (vm_id, plain)] == [None, None]


async def test_what_ends_soon_is_due_and_wakes_its_vm(pool: Pool, certificates: CertificateStore) -> None:
    """L-C2: a certificate that arrives later wakes the row; one that a host has asked for does not."""
    host_id = await add_host(pool)
    vm_id = await add_vm(pool, host_id, spec=WANTED)
    await add_vm(pool, host_id, spec=WANTED)  # its key is not known yet
    await certificates.claim_key(host_id, vm_id, KEY)
    assert [each.vm_id for each in await certificates.list_due()] == [vm_id]
    old = await sign(certificates, host_id, vm_id, days=59)
    before = (await read(pool, vm_id))["wake"]
    assert [each.vm_id for each in await certificates.list_due()] == [vm_id]
    new = await sign(certificates, host_id, vm_id, wake=True)
    row = await read(pool, vm_id)
    assert (row["certificate_serial"], row["wake"] - before) == (new, 1)
    assert new > old
    assert await certificates.list_due() == ()


async def test_nothing_is_kept_for_a_row_that_moved_on(pool: Pool, certificates: CertificateStore) -> None:
    """S-41: what was signed while the VM went away is no certificate of anybody."""
    host_id = await add_host(pool)
    vm_id = await add_vm(pool, host_id, spec=WANTED)
    claimed = await certificates.claim_key(host_id, vm_id, KEY)
    await pool.execute("update vms set destroying = true where id = $1", vm_id)
    signed = HostCertificate(serial=1, certificate="cert", valid_until=datetime.now(UTC) + timedelta(days=1))
    assert await certificates.keep(claimed, signed, wake=True) is None
    assert await pool.fetchval("select count(*) from host_certificates") == 0


async def test_the_certificates_of_a_destroyed_vm_are_revoked(pool: Pool, certificates: CertificateStore) -> None:
    """S-41: in the transaction that releases the row; others stay."""
    host_id = await add_host(pool)
    vm_id, stays = [await add_vm(pool, host_id, spec=WANTED) for _ in range(2)]
    serials = [await sign(certificates, host_id, vm_id) for _ in range(2)]
    await sign(certificates, host_id, stays)
    await pool.execute("update vms set destroying = true where id = $1", vm_id)
    passes = PassStore(pool)
    row = await passes.claim(ClaimRequest(vm_id=vm_id, run_id="run"))
    assert row is not None
    assert await passes.record_gone(PassRef(vm_id=vm_id, pass_number=row.status.pass_number))
    assert [(each.serial, each.public_key) for each in await certificates.list_revoked()] == [
        (serial, KEY) for serial in serials
    ]
