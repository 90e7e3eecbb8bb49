"""SSH keys as text: read, checked, and written anew (S-21)."""

from __future__ import annotations

import base64
import binascii
import re

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    SSHCertificate,
    SSHCertificateType,
    load_ssh_public_identity,
    load_ssh_public_key,
)

from model.errors import Invalid, Unavailable

MIN_RSA_BITS = 2048
_MAX_LENGTH = 16_384
_NO_COMMENT = re.compile(r"[^A-Za-z0-9@._+-]", re.ASCII)
_PLAIN = frozenset({"ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"})
# Keys in hardware: cryptography does not read these, so the fields are checked here (PROTOCOL.u2f of OpenSSH).
_HARDWARE = {"sk-ssh-ed25519@openssh.com": 3, "sk-ecdsa-sha2-nistp256@openssh.com": 4}


def parse_ssh_key(text: str) -> str:
    """Read one public key as in an authorized_keys file and write it anew: type, key, and a plain comment.

    Raises Invalid for options, more than one line, an unknown type or a key that is no key; its text is not repeated.
    """
    line = text.strip(" \t\r\n")
    if not line or len(line) > _MAX_LENGTH or any(c < " " for c in line.replace("\t", " ")):
        raise Invalid("an SSH key must be one line, as in a .pub file")
    words = line.split()
    if words[0] not in _PLAIN and words[0] not in _HARDWARE:
        raise Invalid("an SSH key must begin with its type (like ssh-ed25519), without options; no DSA, no certificate")
    if len(words) < 2:
        raise Invalid(f"the SSH key of type {words[0]} lacks its key")
    key = _written_anew(words[0], words[1])
    comment = _NO_COMMENT.sub("_", "_".join(words[2:]))[:100]
    return f"{key} {comment}" if comment else key


def make_host_key() -> tuple[str, str]:
    """Make an ed25519 key; give it in OpenSSH's private form, and its public line."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return private, public


def check_host_certificate(text: str, public_key: str, principal: str) -> None:
    """Raise Unavailable unless `text` is one line that certifies `public_key` as the host `principal`."""
    refused = Unavailable("the API's host certificate is not for this VM's key: API and host may be too far apart")
    try:
        found = load_ssh_public_identity(text.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise refused from error
    if "\n" in text or not isinstance(found, SSHCertificate) or found.type is not SSHCertificateType.HOST:
        raise refused
    key = found.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    if key != public_key or principal.encode() not in found.valid_principals:
        raise refused


def _written_anew(kind: str, encoded: str) -> str:
    refused = Invalid(f"the SSH key of type {kind} is damaged; give the whole line of the .pub file")
    try:
        blob = base64.b64decode(encoded, validate=True)
        if kind in _HARDWARE:
            fields = _fields(blob)
            if len(fields) != _HARDWARE[kind] or fields[0] != kind.encode():
                raise refused
            return f"{kind} {base64.b64encode(blob).decode()}"
        key = load_ssh_public_key(f"{kind} {encoded}".encode())
    except (ValueError, UnsupportedAlgorithm, binascii.Error) as error:
        raise refused from error
    if isinstance(key, RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        raise Invalid(f"the SSH key has {key.key_size} bits; RSA keys need {MIN_RSA_BITS}, or make an ed25519 key")
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def _fields(blob: bytes) -> list[bytes]:
    """Split a key into its length-prefixed fields (RFC 4251, string); ValueError when they do not fit."""
    fields: list[bytes] = []
    offset = 0
    while offset < len(blob):
        end = offset + 4 + int.from_bytes(blob[offset : offset + 4], "big")
        if end > len(blob):
            raise ValueError(end)
        fields.append(blob[offset + 4 : end])
        offset = end
    return fields
