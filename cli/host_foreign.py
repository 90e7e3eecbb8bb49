"""What a host holds although no row places it there, and what becomes of it: adopted, quarantined, left (H-R2)."""

from __future__ import annotations

from collections.abc import Iterable

from cli.client import Api
from cli.document import Document, documents
from cli.options import Json
from cli.output import print_json, print_table, say
from cli.vm_create import segment


def foreign(name: str, /, *, as_json: Json = False) -> None:
    """List what a host holds although no row places it there, and why each is still as it is.

    :param name: Name or id.
    """
    with Api() as api:
        found = api.get(f"/v1/hosts/{segment(name)}/foreign")
    if as_json:
        print_json(found)
    else:
        print_foreign(documents(found, "items"))


def adopt(
    name: str, vm: str, /, *, project: str | None = None, rename: str | None = None, as_json: Json = False
) -> None:
    """Make a row again for a VM that a host holds without one, from the host's record. It goes on as it is.

    :param name: The host's name or id.
    :param vm: The VM's id.
    :param project: The VM's project, as the host's record says; not needed where that is signed.
    :param rename: What it is called from now on, where another VM has its name.
    """
    told = _choose(name, vm, "adopt", project, rename)
    if as_json:
        print_json(told)
    else:
        say(f"{told.get('name')} is adopted in the project {told.get('project')}, {told.get('desired_power_state')}")


def quarantine(
    name: str, vm: str, /, *, project: str | None = None, rename: str | None = None, as_json: Json = False
) -> None:
    """Stop a VM that a host holds without a row, and keep it for seven days.

    :param name: The host's name or id.
    :param vm: The VM's id.
    :param project: The VM's project, as the host's record says; else only operators see it.
    :param rename: What it is called from now on, where another VM has its name.
    """
    told = _choose(name, vm, "quarantine", project, rename)
    if as_json:
        print_json(told)
    elif told.get("placed_on"):
        say(f"{told.get('vm_id')}, whose row names the host {told['placed_on']}, is stopped and kept")
    else:
        say(f"{told.get('vm_id')} is stopped and kept; `hostler host adopt {name} {vm}` brings it back")


def leave(name: str, vm: str, /, *, as_json: Json = False) -> None:
    """Leave a VM that a host holds without a row as it is, whatever reports say.

    :param name: The host's name or id.
    :param vm: The VM's id.
    """
    told = _choose(name, vm, "leave", None, None)
    if as_json:
        print_json(told)
    else:
        say(f"{told.get('vm_id')} is left as it is")


def print_foreign(found: Iterable[Document]) -> None:
    """Print what a host holds without a row, and why each is as it is."""
    rows = ((vm.get("vm_id"), vm.get("power_state") or "unknown", describe(vm)) for vm in found)
    print_table(("VM", "POWER", "WHY"), rows, empty="every VM that this host holds has its row")


def describe(vm: Document) -> str:
    """Say why nothing is done to a VM without a row, and what a person can do."""
    if vm.get("choice") == "left":
        return "left as it is"
    if vm.get("choice") == "braked":
        return "too many have no row: adopt, quarantine or leave it"
    if vm.get("placed_on"):
        kept = "stopped and kept" if vm.get("choice") == "stopped" else "stopped once a second whole report names it"
        return f"its row names the host {vm['placed_on']}: {kept}"
    if vm.get("is_gone"):
        return "it was destroyed within the last 30 days, and is left alone"
    if vm.get("unreadable"):
        return f"its record cannot be read, so it is left alone: {vm['unreadable']}"
    return "stopped and kept once a second whole report names it: adopt or leave it before"


def _choose(name: str, vm: str, choice: str, project: str | None, rename: str | None) -> Document:
    given = {key: value for key, value in (("project", project), ("name", rename)) if value is not None}
    body = None if choice == "leave" else given
    with Api() as api:
        return api.call("POST", f"/v1/hosts/{segment(name)}/foreign/{segment(vm)}/{choice}", body=body)
