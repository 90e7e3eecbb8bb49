"""Make, list, show, grow, delete and bring back volumes."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from cli.client import Api
from cli.document import Document, documents, inner
from cli.failures import Usage
from cli.options import Json, read_disk_gib, read_duration
from cli.output import age, moment, print_facts, print_json, print_table, say
from cli.vm_create import segment

_COLUMNS = ("NAME", "SIZE", "VM", "HOST", "AGE", "DETAIL", "ID")
Name = Annotated[str, Parameter(help="Name or id.")]


def create(name: str, /, *, size: str, host: str | None = None, as_json: Json = False) -> None:
    """Make a volume. Its file is made before the first VM that has it boots.

    :param name: A DNS label: 1 to 63 of a-z, 0-9 and '-'.
    :param size: GiB, or a number with G or T.
    :param host: The host's id or name. Default: that of the first VM that has it.
    """
    body: Document = {"name": name, "size_gib": read_disk_gib(size, "--size")}
    with Api() as api:
        made = api.call("POST", "/v1/volumes", body=body | ({"host": host} if host is not None else {}))
    _tell(made, f"{made['name']} has {made['size_gib']} GiB, and no VM yet", as_json=as_json)


def ls(*, host: str | None = None, vm: str | None = None, as_json: Json = False) -> None:
    """List volumes.

    :param host: Only those on this host (id or name).
    :param vm: Only those of this VM (name or id).
    """
    with Api() as api:
        found = api.list("/v1/volumes", host=host, vm=None if vm is None else api.find_vm_id(vm))
    if as_json:
        print_json(found)
        return
    print_table(_COLUMNS, map(row, found["items"]), empty="there are no volumes; `hostler volume create` makes one")


def row(volume: Document) -> tuple[object, ...]:
    """Make a volume's row of the table."""
    return (
        volume.get("name"),
        f"{volume.get('size_gib')} GiB",
        inner(volume, "vm").get("name"),
        inner(volume, "host").get("name"),
        age(volume.get("created_at")),
        detail(volume),
        volume.get("id"),
    )


def detail(volume: Document) -> str | None:
    """Say what is worth knowing now: its end, or that nothing of it was made yet."""
    if volume.get("destroying"):
        return "being removed by its host"
    if volume.get("deleted"):
        return f"removed {moment(volume.get('destroy_at'))}"
    return "not made yet" if volume.get("made_bytes") is None else None


def show(name: Name, /, *, as_json: Json = False) -> None:
    """Show a volume."""
    with Api() as api:
        volume = api.get(f"/v1/volumes/{segment(name, 'volume')}")
    if as_json:
        print_json(volume)
        return
    told: list[tuple[str, object]] = []
    for key, value in volume.items():
        if key in ("vm", "host"):
            value = f"{inner(volume, key).get('name')} ({inner(volume, key).get('id')})" if value else None
        if value not in (None, False):
            told.append((key, moment(value) if key.endswith("_at") else value))
    print_facts(told)


def resize(name: Name, /, *, size: str, as_json: Json = False) -> None:
    """Make a volume larger, also while a VM that has it runs; it never shrinks.

    :param size: GiB, or a number with G or T.
    """
    body: Document = {"size_gib": read_disk_gib(size, "--size")}
    with Api() as api:
        volume = api.call("PATCH", f"/v1/volumes/{segment(name, 'volume')}", body=body)
    has = inner(volume, "vm").get("name")
    when = f"; {has} gets it now" if has else "; the next VM that has it gets it so"
    _tell(volume, f"{volume['name']} is to have {volume['size_gib']} GiB{when}", as_json=as_json)


def rm(name: Name, /, *, grace: str | None = None, now: bool = False, as_json: Json = False) -> None:
    """Delete a volume that no VM has: it is kept for its grace, then its host removes it.

    :param grace: How long it can be undeleted, as 60s or 24h. Default: 7 days.
    :param now: Without grace.
    """
    if now and grace is not None:
        raise Usage("give one of --grace and --now")
    read_duration(grace, "--grace")
    with Api() as api:
        query = {"grace": grace, "now": "true" if now else None}
        volume = api.call("DELETE", f"/v1/volumes/{segment(name, 'volume')}", query=query)
    _tell(volume, f"{volume['name']} is deleted: {detail(volume)}", as_json=as_json)


def undelete(name: Name, /, *, as_json: Json = False) -> None:
    """Bring a deleted volume back."""
    with Api() as api:
        volume = api.call("POST", f"/v1/volumes/{segment(name, 'volume')}/undelete")
    _tell(volume, f"{volume['name']} is back", as_json=as_json)


def foreign(host: str, /, *, as_json: Json = False) -> None:
    """List the volumes that a host holds although no row places them there, as after a restore.

    :param host: The host's id or name.
    """
    with Api() as api:
        found = api.get(f"/v1/hosts/{segment(host)}/foreign-volumes")
    if as_json:
        print_json(found)
        return
    rows = ((each.get("volume_id"), each.get("size_bytes"), each.get("vm_id")) for each in documents(found, "items"))
    print_table(("ID", "BYTES", "LAST OF VM"), rows, empty="every volume there has its row")


def adopt(host: str, volume_id: str, name: str, /, *, as_json: Json = False) -> None:
    """Make a row of a volume that a host holds without one; its data is left as it is.

    :param host: The host's id or name.
    :param volume_id: The volume's id; `hostler volume foreign` lists them.
    :param name: What it is to be called.
    """
    path = f"/v1/hosts/{segment(host)}/foreign-volumes/{segment(volume_id, 'volume')}/adopt"
    with Api() as api:
        volume = api.call("POST", path, body={"name": name})
    _tell(volume, f"{volume['name']} has {volume['size_gib']} GiB, and no VM yet", as_json=as_json)


def _tell(volume: Document, words: str, *, as_json: bool) -> None:
    if as_json:
        print_json(volume)
    else:
        say(words)
