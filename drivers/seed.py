"""The seed of a guest: a small disk in cloud-init's NoCloud form (L-C10).

    meta-data       instance id, hostname, SSH keys, and what the user says of the VM
    user-data       the user's, byte for byte
    vendor-data     the guest's SSH host key, its certificate and the user CAs, as cloud-config
    network-config  which card asks for an address by DHCP

User-data may be a script, cloud-config or anything else, so nothing of ours goes in there: SSH keys come by meta-data
and the host key by vendor-data, both of which cloud-init merges with it. Everything of ours is JSON, which is YAML.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import pycdlib

from drivers.durable import remove_leftovers, write_durably
from drivers.threads import in_thread
from model.errors import Permanent
from model.ssh import make_host_key

__all__ = ["SeedInput", "make_host_key", "seed_image", "write_seed"]

MAX_SEED_BYTES = 32 << 20
_BLOCK = 2048
_HEADER = b"#cloud-config\n"
# Characters that JSON leaves as they are and YAML takes for line breaks, or for no text at all (YAML 1.1, 5.1).
_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_NAMES = {"META_DAT": "meta-data", "USER_DAT": "user-data", "VEND_DAT": "vendor-data", "NET_CONF": "network-config"}
# Arguments: the file, its text. Beside and renamed, so that a guest killed meanwhile finds the old one whole.
_WRITE = ["sh", "-c", 'umask 022; printf "%s\\n" "$2" >"$1.new" && mv "$1.new" "$1"', "hostler"]
_DATE = bytes((80, 1, 1, 0, 0, 0, 0))  # 1980-01-01: the same input gives the same bytes
_LONG_DATE = b"1980010100000000\0"


@dataclass(frozen=True)
class SeedInput:
    """What a guest is told of itself. user_data and host_key_private are secrets and never shown.

    host_key_private: in OpenSSH's form; host_key_public, host_certificate and each user CA: one line. mac: of the card
    on the host's network.
    """

    vm_id: str
    hostname: str
    ssh_authorized_keys: tuple[str, ...]
    user_data: bytes | None = field(repr=False)
    mac: str
    host_key_private: str = field(repr=False)
    host_key_public: str
    host_certificate: str | None = None
    ssh_user_cas: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])


def seed_image(seed: SeedInput) -> bytes:
    """Make the seed as an ISO 9660 image with Joliet and Rock Ridge, labelled CIDATA; pure."""
    files = seed_files(seed)
    if sum(map(len, files.values())) > MAX_SEED_BYTES:
        raise Permanent(f"the seed would be larger than {MAX_SEED_BYTES >> 20} MiB; shorten the user-data")
    iso = pycdlib.PyCdlib()  # type: ignore[no-untyped-call]
    iso.new(interchange_level=1, vol_ident="CIDATA", joliet=3, rock_ridge="1.09")
    for short, name in _NAMES.items():
        data = files[name]
        iso.add_fp(BytesIO(data), len(data), f"/{short}.;1", rr_name=name, joliet_path=f"/{name}", file_mode=0o100400)
    target = BytesIO()
    iso.write_fp(target)
    iso.close()
    return _without_dates(bytearray(target.getvalue()))


def seed_files(seed: SeedInput) -> dict[str, bytes]:
    """Give the content of each file of the seed."""
    meta_data = {
        "instance-id": seed.vm_id,
        "local-hostname": seed.hostname,
        "public-keys": list(seed.ssh_authorized_keys),
        "hostler": {"metadata": dict(seed.metadata)},
    }
    keys = {"ed25519_private": seed.host_key_private, "ed25519_public": seed.host_key_public}
    if seed.host_certificate is not None:
        keys["ed25519_certificate"] = seed.host_certificate
    card = {"match": {"macaddress": seed.mac.lower()}, "dhcp4": True}
    return {
        "meta-data": as_yaml(meta_data),
        "user-data": _HEADER + b"{}\n" if seed.user_data is None else seed.user_data,
        "vendor-data": _HEADER + as_yaml({"ssh_keys": keys, **_every_boot(seed)}),
        "network-config": as_yaml({"version": 2, "ethernets": {"nic0": card}}),
    }


def _every_boot(seed: SeedInput) -> dict[str, list[list[str]]]:
    """Give the commands that bring a renewed certificate and the user CAs to sshd, which starts after them.

    cloud-init reads `ssh_keys` once in an instance's life, `bootcmd` at each boot.
    """
    commands: list[list[str]] = []
    if seed.host_certificate is not None:
        commands.append([*_WRITE, "/etc/ssh/ssh_host_ed25519_key-cert.pub", seed.host_certificate])
    if seed.ssh_user_cas:
        cas = "\n".join(ca.strip() for ca in seed.ssh_user_cas)
        commands.append([*_WRITE, "/etc/ssh/hostler_user_cas", cas])
        configuration = "TrustedUserCAKeys /etc/ssh/hostler_user_cas"
        commands.append([*_WRITE, "/etc/ssh/sshd_config.d/40-hostler.conf", configuration])
    return {"bootcmd": commands} if commands else {}


def as_yaml(value: object) -> bytes:
    """Write JSON that every YAML reader takes for the same (no escape of half a character, no odd line break)."""
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    text = _NOT_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError as error:
        raise Permanent("a text of the VM holds half a character; write it in whole ones") from error


async def write_seed(path: Path, data: bytes, *, uid: int | None, gid: int | None, guard: Callable[[], None]) -> None:
    """Write the seed beside its place and rename it, readable by its VM's user only (S-42); None: this process' own."""
    guard()
    await in_thread(lambda: remove_leftovers(path.parent, of=path.name))
    guard()
    await in_thread(lambda: write_durably(path, data, mode=0o600, uid=uid, gid=gid))


def _without_dates(image: bytearray) -> bytes:
    """Set every date in the image to the same one; ECMA-119, 8.4 and 9.1, and Rock Ridge 4.1.6 (TF)."""
    sector = 16
    while (kind := image[sector * _BLOCK]) != 255:
        start = sector * _BLOCK
        if kind in (1, 2):
            for offset in (813, 830, 847, 864):
                image[start + offset : start + offset + 17] = _LONG_DATE
            _fix_record(image, start + 156)
            extent, size = struct.unpack_from("<I4xI", image, start + 156 + 2)
            _fix_folder(image, extent * _BLOCK, size)
        sector += 1
    return bytes(image)


def _fix_folder(image: bytearray, start: int, size: int) -> None:
    offset = start
    while offset < start + size:
        if image[offset] == 0:  # a record never spans two blocks
            offset = (offset // _BLOCK + 1) * _BLOCK
            continue
        _fix_record(image, offset)
        offset += image[offset]


def _fix_record(image: bytearray, start: int) -> None:
    image[start + 18 : start + 25] = _DATE
    end = start + image[start]
    entry = start + 33 + image[start + 32]
    entry += (entry - start) % 2
    while entry + 4 <= end and image[entry + 2] >= 4:
        if bytes(image[entry : entry + 2]) == b"TF":
            dates = bin(image[entry + 4] & 0x7F).count("1")
            image[entry + 5 : entry + 5 + 7 * dates] = _DATE * dates
        entry += image[entry + 2]
