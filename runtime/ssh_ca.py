"""An SSH certificate authority. Its private key is a file beside the master key, and nowhere else (S-41, S-42)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificateBuilder,
    SSHCertificateType,
    load_ssh_private_key,
    load_ssh_public_key,
)

from model.errors import Invalid, Permanent, Unavailable
from model.ssh import make_host_key
from runtime.keys import create_secret, read_secret

_LIMIT_BYTES = 4096


class SshCa:
    """Sign host certificates. The key is read each time, so that one that is put back counts at once. Blocks."""

    def __init__(self, key_file: Path) -> None:
        self._file = key_file

    def __repr__(self) -> str:
        return "SshCa()"

    def create(self) -> str:
        """Make the key unless its file is there, and return its public line."""
        try:
            if not self._file.exists():
                create_secret(self._file, make_host_key()[0].encode())
        except OSError as error:
            raise Unavailable(f"the SSH CA's key {self._file.name} cannot be made: {error.strerror}") from error
        return self.public_key()

    def public_key(self) -> str:
        """Return the public line; raise Unavailable while there is no key that can be read."""
        return _public_line(self._key().public_key())

    def sign_host(
        self,
        public_key: str,
        *,
        ca: str,
        serial: int,
        key_id: str,
        principals: Sequence[str],
        valid_from: datetime,
        valid_until: datetime,
    ) -> str:
        """Sign a certificate for a host's ed25519 key and return its line.

        ca: the public line that the key must have. Errors: Unavailable without the right key, Invalid.
        """
        key = self._key()
        if _public_line(key.public_key()) != ca:
            raise Unavailable("the SSH CA's key is another than the one that certificates are checked by: restore it")
        subject = load_ssh_public_key(public_key.encode())
        if not isinstance(subject, Ed25519PublicKey):
            raise Invalid("a host certificate is signed for an ed25519 key only")
        builder = (
            SSHCertificateBuilder()
            .public_key(subject)
            .serial(serial)
            .type(SSHCertificateType.HOST)
            .key_id(key_id.encode())
            .valid_principals([principal.encode() for principal in principals])
            .valid_after(int(valid_from.timestamp()))
            .valid_before(int(valid_until.timestamp()))
        )
        return builder.sign(key).public_bytes().decode()

    def _key(self) -> Ed25519PrivateKey:
        try:
            key = load_ssh_private_key(read_secret(self._file, _LIMIT_BYTES), password=None)
        except FileNotFoundError as error:
            raise Unavailable(f"the SSH CA's key {self._file.name} is missing: restore it from its backup") from error
        except Permanent as error:
            raise Unavailable(error.detail) from error
        except (OSError, ValueError, TypeError) as error:
            raise Unavailable(f"the SSH CA's key {self._file.name} cannot be read: restore or unlock it") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise Unavailable(f"the SSH CA's key {self._file.name} is no ed25519 key: restore it")
        return key


def _public_line(key: Ed25519PublicKey) -> str:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
