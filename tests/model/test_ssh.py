"""SSH keys are read and written anew (S-21)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import Invalid
from model.ssh import make_host_key, parse_ssh_key

PUBLIC = make_host_key()[1]
HARDWARE = (
    "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAAAAAABHNzaDo="
)


@pytest.mark.parametrize("kind", [("ed25519",), ("rsa", "-b", "2048"), ("ecdsa", "-b", "256"), ("ecdsa", "-b", "521")])
def test_keys_of_ssh_keygen_are_taken(tmp_path: Path, kind: tuple[str, ...]) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", *kind, "-N", "", "-C", "me@here", "-f", tmp_path / "k"], check=True)
    line = (tmp_path / "k.pub").read_text()
    assert parse_ssh_key(line) == line.strip()


def test_a_key_in_hardware_is_taken_whole_only() -> None:
    assert parse_ssh_key(HARDWARE) == HARDWARE
    with pytest.raises(Invalid, match="damaged"):
        parse_ssh_key(HARDWARE[:60])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        f'command="x" {PUBLIC}',
        f"no-pty {PUBLIC}",
        f"{PUBLIC}\n{PUBLIC}",
        f"{PUBLIC}\x00",
        PUBLIC.replace("ssh-ed25519 ", "ssh-rsa "),
        PUBLIC.replace("ssh-ed25519 ", "ssh-dss "),
        PUBLIC.replace("ssh-ed25519 ", "ssh-ed25519-cert-v01@openssh.com "),
        PUBLIC[:-4],
        "x" * 100_000,
    ],
    ids=range(12),  # the key is another one in each process
)
def test_everything_else_is_refused(text: str) -> None:
    """S-21."""
    with pytest.raises(Invalid):
        parse_ssh_key(text)


def test_a_short_rsa_key_is_refused(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-b", "1024", "-N", "", "-f", tmp_path / "k"], check=True)
    with pytest.raises(Invalid, match="1024 bits"):
        parse_ssh_key((tmp_path / "k.pub").read_text())


@given(comment=st.text(max_size=300))
def test_a_comment_can_do_no_harm(comment: str) -> None:
    """S-21: one line of printable ASCII, whatever the comment was; read again it stays the same."""
    try:
        written = parse_ssh_key(f"{PUBLIC} {comment}")
    except Invalid:
        return
    assert written.startswith(PUBLIC)
    assert written.isascii()
    assert written.isprintable()
    assert len(written.split(" ")) <= 3
    assert parse_ssh_key(written) == written
