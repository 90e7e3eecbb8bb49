"""The fleet's master key and what is derived from it. No backup of Postgres holds it (S-42)."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from model.errors import Permanent, Unreadable

KEY_BYTES = 32
KEY_VERSION = 1
_NONCE_BYTES = 12
_AT_REST_FORMAT = b"\x01"


@dataclass(frozen=True)
class SealingKey:
    """A key of 32 bytes and its version; its repr shows the version alone."""

    version: int
    secret: bytes

    def __repr__(self) -> str:
        return f"SealingKey(version={self.version})"


class MasterKeys:
    """Derive every key of the control plane from one secret: a leaked one tells nothing of the others (RFC 5869)."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise Permanent(
                f"the master key must be {KEY_BYTES} bytes, found {len(secret)}: restore the right key file"
            )
        self._secret = secret
        self._derive = lru_cache(maxsize=4096)(self._derive_uncached)

    def __repr__(self) -> str:
        return "MasterKeys()"

    @classmethod
    def load(cls, path: Path) -> MasterKeys:
        """Read the key file. Errors: Permanent, when there is none, others can read it, or it is no key."""
        try:
            return cls(read_secret(path, KEY_BYTES))
        except FileNotFoundError as error:
            raise Permanent(
                "this state directory has no master key: set HOSTLER_HOME to that of the control plane"
            ) from error

    @classmethod
    def load_or_create(cls, path: Path) -> MasterKeys:
        """Read the key file, or make it once (0600, its folder 0700). An existing file is never written.

        Errors: Permanent, when others can read it or it is no key.
        """
        try:
            return cls(read_secret(path, KEY_BYTES))
        except FileNotFoundError:
            create_secret(path, os.urandom(KEY_BYTES))
            return cls(read_secret(path, KEY_BYTES))

    def host_key(self, host_id: str, version: int = KEY_VERSION) -> bytes:
        """Derive the key that seals orders to, and answers of, one host (S-3)."""
        return self._derive(f"hostler seal host {version} {host_id}")

    def gateway_key(self, host_id: str) -> bytes:
        """Derive the key that seals one host's task tokens (S-7); no host has it."""
        return self._derive(f"hostler gateway tasks {host_id}")

    def control_key(self, version: int = KEY_VERSION) -> bytes:
        """Derive the key that seals what no host takes part in; no host has it."""
        return self._derive(f"hostler seal control {version}")

    def host_sealing_key(self, host_id: str, version: int | None = None) -> SealingKey | None:
        """Look a host's key up for a seal: the version asked for, or the current one; None for one that never was."""
        if version is not None and not 1 <= version <= KEY_VERSION:
            return None
        wanted = version or KEY_VERSION
        return SealingKey(wanted, self.host_key(host_id, wanted))

    def control_sealing_key(self) -> SealingKey:
        """Return the control plane's own key for a seal."""
        return SealingKey(KEY_VERSION, self.control_key())

    def seal_at_rest(self, plaintext: bytes, context: str) -> bytes:
        """Encrypt a secret for a row. `context` (table, column, id) must be the same when it is opened (S-42)."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = AESGCM(self._at_rest_key()).encrypt(nonce, plaintext, context.encode())
        return _AT_REST_FORMAT + nonce + sealed

    def open_at_rest(self, sealed: bytes, context: str) -> bytes:
        """Decrypt what `seal_at_rest` made; raise Unreadable for another key, context or content."""
        if sealed[:1] != _AT_REST_FORMAT:
            raise Unreadable("a stored secret has an unknown format: it needs the release that wrote it")
        nonce, body = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            return AESGCM(self._at_rest_key()).decrypt(nonce, body, context.encode())
        except (InvalidTag, ValueError) as error:
            raise Unreadable("a stored secret does not open: restore the master key that sealed it") from error

    def keyed_digest(self, data: bytes) -> str:
        """Return an HMAC-SHA256 in hexadecimal: equal data can be told, data cannot be guessed from it (S-33)."""
        return hmac.new(self._derive("hostler keyed digest"), data, hashlib.sha256).hexdigest()

    def sign_record(self, data: bytes) -> str:
        """Return an HMAC-SHA256 in hexadecimal that no host can make: what one was given is known again (S-5)."""
        return hmac.new(self._derive("hostler signed record"), data, hashlib.sha256).hexdigest()

    def _at_rest_key(self) -> bytes:
        return self._derive("hostler at rest")

    def _derive_uncached(self, purpose: str) -> bytes:
        return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose.encode()).derive(self._secret)


def read_secret(path: Path, limit_bytes: int) -> bytes:
    """Read a key file, of what is over the limit one byte more; raise Permanent when others can read it too."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or stat.S_IMODE(state.st_mode) & 0o077:
            raise Permanent(
                f"the key file {path.name} must be a file that its owner alone can read: set its mode to 0600"
            )
        return file.read(limit_bytes + 1)


def create_secret(path: Path, secret: bytes) -> None:
    """Make a key file (0600, its folder 0700), durable; one that is there stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
            file.flush()
            os.fsync(descriptor)
        try:
            # A link fails where the name exists, so of two that begin at once one key stays, whole.
            os.link(beside, path)
        except FileExistsError:
            return
    finally:
        beside.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
