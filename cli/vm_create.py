"""Make a VM."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal, cast

from cyclopts import Parameter

from cli.client import Api
from cli.document import Document
from cli.failures import Usage
from cli.follow import Watch, check_outcome, follow
from cli.options import (
    Json,
    NoWait,
    Timeout,
    read_disk_gib,
    read_duration,
    read_memory_mib,
    read_millicores,
    read_pairs,
)
from cli.output import print_json, say
from cli.place import Place
from model.text import clean_text

_FILE_LIMIT_BYTES = 1 << 20
_KEY_TYPES = ("ssh-", "ecdsa-", "sk-")
Files = Annotated[tuple[Path, ...], Parameter(name="--ssh-key")]
Labels = Annotated[tuple[str, ...], Parameter(name="--label")]
Volumes = Annotated[tuple[str, ...], Parameter(name="--volume")]
Entries = Annotated[tuple[str, ...], Parameter(name="--metadata")]


def create(
    name: str,
    /,
    *,
    image: str | None = None,
    image_url: str | None = None,
    sha256: str | None = None,
    image_format: Annotated[Literal["qcow2", "raw"] | None, Parameter(name="--format")] = None,
    host: str | None = None,
    cpus: str | None = None,
    memory: str | None = None,
    disk: str | None = None,
    ssh_key: Files = (),
    ssh_user_ca: Annotated[tuple[Path, ...], Parameter(name="--ssh-user-ca")] = (),
    host_certificate: bool = False,
    user_data: Path | None = None,
    volume: Volumes = (),
    firewall: str | None = None,
    label: Labels = (),
    metadata: Entries = (),
    host_label: Annotated[tuple[str, ...], Parameter(name="--host-label")] = (),
    apart_from: str | None = None,
    hypervisor: Literal["auto", "qemu", "simulated"] | None = None,
    power_state: Literal["running", "paused", "stopped"] | None = None,
    on_guest_poweroff: Literal["start", "stop"] | None = None,
    stop_timeout: str | None = None,
    boot_priority: int | None = None,
    protect: bool = False,
    vm_id: Annotated[str | None, Parameter(name="--id")] = None,
    no_wait: NoWait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Make a VM, and wait until it is ready. Ctrl-C leaves; the work goes on.

    :param name: A DNS label: 1 to 63 of a-z, 0-9 and '-'.
    :param image: An image's name; `hostler image ls` lists them.
    :param image_url: An image by its URL instead; needs --sha256.
    :param sha256: The digest of the file at --image-url.
    :param image_format: The format of the file at --image-url. Default: read from its header.
    :param host: The host's id or name. Default: one is chosen.
    :param cpus: Processors, such as 1, 0.5 or 2. Default: 1.
    :param memory: MiB, or a number with M or G. Default: 512.
    :param disk: GiB, or a number with G or T. Default: the image's size.
    :param ssh_key: A file of public keys; may be given several times. Default: this installation's own key.
    :param ssh_user_ca: A file of user CAs' public keys: whoever has a certificate by one may log in.
    :param host_certificate: Have the VM show a host certificate to SSH clients; it is made once there is one.
    :param user_data: A file for the guest's first boot; '-' reads standard input.
    :param volume: A volume that it is to have, by name or id; may be given several times.
    :param firewall: Its firewall as JSON, or a file of it; see `hostler vm firewall`.
    :param label: A label, as key=value; may be given several times.
    :param metadata: An entry of the guest's metadata, as key=value; may be given several times.
    :param host_label: Only a host with this label, as key=value; may be given several times.
    :param apart_from: A group's name: its VMs are kept on different hosts, as far as there are hosts.
    :param hypervisor: What runs it. Default: auto; a simulated guest is only told of, where its host allows that.
    :param power_state: What it should be. Default: running.
    :param on_guest_poweroff: What a power-off inside the guest leads to. Default: start.
    :param stop_timeout: How long a guest may take to shut down, as 90s.
    :param boot_priority: -100 to 100; higher ones boot first.
    :param protect: Refuse to delete or rebuild it until `hostler vm unprotect`.
    :param vm_id: An id of your own; the same command again returns the same VM.
    """
    limit = read_duration(timeout, "--timeout")
    body: Document = {
        "name": name,
        "image": read_image(image, image_url, sha256, image_format),
        "host": host,
        "cpu_millicores": read_millicores(cpus) if cpus is not None else None,
        "memory_mib": read_memory_mib(memory) if memory is not None else None,
        "disk_gib": read_disk_gib(disk) if disk is not None else None,
        "ssh_authorized_keys": [key for file in ssh_key for key in read_keys(file)],
        "ssh_user_cas": [key for file in ssh_user_ca for key in read_keys(file, "--ssh-user-ca")],
        "host_certificate": host_certificate or None,
        "user_data": read_text(user_data, "--user-data") if user_data is not None else None,
        "volumes": [segment(each, "--volume") for each in volume],
        "firewall": read_firewall(firewall) if firewall is not None else None,
        "labels": read_pairs(label, "--label"),
        "metadata": read_pairs(metadata, "--metadata"),
        "host_labels": read_pairs(host_label, "--host-label"),
        "anti_affinity_group": apart_from,
        "hypervisor": hypervisor,
        "power_state": power_state,
        "on_guest_poweroff": on_guest_poweroff,
        "stop_timeout_seconds": _seconds(stop_timeout),
        "boot_priority": boot_priority,
        "termination_protection": True if protect else None,
    }
    with Api() as api:
        if not ssh_key and not ssh_user_ca and user_data is None:
            body["ssh_authorized_keys"] = own_keys(api.place)
        vm = send(api, body, vm_id)
        if not no_wait:
            vm = follow_create(api, vm, timeout=limit, silent=as_json)
    if as_json:
        print_json(vm)
    else:
        tell(vm)
    check_outcome(vm)


