"""Host certificates over HTTP: who gets one, what is waited for, what is shown, and what never is (S-41, L-C2)."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    load_ssh_private_key,
    load_ssh_public_identity,
)

from model.errors import Unavailable
from model.ssh import make_host_key
from tests.api.conftest import KEY, Answer, World
from tests.api.test_secrets import logged

__all__ = ["logged"]
PUBLIC, OTHER = make_host_key()[1], make_host_key()[1]


@pytest.fixture
async def host(world: World) -> str:
    """The credential of the host h2."""
    await world.parts.certificates.establish()
    return (await world.add_host(name="h2"))[1]


async def ask(world: World, credential: str, vm_id: str, public_key: str = PUBLIC) -> Answer:
    path = f"/v1/host/vms/{vm_id}/certificate"
    return await world.as_host(credential, "POST", path, json={"public_key": public_key})


def take_away(world: World) -> Path:
    """Move the authority's key where the API does not find it; return where it was."""
    file = world.keys / "ssh_host_ca"
    file.rename(file.with_name("away"))
    return file


async def test_a_host_gets_the_certificate_of_its_own_vm(world: World, host: str) -> None:
    """S-41: the names of the row, once; asked again it is the same one, and the row shows which."""
    vm = await world.create(host="h2", host_certificate=True)
    assert vm["host_certificate"] == {"serial": None, "valid_until": None}
    answer = await ask(world, host, vm["id"], f"{PUBLIC} comment")
    found = load_ssh_public_identity(answer.json()["certificate"].encode())
    assert isinstance(found, SSHCertificate)
    names = [vm["id"], f"{vm['name']}.default.hostler.internal"]
    assert [name.decode() for name in found.valid_principals] == names
    assert (await ask(world, host, vm["id"])).json() == answer.json()
    shown = (await world.call("GET", f"/v1/vms/{vm['id']}")).json()
    assert shown["host_certificate"] == {name: answer.json()[name] for name in ("serial", "valid_until")}
    ca = (await world.call("GET", "/v1/ssh-ca", role="viewer", project="shop")).json()
    assert ca["revoked"] == []
    assert (
        found.signature_key().public_bytes_raw() == load_ssh_public_identity(ca["host_ca"].encode()).public_bytes_raw()
    )


async def test_nobody_else_gets_one(world: World, host: str) -> None:
    """S-41: another key, another host, a VM without, a key that is none."""
    vm = await world.create(host="h2", host_certificate=True)
    plain = await world.create(host="h2")
    assert plain["host_certificate"] is None
    assert (await ask(world, host, vm["id"])).status_code == 200
    assert (await ask(world, host, vm["id"], OTHER)).status_code == 409
    assert (await ask(world, host, plain["id"])).status_code == 409
    assert (await ask(world, host, vm["id"], "ssh-ed25519 x")).status_code == 422
    _, stranger = await world.add_host(name="h3")
    assert (await ask(world, stranger, vm["id"])).status_code == 404
    assert await world.pool.fetchval("select count(*) from host_certificates") == 1


async def test_a_key_that_is_no_ed25519_takes_no_vms_place(world: World, host: str) -> None:
    """S-41: what cannot be certified is not the first key seen."""
    vm = await world.create(host="h2", host_certificate=True)
    key = generate_private_key(SECP256R1()).public_key()
    ecdsa = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    assert (await ask(world, host, vm["id"], ecdsa)).status_code == 422
    assert (await ask(world, host, vm["id"])).status_code == 200


async def test_without_the_authority_the_vm_waits_and_is_woken(world: World, host: str) -> None:
    """L-C2: the key is noted and told to wait for; once the authority is back it is signed and the row is woken."""
    vm = await world.create(host="h2", host_certificate=True)
    file = take_away(world)
    assert (await ask(world, host, vm["id"])).status_code == 503
    with pytest.raises(Unavailable, match="missing"):
        await world.parts.certificates.sign_due()
    await world.parts.certificates.establish()
    assert not file.exists(), "an authority that was lost is never replaced in silence"
    before = await world.pool.fetchval("select wake from vms")
    file.with_name("away").rename(file)
    (woken,) = await world.parts.certificates.sign_due()
    assert (woken.vm_id, woken.pass_type) == (vm["id"], "CreateVm")
    assert await world.pool.fetchval("select wake from vms") == before + 1
    assert await world.parts.certificates.sign_due() == ()
    assert (await ask(world, host, vm["id"])).status_code == 200


async def test_user_cas_are_kept_as_lines(world: World, host: str) -> None:
    """L-C10, S-21: each is read and written anew; what is no key is refused."""
    vm = await world.create(ssh_user_cas=[f"  {KEY}  "])
    assert vm["ssh_user_cas"] == [KEY]
    for wrong in (["x"], [f"cert-authority {KEY}"], [f"{KEY}\n{KEY}"]):
        refused = await world.call("POST", "/v1/vms", json={"name": "x", "image": "demo", "ssh_user_cas": wrong})
        assert refused.status_code == 422


async def test_the_authoritys_key_is_nowhere_but_in_its_file(world: World, host: str, logged: Any) -> None:
    """S-42: in no answer, row or log, whatever goes wrong."""
    key = load_ssh_private_key((world.keys / "ssh_host_ca").read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    seed = key.private_bytes_raw()
    # Base64 of a larger text shows it in one of three alignments.
    secret = [seed.hex(), *(base64.b64encode(seed[shift : shift + 27]).decode() for shift in range(3))]
    assert any(text in "".join((world.keys / "ssh_host_ca").read_text().split()) for text in secret)
    vm = await world.create(host="h2", host_certificate=True)
    answers = [await ask(world, host, vm["id"]), await world.call("GET", "/v1/ssh-ca")]
    file = take_away(world)
    other = await world.create(host="h2", host_certificate=True)
    answers.append(await ask(world, host, other["id"]))
    file.write_bytes(file.with_name("away").read_bytes()[:-40])
    file.chmod(0o600)
    answers += [await ask(world, host, other["id"]), await world.call("GET", f"/v1/vms/{vm['id']}")]
    dump = ""
    for table in await world.pool.fetch("select tablename from pg_tables where schemaname = 'public'"):
        for record in await world.pool.fetch(f'select t::text as text from "{table["tablename"]}" t'):
            dump += record["text"]
    text = "".join(answer.text for answer in answers) + dump + logged()
    assert "ssh-ed25519-cert-v01@openssh.com" in dump
    for form in secret:
        assert form not in text
