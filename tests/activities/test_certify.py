"""The certificate gate on its host: real records; the API is a word of the test (L-C2)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from model.certificate import HostCertificate, principals
from model.errors import Permanent, Unavailable
from runtime.ssh_ca import SshCa
from tests.activities.test_vm import NONE, inventory
from tests.fixtures.host import HostWorld, make_row
from tests.fixtures.processes import SleepingGuests


class Api:
    """Sign as the API does, while it can; remember for which keys it was asked."""

    def __init__(self, authority: SshCa) -> None:
        self.authority = authority
        self.error: Exception | None = None
        self.serial = 1
        self.keys: list[str] = []

    async def fetch(self, vm_id: str, public_key: str) -> HostCertificate:
        self.keys.append(public_key)
        if self.error is not None:
            raise self.error
        now = datetime.now(UTC)
        line = self.authority.sign_host(
            public_key,
            ca=self.authority.public_key(),
            serial=self.serial,
            key_id=vm_id,
            principals=principals(vm_id=vm_id, name=vm_id, project="default", domain="vms.test"),
            valid_from=now,
            valid_until=now + timedelta(days=1),
        )
        return HostCertificate(serial=self.serial, certificate=line, valid_until=now + timedelta(days=1))


@pytest.fixture
def api(tmp_path):
    authority = SshCa(tmp_path / "keys" / "ssh_host_ca")
    authority.create()
    return Api(authority)


@pytest.fixture
async def world(tmp_path, netns, api):
    world = HostWorld(tmp_path, netns, lambda names, boot_id: SleepingGuests(names, tmp_path / "monitors", boot_id))
    world.fetch_certificate = api.fetch
    world.add("vm1")
    await world.restart()
    yield world
    await world.close()


async def certify(world):
    world.pass_number += 1
    return await world.vm.ensure_certificate(world.order("vm1", make_row("vm1"), 1))


def vendor_data(world) -> str:
    return (world.home / "machines/vm1/seed.iso").read_bytes().decode("latin-1")


async def test_the_key_is_made_once_and_waits_for_its_certificate(world, api) -> None:
    """L-C2: one key, whatever is killed or asked again; the wait is told, and is no part of an attempt."""
    api.error = Unavailable("the authority is away")
    view = await certify(world)
    assert view.waiting == "waiting for the host certificate"
    assert view.record is None
    assert view.observed.ssh_host_key == api.keys[0]
    assert (await inventory(world))["files"] == ["vm1/config.json"]
    await world.stop()
    await world.restart()
    api.error = None
    view = await certify(world)
    assert (view.waiting, view.observed.certificate_serial) == (None, 1)
    assert len(set(api.keys)) == 1
    view = await world.run_pass(make_row("vm1"))
    assert view.observed.ssh_host_key == api.keys[0]
    assert view.observed.certificate_serial == 1
    assert "ssh-ed25519-cert-v01@openssh.com" in vendor_data(world)


async def test_the_private_key_stays_on_its_host(world, api) -> None:
    """L-C2, S-42: the API and the pass get the public line alone."""
    view = await certify(world)
    config = json.loads((world.home / "machines/vm1/config.json").read_text())
    private = config["host_key"]["private"].split()[5]
    assert private not in view.model_dump_json() + "".join(api.keys)
    assert api.keys == [config["host_key"]["public"]]


async def test_a_renewed_certificate_reaches_the_seed(world, api) -> None:
    """L-C2: of a VM that runs on; its guest is not touched."""
    await certify(world)
    await world.run_pass(make_row("vm1"))
    before = vendor_data(world)
    api.serial = 2
    row = make_row("vm1", created=True)
    desired = row.desired.model_copy(update={"host_certificate": True, "certificate_serial": 2})
    view = await world.run_pass(row.model_copy(update={"desired": desired}))
    assert view.observed.certificate_serial == 2
    assert view.record.seed_digest == view.record.input_digest
    assert vendor_data(world) != before
    assert world.host.parts.hypervisor.boots == ["vm1"]


async def test_a_certificate_for_another_key_is_not_taken(world, api) -> None:
    """L-C2: whatever the API says, the seed gets what certifies this VM's key, or nothing."""

    async def wrong(vm_id: str, public_key: str) -> HostCertificate:
        return await api.fetch("another", public_key)

    world.host.parts.fetch_certificate = wrong
    with pytest.raises(Unavailable):
        await certify(world)
    assert world.host.parts.records.config("vm1").host_certificate is None


async def test_a_refused_key_is_the_vms_own_fault(world, api) -> None:
    """S-41: it is told, and not tried again for ever."""
    api.error = Permanent("another key was certified before")
    with pytest.raises(Permanent):
        await certify(world)


async def test_a_vm_that_waits_for_its_certificate_goes_without_a_trace(world, api) -> None:
    """L-R5, L-R6: a delete in the wait finds the key alone, and leaves nothing."""
    api.error = Unavailable("the authority is away")
    await certify(world)
    view = await world.run_pass(make_row("vm1", deleted=True, destroying=True))
    assert view.observed.nothing
    assert await inventory(world) == NONE
