"""The master key's file and what is derived from it (S-3, S-33, S-42)."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import Permanent, Unreadable
from runtime.keys import MasterKeys

KEYS = MasterKeys(bytes(32))


def test_the_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    """S-42: 0600 in a folder 0700; a second start reads the same key and writes nothing."""
    path = tmp_path / "keys" / "master.key"
    first = MasterKeys.load_or_create(path)
    written = path.stat()
    assert stat.S_IMODE(written.st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert MasterKeys.load_or_create(path).host_key("a") == first.host_key("a")
    assert path.stat().st_mtime_ns == written.st_mtime_ns
    assert [each.name for each in path.parent.iterdir()] == ["master.key"]


def test_several_that_start_at_once_get_one_key(tmp_path: Path) -> None:
    """S-42: API and control worker may both be the first."""
    path = tmp_path / "master.key"
    found: list[bytes] = []
    start = threading.Barrier(8)

    def make() -> None:
        start.wait()
        found.append(MasterKeys.load_or_create(path).host_key("a"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.mark.parametrize("fault", ["open", "short", "long", "link"])
def test_a_wrong_file_is_refused_and_kept(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "master.key"
    content = {"open": bytes(32), "short": bytes(31), "long": bytes(33), "link": bytes(32)}[fault]
    target = tmp_path / "elsewhere" if fault == "link" else path
    target.write_bytes(content)
    target.chmod(0o644 if fault == "open" else 0o600)
    if fault == "link":
        path.symlink_to(target)
    with pytest.raises((Permanent, OSError)):
        MasterKeys.load_or_create(path)
    assert target.read_bytes() == content


def test_no_two_purposes_share_a_key() -> None:
    """S-3, S-7: hosts, the control plane and the rows' secrets each have their own, and each host's task tokens."""
    keys = {KEYS.host_key("a"), KEYS.host_key("b"), KEYS.host_key("a", 2), KEYS.control_key()}
    assert len(keys | {KEYS.gateway_key("a"), KEYS.gateway_key("b")}) == 6
    assert KEYS.host_sealing_key("a", 2) is None
    assert KEYS.host_sealing_key("a", 0) is None
    assert "secret" not in repr(KEYS.control_sealing_key())


@given(st.binary(max_size=200), st.text(max_size=20), st.text(max_size=20))
def test_a_stored_secret_opens_in_its_own_place_alone(plain: bytes, context: str, other: str) -> None:
    """S-42: context is bound in."""
    context, other = context.encode(errors="replace").decode(), other.encode(errors="replace").decode()
    sealed = KEYS.seal_at_rest(plain, context)
    assert KEYS.open_at_rest(sealed, context) == plain
    assert len(plain) < 4 or plain not in sealed
    if other != context:
        with pytest.raises(Unreadable):
            KEYS.open_at_rest(sealed, other)
    for spoilt in (b"", sealed[:10], b"\x02" + sealed[1:], sealed[:-1] + bytes([sealed[-1] ^ 1])):
        with pytest.raises(Unreadable):
            KEYS.open_at_rest(spoilt, context)


def test_a_digest_needs_the_key() -> None:
    """S-33: the same data under another master key has another digest."""
    assert KEYS.keyed_digest(b"user-data") == KEYS.keyed_digest(b"user-data")
    assert KEYS.keyed_digest(b"user-data") != MasterKeys(b"x" * 32).keyed_digest(b"user-data")
