"""Look at projects, and say how much they may have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from cli.client import Api
from cli.document import Document, inner
from cli.failures import Usage
from cli.options import Json, read_disk_gib, read_memory_mib
from cli.output import print_json, print_table, say
from cli.vm_create import segment

_COLUMNS = ("PROJECT", "VMS", "CPU", "MEMORY", "DISK", "IMAGES")
_NONE = "none"
_Amount = Annotated[str | None, Parameter(help="How many; `none`: no limit.")]


def ls(*, as_json: Json = False) -> None:
    """List projects: what each has, of how much it may have."""
    with Api() as api:
        found = api.get("/v1/projects")
    if as_json:
        print_json(found)
        return
    print_table(_COLUMNS, map(row, found["items"]), empty="there are no projects")


def row(project: Document) -> tuple[object, ...]:
    """Make a project's row of the table."""
    held, limits = inner(project, "held"), inner(project, "limits")
    return (
        project["name"],
        _of(held["vms"], limits["max_vms"]),
        _of(f"{held['cpu_millicores'] / 1000:g}", limits["max_vcpus"]),
        f"{_of(held['memory_mib'], limits['max_memory_mib'])} MiB",
        f"{_of(held['disk_gib'], limits['max_disk_gib'])} GiB",
        _of(held["images"], limits["max_images"]),
    )


def limit(
    name: str | None = None,
    /,
    *,
    vms: _Amount = None,
    cpus: _Amount = None,
    memory: _Amount = None,
    disk: _Amount = None,
    images: _Amount = None,
    as_json: Json = False,
) -> None:
    """Say how much a project may have in all; what it has already stays.

    :param name: The project. Default: every one that was given no limits of its own.
    """
    given = {
        "max_vms": (vms, _whole),
        "max_vcpus": (cpus, _whole),
        "max_memory_mib": (memory, read_memory_mib),
        "max_disk_gib": (disk, read_disk_gib),
        "max_images": (images, _whole),
    }
    body = {key: _read(text, read) for key, (text, read) in given.items() if text is not None}
    if not body:
        raise Usage("say what to limit: --vms, --cpus, --memory, --disk or --images, each a number or `none`")
    with Api() as api:
        after = api.call("PATCH", f"/v1/projects/{segment(name)}" if name else "/v1/projects", body=body)
    if as_json:
        print_json(after)
        return
    limits = {key.removeprefix("max_"): value for key, value in inner(after, "limits").items() if value is not None}
    told = ", ".join(f"{key} {value}" for key, value in limits.items()) or "as much as hosts have room for"
    say(f"{name or 'each project without limits of its own'} may have at most: {told}")


def _of(held: object, most: object) -> str:
    return f"{held}" if most is None else f"{held}/{most}"


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise Usage("a limit is a whole number, or `none`")
    return int(text)


def _read(text: str, read: Callable[[str], int]) -> int | None:
    return None if text == _NONE else read(text)
