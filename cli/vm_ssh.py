"""Log in to a VM. Its certificate, or the host key of its row, must be shown: no first use is trusted."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import socket
import sys
import time
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, NoReturn

from cyclopts import Parameter

from cli.client import Api
from cli.document import Document, documents, inner
from cli.failures import Unsuccessful, Usage
from cli.options import Timeout, read_duration
from cli.output import say
from cli.place import Place, read_json
from cli.ssh_trust import Trust, is_certified, trust_certificate, trust_key

WAIT_SECONDS = 20.0
_CONNECT_SECONDS = 2.0
_PAUSE_SECONDS = 0.2
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_OPTIONS_WITH_VALUE = ("--identity", "-i", "--user", "-l", "--timeout")


def ssh(
    name: str,
    /,
    *command: Annotated[str, Parameter(allow_leading_hyphen=True, help="What to run there. Default: a shell.")],
    identity: Annotated[Path | None, Parameter(name=("--identity", "-i"))] = None,
    user: Annotated[str, Parameter(name=("--user", "-l"))] = "root",
    timeout: Timeout = None,
) -> None:
    """Log in to a VM by SSH, or run a command there; its host certificate, or else its host key, is checked.

    :param name: Name or id.
    :param identity: The file of a private key. Default: this installation's own key, and yours in ~/.ssh.
    :param user: Whom to log in as.
    """
    limit = read_duration(timeout, "--timeout")
    if not _USER.fullmatch(user):
        raise Usage("--user: must be a user's name")
    program = shutil.which("ssh")
    if program is None:
        raise Unsuccessful("there is no ssh on the PATH: install the OpenSSH client")
    with Api() as api:
        vm = api.get(f"/v1/vms/{api.find_vm_id(name)}")
        ca = api.get("/v1/ssh-ca") if is_certified(vm) else None
        place = api.place
    keys = choose_identities(identity, place)
    check_running(vm)
    address = read_address(vm)
    trust = trust_key(vm, place) if ca is None else trust_certificate(vm, ca, place)
    netns = guest_namespace(place, vm)
    if netns is None and vm.get("phase") == "ready":
        await_port(address, WAIT_SECONDS if limit is None else limit.total_seconds())
    words = ssh_command(trust, address, user=user, identities=keys, command=command)
    become([program, *words], netns)


def ssh_command(
    trust: Trust, address: str, *, user: str, identities: tuple[Path, ...], command: tuple[str, ...] = ()
) -> list[str]:
    """Return the arguments of ssh; nothing but `trust` tells which host is the right one."""
    options = {**trust.options, "LogLevel": "ERROR", "ConnectTimeout": "10"}
    words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    if identities:
        # An agent full of other keys would use up the attempts that the guest allows.
        words += ["-o", "IdentitiesOnly=yes", *(word for path in identities for word in ("-i", str(path)))]
    # After the address ssh reads options again, so what is run comes after "--".
    return [*words, "-l", user, address, *(("--", *command) if command else ())]


def check_running(vm: Document) -> None:
    """Say at once that nobody will answer. Errors: Unsuccessful, for a VM that is known to be stopped or paused."""
    name, power = vm.get("name"), vm.get("power_state")
    if vm.get("quarantine"):
        raise Unsuccessful(f"{name} was deleted: `hostler vm undelete {name}` brings it back")
    if vm.get("phase") != "ready" or power not in ("stopped", "paused") or power != vm.get("desired_power_state"):
        return
    raise Unsuccessful(f"{name} is {power}: `hostler vm {'start' if power == 'stopped' else 'resume'} {name}`")


def read_address(vm: Document) -> str:
    """Return the VM's address. Errors: Unsuccessful, while it has none."""
    addresses = inner(vm, "addresses")
    try:
        return str(ip_address(str(addresses.get("ip"))))
    except ValueError:
        raise Unsuccessful(f"{vm.get('name')} has no address yet (phase {vm.get('phase')})") from None


def choose_identities(given: Path | None, place: Place) -> tuple[Path, ...]:
    """Return the key that was given, else the installation's own, if we can read it, and the user's; else ssh's choice.

    A VM that was made with `--ssh-key ~/.ssh/id_ed25519.pub` knows only the user's.
    """
    if given is not None:
        if not given.is_file():
            raise Usage("--identity: there is no such file")
        return (given.absolute(),)
    if not os.access(place.identity, os.R_OK):
        return ()
    return (place.identity, *user_keys())


def user_keys() -> list[Path]:
    """Return the keys that ssh itself would try: of the user, and of whoever called sudo."""
    homes = [Path.home()]
    caller = os.environ.get("SUDO_UID", "")
    if caller.isascii() and caller.isdigit():
        with contextlib.suppress(KeyError, OverflowError):
            homes.append(Path(pwd.getpwuid(int(caller)).pw_dir))
    paths = [home / ".ssh" / name for home in dict.fromkeys(homes) for name in ("id_ed25519", "id_ecdsa", "id_rsa")]
    return [path for path in paths if os.access(path, os.R_OK)]


def guest_namespace(place: Place, vm: Document) -> str | None:
    """Return the network namespace that the VM's host on this machine keeps its guests in, if it is not ours."""
    first = read_json(place.home / "settings.json")
    found = first
    for host in documents(first, "further_hosts"):
        folder = place.home / "hosts" / str(host.get("number")) / "host"
        if inner(vm, "host").get("id") == read_json(folder / "host.json").get("host_id"):
            found = host
    name = found.get("netns")
    return name if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name, re.ASCII) else None


def await_port(address: str, seconds: float) -> bool:
    """Wait until SSH answers there with its banner, or the time is over."""
    deadline = time.monotonic() + seconds
    told = False
    while not answers(address, min(_CONNECT_SECONDS, seconds)):
        if time.monotonic() >= deadline:
            return False
        if not told and time.monotonic() > deadline - seconds + 1:
            told = True
            say(f"waiting for SSH at {address}")
        time.sleep(_PAUSE_SECONDS)
    return True


def answers(address: str, seconds: float) -> bool:
    """Tell whether an SSH server greets at port 22 of an address (RFC 4253, 4.2)."""
    try:
        with socket.create_connection((address, 22), timeout=max(seconds, 0.05)) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def become(words: list[str], netns: str | None) -> NoReturn:
    """Become ssh, in the guests' namespace if they have one."""
    if netns is not None:
        inside = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if inside is None:
            raise Unsuccessful("the guests are in a network namespace, and there is no `ip` to enter it: use iproute2")
        words = [inside, "netns", "exec", netns, *words]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(words[0], words)  # noqa: S606  # an argument list; no shell


def mark_command(words: list[str]) -> list[str]:
    """Put "--" between `vm ssh NAME` with its options and the command, so that the command's options stay its own."""
    rest = iter(enumerate(words))
    named = False
    for at, word in rest:
        if word == "--":
            return words
        if word in _OPTIONS_WITH_VALUE:
            next(rest, None)
        elif word.startswith("-"):
            continue
        elif named:
            return [*words[:at], "--", *words[at:]]
        named = named or not word.startswith("-")
    return words
