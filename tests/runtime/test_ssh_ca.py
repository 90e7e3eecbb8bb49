"""The SSH CA's key file, and what OpenSSH makes of what is signed (S-41, S-42)."""

from __future__ import annotations

import os
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from model.certificate import principals
from model.errors import Invalid, Unavailable
from model.ssh import check_host_certificate, make_host_key
from runtime.ssh_ca import SshCa

NOW = datetime.now(UTC).replace(microsecond=0)
PUBLIC = make_host_key()[1]
NAMES = principals(vm_id="vm-1", name="web", project="shop", domain="vms.test")


@pytest.fixture
def authority(tmp_path: Path) -> SshCa:
    authority = SshCa(tmp_path / "keys" / "ssh_host_ca")
    authority.create()
    return authority


def sign(authority: SshCa, public_key: str = PUBLIC, **changed: Any) -> str:
    options = {
        "ca": authority.public_key(),
        "serial": 7,
        "key_id": "vm/vm-1",
        "principals": NAMES,
        "valid_from": NOW,
        "valid_until": NOW + timedelta(days=1),
        **changed,
    }
    return authority.sign_host(public_key, **options)


def test_the_key_is_made_once_for_its_owner_alone(authority: SshCa, tmp_path: Path) -> None:
    """S-42."""
    file = tmp_path / "keys" / "ssh_host_ca"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    assert authority.create() == authority.public_key()
    assert file.read_bytes() == before
    assert "PRIVATE" not in repr(authority)


def test_openssh_reads_what_was_signed(authority: SshCa, tmp_path: Path) -> None:
    """S-41: a host certificate with serial and end; its names are the id and the whole name, never a bare one."""
    file = tmp_path / "host-cert.pub"
    file.write_text(sign(authority) + "\n")
    told = subprocess.run(["ssh-keygen", "-L", "-f", file], capture_output=True, text=True, check=True).stdout
    lines = [line.strip() for line in told.splitlines()]
    assert "Type: ssh-ed25519-cert-v01@openssh.com host certificate" in lines
    assert "Serial: 7" in lines
    names = lines[lines.index("Principals:") + 1 : lines.index("Critical Options: (none)")]
    assert names == ["vm-1", "web.shop.vms.test"]
    assert any(line.startswith("Valid: from ") and "forever" not in line for line in lines)


@pytest.mark.parametrize("fault", ["missing", "open", "garbage", "another"])
def test_without_the_right_key_nothing_is_signed(authority: SshCa, tmp_path: Path, fault: str) -> None:
    """L-C2, S-41: an authority that is away is waited for; one that was put in its place signs nothing."""
    file, ca = tmp_path / "keys" / "ssh_host_ca", authority.public_key()
    right = file.read_bytes()
    if fault == "missing":
        file.rename(tmp_path / "away")
    elif fault == "open":
        file.chmod(0o644)
    else:
        file.write_bytes(make_host_key()[0].encode() if fault == "another" else b"locked")
    with pytest.raises(Unavailable) as raised:
        sign(authority, ca=ca)
    assert "PRIVATE" not in str(raised.value)
    file.write_bytes(right)
    file.chmod(0o600)
    assert sign(authority, ca=ca)


def test_a_host_takes_only_what_certifies_its_key(authority: SshCa) -> None:
    """L-C2: one line, this key, this VM; nothing else gets into a seed."""
    good = sign(authority)
    check_host_certificate(good, PUBLIC, "vm-1")
    other = make_host_key()[1]
    for text, key, name in (
        (good, other, "vm-1"),
        (good, PUBLIC, "web"),
        (good + "\n", PUBLIC, "vm-1"),
        (PUBLIC, PUBLIC, "vm-1"),
        ("x", PUBLIC, "vm-1"),
    ):
        with pytest.raises(Unavailable):
            check_host_certificate(text, key, name)


def test_only_ed25519_keys_are_signed(authority: SshCa, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", tmp_path / "ecdsa"], check=True)
    with pytest.raises(Invalid):
        sign(authority, " ".join((tmp_path / "ecdsa.pub").read_text().split()[:2]))


@pytest.mark.skipif(os.geteuid() != 0, reason="takes the file from root by a folder in its way")
def test_a_key_that_cannot_be_made_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("in the way")
    with pytest.raises(Unavailable):
        SshCa(tmp_path / "keys" / "ssh_host_ca").create()
