"""What assistants can do: read, and with leave change. Each tool's docstring is what an assistant reads of it (S-38).

What others wrote (guests, hypervisors, users' labels and errors) comes in a field of its own, `foreign_text`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote

import httpx2
from pydantic import Field

Document = dict[str, Any]
CALLING: ContextVar[httpx2.AsyncClient] = ContextVar("calling")
"""A client of this API with the token of whoever called the tool."""
Vm = Annotated[str, Field(description="Its name or id")]
_FOREIGN = ("status_detail", "last_error", "last_exit", "labels", "metadata", "why", "what", "error", "command_line")


class Refusal(Exception):
    """The API's own words for why not."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


async def list_vms(
    name: str | None = None, phase: str | None = None, label: str | None = None, limit: int = 50
) -> Document:
    """List virtual machines. phase: such as ready, failed or quarantined. label: key=value."""
    return await _get("/v1/vms", name=name, phase=phase, label=label, limit=limit)


async def show_vm(vm: Vm) -> Document:
    """Show one virtual machine: what is wanted of it, what its host saw, what goes on."""
    return await _get(f"/v1/vms/{await _find(vm)}")


async def why_vm(vm: Vm) -> Document:
    """Say why nothing more is done for a virtual machine now: what is waited for, since when, what helps."""
    found = await _get(f"/v1/vms/{await _find(vm)}")
    told = found.get("foreign_text", {}).get("why")
    return {"settled": found.get("settled"), "foreign_text": {"why": told}}


async def list_operations(vm: Vm) -> Document:
    """List what was asked of a virtual machine, each with how it ended."""
    return await _get(f"/v1/vms/{await _find(vm)}/operations")


async def show_operation(operation_id: str) -> Document:
    """Show how far an operation is."""
    return await _get(f"/v1/operations/{_segment(operation_id)}")


async def list_hosts() -> Document:
    """List hosts with what they have room for. It takes a token that belongs to no project."""
    return await _get("/v1/hosts")


async def show_host(host: Annotated[str, Field(description="Its name or id")]) -> Document:
    """Show one host: its room, what it can run, what is wrong with it."""
    return await _get(f"/v1/hosts/{_segment(host)}")


async def list_images() -> Document:
    """List the images that virtual machines can be made from."""
    return await _get("/v1/images")


async def list_volumes() -> Document:
    """List volumes: disks that outlive their virtual machines."""
    return await _get("/v1/volumes")


async def list_conditions() -> Document:
    """List what is wrong now, the worst first, each with what is done about it and what a person can do."""
    return await _get("/v1/conditions")


async def create_vm(
    name: Annotated[str, Field(description="1 to 63 of a-z, 0-9 and '-'")],
    image: Annotated[str, Field(description="An image's name, as list_images shows it")],
    cpu_millicores: int = 1000,
    memory_mib: int = 512,
    disk_gib: int | None = None,
    ssh_authorized_keys: list[str] | None = None,
    host: Annotated[str | None, Field(description="Leave it out to have one chosen")] = None,
) -> Document:
    """Make a virtual machine. It is answered at once; show_vm tells how far it is."""
    given = {"disk_gib": disk_gib, "ssh_authorized_keys": ssh_authorized_keys, "host": host}
    body = {"name": name, "image": image, "cpu_millicores": cpu_millicores, "memory_mib": memory_mib}
    return await _call("POST", "/v1/vms", json=body | {key: each for key, each in given.items() if each is not None})


async def set_power(vm: Vm, power_state: Literal["running", "paused", "stopped"]) -> Document:
    """Start, pause or stop a virtual machine; it stays so."""
    return await _call("PATCH", f"/v1/vms/{await _find(vm)}", json={"power_state": power_state})


async def resize_vm(
    vm: Vm, cpu_millicores: int | None = None, memory_mib: int | None = None, disk_gib: int | None = None
) -> Document:
    """Change sizes. Processors and memory need a stopped guest; a disk only grows."""
    given = {"cpu_millicores": cpu_millicores, "memory_mib": memory_mib, "disk_gib": disk_gib}
    wanted = {key: each for key, each in given.items() if each is not None}
    return await _call("PATCH", f"/v1/vms/{await _find(vm)}", json=wanted)


async def restart_vm(vm: Vm) -> Document:
    """Stop and start a virtual machine once."""
    return await _call("POST", f"/v1/vms/{await _find(vm)}/restart")


async def retry_vm(vm: Vm) -> Document:
    """Try again, at once, what failed."""
    return await _call("POST", f"/v1/vms/{await _find(vm)}/retry")


async def undelete_vm(vm: Vm) -> Document:
    """Bring a deleted virtual machine back, within its grace."""
    return await _call("POST", f"/v1/vms/{await _find(vm)}/undelete")


async def delete_vm(
    vm: Vm, confirm_name: Annotated[str, Field(description="The name of the virtual machine, once more")]
) -> Document:
    """Delete a virtual machine: it is stopped and kept until its grace is over, and undelete_vm brings it back."""
    found = await _get(f"/v1/vms/{await _find(vm)}")
    if confirm_name != found["name"]:
        raise Refusal(f"confirm_name: the VM is called {found['name']}: give exactly this name to delete it")
    return await _call("DELETE", f"/v1/vms/{found['id']}")


READING: tuple[Callable[..., Awaitable[Document]], ...] = (
    list_vms,
    show_vm,
    why_vm,
    list_operations,
    show_operation,
    list_hosts,
    show_host,
    list_images,
    list_volumes,
    list_conditions,
)
WRITING: dict[Callable[..., Awaitable[Document]], bool] = {
    create_vm: False,
    set_power: True,
    resize_vm: False,
    restart_vm: True,
    retry_vm: False,
    undelete_vm: False,
    delete_vm: True,
}
"""What changes, and whether somebody may lose something by it."""


async def _find(vm: str) -> str:
    """Return the id of the one VM that is called so, or has this id."""
    try:
        return (await _call("GET", f"/v1/vms/{_segment(vm)}"))["id"]
    except Refusal:
        items = (await _call("GET", "/v1/vms", params={"name": vm}))["items"]
        if len(items) == 1:
            return items[0]["id"]
        if items:
            ids = ", ".join(f"{each['id']} (project {each['project']})" for each in items)
            raise Refusal(f"several VMs are called {vm}; give the id of one: {ids}") from None
        raise


async def _get(path: str, **query: object) -> Document:
    return await _call("GET", path, params={name: each for name, each in query.items() if each is not None})


async def _call(method: str, path: str, **options: Any) -> Document:
    answer = await CALLING.get().request(method, path, **options)
    document: Document = answer.json()
    if answer.status_code >= 400:
        raise Refusal(document["detail"])
    return _apart(document)


def _apart(found: Any) -> Any:
    """Put what others wrote into a field of its own, at every depth."""
    if isinstance(found, list):
        return [_apart(each) for each in cast("list[Any]", found)]
    if not isinstance(found, dict):
        return found
    document = cast("Document", found)
    foreign = {key: document[key] for key in _FOREIGN if document.get(key)}
    own = {key: _apart(value) for key, value in document.items() if key not in _FOREIGN}
    return own | ({"foreign_text": foreign} if foreign else {})


def _segment(text: str) -> str:
    return quote(text, safe="")
