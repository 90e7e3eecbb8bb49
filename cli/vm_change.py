"""Change what is wanted of a VM."""

from __future__ import annotations

from typing import Annotated, Any, Literal

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
)
from cli.output import console, print_json
from cli.steps import REBUILD
from cli.vm import print_outcome
from cli.vm_create import read_image, segment
from model.step import StepKind

Name = Annotated[str, Parameter(help="Name or id.")]


def start(name: Name, /, *, no_wait: NoWait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Start a VM that is stopped."""
    change("PATCH", name, "", {"power_state": "running"}, no_wait=no_wait, timeout=timeout, as_json=as_json)


def stop(name: Name, /, *, no_wait: NoWait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Stop a VM; it stays stopped until it is started."""
    change("PATCH", name, "", {"power_state": "stopped"}, no_wait=no_wait, timeout=timeout, as_json=as_json)


def pause(name: Name, /, *, no_wait: NoWait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Pause a VM: its memory is kept, its processors stand still."""
    change("PATCH", name, "", {"power_state": "paused"}, no_wait=no_wait, timeout=timeout, as_json=as_json)


def resume(name: Name, /, *, no_wait: NoWait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Let a paused VM go on."""
    change("PATCH", name, "", {"power_state": "running"}, no_wait=no_wait, timeout=timeout, as_json=as_json)


def restart(name: Name, /, *, no_wait: NoWait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Stop and start a VM once."""
    change("POST", name, "/restart", None, no_wait=no_wait, timeout=timeout, as_json=as_json)


def retry(name: Name, /, *, no_wait: NoWait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Try again, at once, what failed."""
    change("POST", name, "/retry", None, no_wait=no_wait, timeout=timeout, as_json=as_json)


def undelete(name: Name, /, *, no_wait: NoWait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Bring a deleted VM back from its quarantine."""
    change("POST", name, "/undelete", None, no_wait=no_wait, timeout=timeout, as_json=as_json)


def protect(name: Name, /, *, no_wait: NoWait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Refuse to delete or rebuild a VM until it is unprotected."""
    body = {"termination_protection": True}
    change("PATCH", name, "", body, no_wait=no_wait, timeout=timeout, as_json=as_json)


def unprotect(name: Name, /, *, no_wait: NoWait = False, timeout: Timeout = None, as_json: Json = False) -> None:
    """Let a VM be deleted and rebuilt again."""
    body = {"termination_protection": False}
    change("PATCH", name, "", body, no_wait=no_wait, timeout=timeout, as_json=as_json)


def resize(
    name: Name,
    /,
    *,
    cpus: Annotated[str | None, Parameter(name=("--cpus", "--cpu"))] = None,
    memory: str | None = None,
    disk: str | None = None,
    no_wait: NoWait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Change a VM's size. Processors and memory need a guest that is stopped; a disk grows at any time.

    :param cpus: Processors, such as 1, 0.5 or 2.
    :param memory: MiB, or a number with M or G.
    :param disk: GiB, or a number with G or T; it never shrinks.
    """
    body: Document = {
        "cpu_millicores": read_millicores(cpus) if cpus is not None else None,
        "memory_mib": read_memory_mib(memory) if memory is not None else None,
        "disk_gib": read_disk_gib(disk) if disk is not None else None,
    }
    body = {key: value for key, value in body.items() if value is not None}
    if not body:
        raise Usage("give at least one of --cpus, --memory and --disk")
    change("PATCH", name, "", body, no_wait=no_wait, timeout=timeout, as_json=as_json)


def attach(
    name: Name, volume: str, /, *, no_wait: NoWait = False, timeout: Timeout = None, as_json: Json = False
) -> None:
    """Attach a volume: the guest has it at once where it runs, else when it boots.

    :param volume: The volume's name or id.
    """
    path = f"/volumes/{segment(volume, 'volume')}"
    change("PUT", name, path, None, no_wait=no_wait, timeout=timeout, as_json=as_json)


def detach(
    name: Name, volume: str, /, *, no_wait: NoWait = False, timeout: Timeout = None, as_json: Json = False
) -> None:
    """Detach a volume; a guest that runs must let it go, so unmount it there first. Its data stays.

    :param volume: The volume's name or id.
    """
    path = f"/volumes/{segment(volume, 'volume')}"
    change("DELETE", name, path, None, no_wait=no_wait, timeout=timeout, as_json=as_json)


def rebuild(
    name: Name,
    /,
    *,
    image: str | None = None,
    image_url: str | None = None,
    sha256: str | None = None,
    image_format: Annotated[Literal["qcow2", "raw"] | None, Parameter(name="--format")] = None,
    undo: bool = False,
    discard: bool = False,
    no_wait: NoWait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Make a VM's root disk anew; name, addresses and host key stay. The old disk is kept for a while.

    :param image: Another image's name. Default: the one it has.
    :param image_url: Another image by its URL; needs --sha256.
    :param sha256: The digest of the file at --image-url.
    :param image_format: The format of the file at --image-url. Default: read from its header.
    :param undo: Bring the old disk back instead; the present one is kept in its place.
    :param discard: Allow that a disk which an earlier rebuild put aside is lost.
    """
    named = any(each is not None for each in (image, image_url, sha256, image_format))
    if undo and (named or discard):
        raise Usage("--undo takes neither an image nor --discard")
    body: Document = {"undo": True} if undo else {"discard": True} if discard else {}
    if named:
        body["image"] = read_image(image, image_url, sha256, image_format)
    change("POST", name, "/rebuild", body, no_wait=no_wait, timeout=timeout, as_json=as_json, steps=REBUILD)


def rm(
    name: Name,
    /,
    *,
    grace: str | None = None,
    now: bool = False,
    no_wait: NoWait = False,
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Delete a VM: it is stopped, kept for its grace, then destroyed.

    :param grace: How long it can be undeleted, as 60s or 24h. Default: the fleet's.
    :param now: Without grace; also ends the quarantine of one that waits in it.
    """
    if now and grace is not None:
        raise Usage("give one of --grace and --now")
    chosen = read_duration(grace, "--grace")
    at_once = now or (chosen is not None and not chosen)
    limit = read_duration(timeout, "--timeout")
    with Api() as api:
        found = api.find_vm(name)
        query = {"grace": grace, "now": "true" if now else None}
        vm = api.call("DELETE", f"/v1/vms/{found['id']}", query=query)
        if not no_wait:
            vm = follow(api, vm, _watch_rm(vm, limit, silent=as_json, now=at_once))
    if as_json:
        print_json(vm)
    elif at_once and not no_wait:
        from cli.output import cell

        console().print(cell(f"{vm.get('name')} is gone"))
    else:
        print_outcome(vm)


def change(
    method: str,
    name: str,
    path: str,
    body: Document | None,
    *,
    no_wait: bool,
    timeout: str | None,
    as_json: bool,
    steps: tuple[StepKind, ...] = (),
) -> None:
    """Ask for a change, wait until it is done, and print the row."""
    limit = read_duration(timeout, "--timeout")
    with Api() as api:
        vm = api.call(method, f"/v1/vms/{api.find_vm_id(name)}{path}", body=body)
        if not no_wait:
            vm = follow(api, vm, Watch(str(vm.get("name")), steps, timeout=limit, silent=as_json))
    if as_json:
        print_json(vm)
    else:
        print_outcome(vm)
    if not no_wait:
        check_outcome(vm)


def _watch_rm(vm: Document, timeout: Any, *, silent: bool, now: bool) -> Watch:
    from cli.steps import DESTROY

    return Watch(str(vm.get("name")), DESTROY if now else (), timeout=timeout, silent=silent, until_gone=now)