def send(api: Api, body: Document, vm_id: str | None = None) -> Document:
    """Ask for a VM; what is None in the body takes the API's default."""
    given = {key: value for key, value in body.items() if value is not None and value not in ([], {})}
    if vm_id is None:
        return api.call("POST", "/v1/vms", body=given)
    return api.call("PUT", f"/v1/vms/{segment(vm_id, '--id')}", body=given)


def follow_create(api: Api, vm: Document, *, timeout: object = None, silent: bool = False) -> Document:
    """Follow a create with a bar of its steps."""
    from datetime import timedelta

    from cli.steps import CREATE, CREATE_WITH_VOLUMES

    limit = timeout if isinstance(timeout, timedelta) else None
    return follow(
        api,
        vm,
        Watch(
            str(vm.get("name")),
            steps=CREATE_WITH_VOLUMES if vm.get("volumes") else CREATE,
            timeout=limit,
            silent=silent,
        ),
    )


def tell(vm: Document) -> None:
    from cli.vm import print_outcome

    print_outcome(vm)
    if vm.get("phase") != "failed" and not any(map(vm.get, ("ssh_authorized_keys", "ssh_user_cas", "user_data"))):
        say("it was given no SSH key: nobody can log in by SSH (--ssh-key FILE)")


def read_image(name: str | None, url: str | None, sha256: str | None, kind: str | None) -> str | Document:
    """Read which image is meant. Errors: Usage, unless it is a name, or a URL with its digest."""
    if (name is None) == (url is None):
        raise Usage("give one of --image and --image-url")
    if name is not None:
        if sha256 is not None or kind is not None:
            raise Usage("--sha256 and --format belong to --image-url; a named image has its own")
        return name
    if sha256 is None:
        raise Usage("--image-url needs --sha256: what is fetched is checked against it")
    return {"url": url, "sha256": sha256} | ({"format": kind} if kind is not None else {})


def read_keys(file: Path, option: str = "--ssh-key") -> list[str]:
    """Return the keys of a file like authorized_keys or id_ed25519.pub. Errors: Usage, for a private key above all."""
    text = read_text(file, option)
    if "PRIVATE KEY-----" in text:
        raise Usage(f"{option}: this file is a private key, which must not leave this machine; give its .pub file")
    keys = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise Usage(f"{option}: there is no key in this file")
    if not any(len(key.split()) > 1 and key.startswith(_KEY_TYPES) for key in keys):
        raise Usage(f"{option}: this is no file of public keys; give one like ~/.ssh/id_ed25519.pub")
    return keys


def own_keys(place: Place) -> list[str]:
    """Return the key that `hostler vm ssh` tries first: a VM made without a word of keys can be logged in to."""
    try:
        return read_keys(place.identity.with_suffix(".pub"))
    except Usage:
        return []  # another machine's installation, or one without its demo


def read_text(file: Path, option: str) -> str:
    """Return a file's text. Errors: Usage; its content is never repeated."""
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(_FILE_LIMIT_BYTES + 1)
        else:
            with file.open("rb") as opened:
                data = opened.read(_FILE_LIMIT_BYTES + 1)
        if len(data) > _FILE_LIMIT_BYTES:
            raise Usage(f"{option}: the file is over 1 MiB")
        return data.decode()
    except FileNotFoundError as error:
        hint = "; `ssh-keygen -t ed25519` makes a key" if option == "--ssh-key" else ""
        raise Usage(f"{option}: there is no file '{clean_text(str(file), 256)}'{hint}") from error
    except OSError as error:
        raise Usage(f"{option}: the file cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Usage(f"{option}: the file is not UTF-8 text") from error


def read_firewall(given: str) -> Document:
    """Read a firewall that is given as JSON, or as a file of it. Errors: Usage, for what is no object."""
    text = given if given.lstrip().startswith("{") else read_text(Path(given), "--firewall")
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise Usage(f"--firewall: this is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise Usage('--firewall: this is no object such as {"enabled": true, "inbound": []}')
    return cast("Document", found)


def segment(text: str, option: str = "host") -> str:
    """Return what stands for `text` in a path. Errors: Usage, for what cannot be a name or an id."""
    if not text or not all(c.isascii() and (c.islower() or c.isdigit() or c == "-") for c in text):
        raise Usage(f"{option}: '{clean_text(text, 256)}' is neither a name nor an id: those are of a-z, 0-9 and '-'")
    return text


def _seconds(text: str | None) -> int | None:
    found = read_duration(text, "--stop-timeout")
    return None if found is None else int(found.total_seconds())
