"""The seed, read back by pycdlib, and by the demo guest's own reader."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import subprocess
import time
from io import BytesIO
from pathlib import Path

import pycdlib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivers.seed import SeedInput, as_yaml, make_host_key, seed_files, seed_image, write_seed
from model.errors import Fenced, Permanent

READER = Path(__file__).parents[2] / "infra/guest/files/yaml2tree.awk"
PRIVATE, PUBLIC = make_host_key()
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGb0LS+wJ2n8m4V0m1P4K8mDZ0f0m4h8T6s9Y6b2j0Xo me@here"
ONE = SeedInput(
    vm_id="0b8e4b52-0000-4000-8000-000000000001",
    hostname="web-1",
    ssh_authorized_keys=(KEY,),
    user_data=b"#!/bin/sh\necho hi\n",
    mac="52:54:00:AB:cd:ef",
    host_key_private=PRIVATE,
    host_key_public=PUBLIC,
    metadata={"role": "web"},
)
labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def read_back(image: bytes, *, by: str) -> dict[str, bytes]:
    iso = pycdlib.PyCdlib()
    iso.open_fp(BytesIO(image))
    found = {}
    for name in ("meta-data", "user-data", "vendor-data", "network-config"):
        target = BytesIO()
        iso.get_file_from_iso_fp(target, **{by: f"/{name}"})
        found[name] = target.getvalue()
    iso.close()
    return found


def test_each_file_says_what_cloud_init_expects() -> None:
    """L-C10."""
    found = read_back(seed_image(ONE), by="rr_path")
    assert json.loads(found["meta-data"]) == {
        "instance-id": ONE.vm_id,
        "local-hostname": "web-1",
        "public-keys": [KEY],
        "hostler": {"metadata": {"role": "web"}},
    }
    assert found["user-data"] == ONE.user_data
    first, _, rest = found["vendor-data"].partition(b"\n")
    assert first == b"#cloud-config"
    assert json.loads(rest) == {"ssh_keys": {"ed25519_private": PRIVATE, "ed25519_public": PUBLIC}}
    network = json.loads(found["network-config"])
    assert network["ethernets"] == {"nic0": {"match": {"macaddress": "52:54:00:ab:cd:ef"}, "dhcp4": True}}
    assert not {"gateway4", "addresses", "routes"} & set(network["ethernets"]["nic0"])


def test_the_label_is_the_one_that_is_looked_for(tmp_path: Path) -> None:
    """L-C10: by the word of blkid, which a guest asks."""
    path = tmp_path / "seed.iso"
    path.write_bytes(seed_image(ONE))
    found = subprocess.run(["blkid", "-p", "-o", "export", path], capture_output=True, text=True, check=True)
    assert "LABEL=CIDATA" in found.stdout
    assert "TYPE=iso9660" in found.stdout


def test_the_same_input_gives_the_same_bytes() -> None:
    first = seed_image(ONE)
    now = int(time.time())
    while int(time.time()) == now:  # dates in it count in seconds
        pass
    assert seed_image(ONE) == first


def test_without_user_data_the_file_is_there_all_the_same() -> None:
    """NoCloud takes no seed without it."""
    found = read_back(seed_image(dataclasses.replace(ONE, user_data=None)), by="joliet_path")
    assert found["user-data"] == b"#cloud-config\n{}\n"


@settings(max_examples=60, deadline=None)
@given(
    hostname=labels,
    user_data=st.none() | st.binary(max_size=10_000),
    metadata=st.dictionaries(texts, texts, max_size=4),
)
def test_whatever_users_say_survives_verbatim(hostname: str, user_data: bytes | None, metadata: dict[str, str]) -> None:
    """S-21."""
    seed = dataclasses.replace(ONE, hostname=hostname, user_data=user_data, metadata=metadata)
    image = seed_image(seed)
    for by in ("rr_path", "joliet_path"):
        found = read_back(image, by=by)
        assert found == seed_files(seed)
        assert user_data is None or found["user-data"] == user_data
        meta = json.loads(found["meta-data"])
        assert (meta["local-hostname"], meta["hostler"]["metadata"]) == (hostname, metadata)
        assert set(meta) == {"instance-id", "local-hostname", "public-keys", "hostler"}


@given(value=st.recursive(texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=8))
def test_our_json_is_yaml(value: object) -> None:
    """S-21: one line, and only characters that a YAML 1.1 reader takes."""
    written = as_yaml(value)
    assert json.loads(written) == value
    text = written.decode().removesuffix("\n")
    assert all(" " <= c <= "~" or "\xa0" <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" for c in text)
    assert not set(text) & {"\u2028", "\u2029", "\ufeff"}


def test_half_characters_are_refused() -> None:
    with pytest.raises(Permanent):
        as_yaml({"a": "\ud800"})


@pytest.mark.skipif(not READER.exists(), reason="the demo guest's reader is not here")
def test_the_demo_guest_s_reader_reads_the_same(tmp_path: Path) -> None:
    """L-C10: the host key has to arrive byte for byte, or nobody believes the guest."""
    for name, data in seed_files(ONE).items():
        (tmp_path / name).write_bytes(data)
        if name != "user-data":
            tree = tmp_path / f"{name}.tree"
            subprocess.run(["busybox", "awk", "-v", f"root={tree}", "-f", READER, tmp_path / name], check=True)
    vendor = tmp_path / "vendor-data.tree" / "ssh_keys"
    assert (vendor / "ed25519_private").read_text() == PRIVATE
    assert (vendor / "ed25519_public").read_text() == PUBLIC
    meta = tmp_path / "meta-data.tree"
    assert (meta / "local-hostname").read_text() == "web-1"
    assert (meta / "public-keys" / "0000").read_text() == KEY
    card = tmp_path / "network-config.tree" / "ethernets" / "nic0"
    assert (card / "match" / "macaddress").read_text() == "52:54:00:ab:cd:ef"
    assert (card / "dhcp4").read_text() == "true"


def test_secrets_are_in_no_representation() -> None:
    """S-33."""
    assert "PRIVATE KEY" not in repr(ONE)
    assert "echo hi" not in repr(ONE)


def test_ssh_reads_the_host_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(PRIVATE)
    path.chmod(0o600)
    found = subprocess.run(["ssh-keygen", "-y", "-f", path], capture_output=True, text=True, check=True)
    assert found.stdout.split()[:2] == PUBLIC.split()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives the file to another user, so it needs root")
async def test_the_file_belongs_to_its_vm_s_user_alone(tmp_path: Path) -> None:
    """E10, S-42: 0600 while there, nothing beside it."""
    path = tmp_path / "seed.iso"
    (tmp_path / "seed.iso.new.dead").write_bytes(b"half")
    await write_seed(path, b"data", uid=297_200, gid=297_200, guard=lambda: None)
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (297_200, 297_200, 0o600)
    assert [p.name for p in tmp_path.iterdir()] == ["seed.iso"]

    def guard() -> None:
        raise Fenced("newer")

    with pytest.raises(Fenced):
        await write_seed(path, b"other", uid=297_200, gid=297_200, guard=guard)
    assert path.read_bytes() == b"data"


def test_certificate_and_user_cas_are_for_the_guests_ssh(tmp_path: Path) -> None:
    """L-C10: by the key that cloud-init knows, and again at each boot; the CAs trimmed, one per line."""
    certified = dataclasses.replace(ONE, host_certificate="ssh-ed25519-cert X", ssh_user_cas=(f"  {KEY}\n", KEY))
    vendor = json.loads(seed_files(certified)["vendor-data"].partition(b"\n")[2])
    assert vendor["ssh_keys"]["ed25519_certificate"] == "ssh-ed25519-cert X"
    written = {}
    for command in vendor["bootcmd"]:
        *program, path, text = command
        subprocess.run([*program, str(tmp_path / Path(path).name), text], check=True)
        written[path] = (tmp_path / Path(path).name).read_text()
    assert written == {
        "/etc/ssh/ssh_host_ed25519_key-cert.pub": "ssh-ed25519-cert X\n",
        "/etc/ssh/hostler_user_cas": f"{KEY}\n{KEY}\n",
        "/etc/ssh/sshd_config.d/40-hostler.conf": "TrustedUserCAKeys /etc/ssh/hostler_user_cas\n",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(Path(path).name for path in written)
