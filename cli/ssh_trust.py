"""What ssh is told to trust of a VM: its host certificate, or the host key that its row holds, and nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cli.document import Document, documents, inner
from cli.failures import Unsuccessful
from cli.place import Place

_KEY = re.compile(r"(ssh-ed25519) ([A-Za-z0-9+/]{32,128}={0,2})(?: .*)?", re.ASCII)


@dataclass(frozen=True)
class Trust:
    """By what ssh checks a VM: its name there, the kind of key, the files that say which, and which not."""

    alias: str
    algorithm: str
    known: Path
    revoked: Path | None = None

    @property
    def options(self) -> dict[str, str]:
        """Return the options of ssh that let nothing else count."""
        options = {
            "HostKeyAlias": self.alias,
            "UserKnownHostsFile": quote_path(self.known),
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "HostKeyAlgorithms": self.algorithm,
            "CheckHostIP": "no",
            "UpdateHostKeys": "no",
            "VerifyHostKeyDNS": "no",
        }
        return options | ({"RevokedHostKeys": quote_path(self.revoked)} if self.revoked else {})


def is_certified(vm: Document) -> bool:
    """Say whether a VM shows itself by a host certificate; then its key alone counts for nothing."""
    return vm.get("host_certificate") is not None


def trust_key(vm: Document, place: Place) -> Trust:
    """Write down the VM's host key, as its row has it. Errors: Unsuccessful, without one."""
    key = _plain_key(vm.get("ssh_host_key"))
    if key is None:
        raise Unsuccessful(f"{vm.get('name')} has no host key yet (phase {vm.get('phase')}): nothing to check it by")
    # Its id, so that no address or name is ever confused.
    vm_id = read_id(vm)
    alias = f"hostler-{vm_id}"
    return Trust(alias, "ssh-ed25519", write_down(place, vm_id, [f"{alias} {key}"]))


def trust_certificate(vm: Document, ca: Document, place: Place) -> Trust:
    """Write down by which authority the VM's certificate counts, and which keys are revoked.

    Errors: Unsuccessful, for a VM without a certificate that holds, or an answer without an authority.
    """
    name, vm_id = vm.get("name"), read_id(vm)
    valid_until = _time(inner(vm, "host_certificate").get("valid_until"))
    if valid_until is None:
        raise Unsuccessful(f"{name} has no host certificate yet (phase {vm.get('phase')}): nothing to check it by")
    if valid_until <= datetime.now(UTC):
        raise Unsuccessful(
            f"the host certificate of {name} ended at {valid_until:%Y-%m-%dT%H:%M:%SZ}: it must be renewed"
        )
    authority = _plain_key(ca.get("host_ca"))
    revoked = [_plain_key(each.get("public_key")) for each in documents(ca, "revoked")]
    if authority is None or None in revoked or not isinstance(ca.get("revoked"), list):
        raise Unsuccessful("the API's answer holds no SSH CA that host certificates could be checked by")
    return Trust(
        alias=vm_id,
        algorithm="ssh-ed25519-cert-v01@openssh.com",
        known=write_down(place, f"{vm_id}.ca", [f"@cert-authority {vm_id} {authority}"]),
        revoked=write_down(place, f"{vm_id}.revoked", [key for key in revoked if key]),
    )


def read_id(vm: Document) -> str:
    """Return a row's id, fit for a file's name (S-20)."""
    vm_id = str(vm.get("id"))
    if not re.fullmatch(r"[a-z0-9-]{1,63}", vm_id, re.ASCII):
        raise Unsuccessful("the API's answer holds no VM id")
    return vm_id


def write_down(place: Place, name: str, lines: Iterable[str]) -> Path:
    """Write a file of lines for ssh, whole, and return its path."""
    folder = known_hosts_folder(place)
    path = folder / name
    new = folder / f".{path.name}.{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.writelines(f"{line}\n" for line in lines)
        new.rename(path)
    except OSError as error:
        raise Unsuccessful(f"the VM's host key cannot be written down for ssh: {error.strerror}") from error
    return path


def known_hosts_folder(place: Place) -> Path:
    """Return where known_hosts files go: the state directory if it is ours, else the user's own state folder."""
    try:
        if place.home.stat().st_uid == os.geteuid() and os.access(place.home, os.W_OK):
            return place.ssh / "known_hosts"
    except OSError:
        pass
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "hostler" / "known_hosts"


def quote_path(path: Path) -> str:
    """Quote a path for ssh's configuration, where %, ${…} and quotes mean something."""
    text = str(path)
    if any(c in text for c in '"\\$\n'):
        raise Unsuccessful("the path of the state directory holds a quote, a backslash or a dollar sign")
    return '"' + text.replace("%", "%%") + '"'


def _plain_key(text: object) -> str | None:
    found = _KEY.fullmatch(str(text or ""))
    return f"{found[1]} {found[2]}" if found else None


def _time(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else None
