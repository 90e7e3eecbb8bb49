"""Look at hosts."""

from __future__ import annotations

import sys

from cli.client import Api
from cli.document import Document, documents, inner, things
from cli.options import Json
from cli.output import age, moment, print_facts, print_json, print_table
from cli.vm_create import segment

_COLUMNS = ("NAME", "STATUS", "SEEN", "VMS", "CPUS FREE", "MEMORY FREE", "STORAGE FREE", "HYPERVISOR", "ID")


def ls(*, as_json: Json = False) -> None:
    """List hosts."""
    with Api() as api:
        found = api.list("/v1/hosts")
    if as_json:
        print_json(found)
        return
    print_table(_COLUMNS, map(row, found["items"]), empty="there are no hosts; `hostler up` enrols this machine")


def row(host: Document) -> tuple[object, ...]:
    """Make a host's row of the table. What its probe could not tell is shown as unknown, never as 0 (H-S7)."""
    capacity = inner(host, "capacity")
    seen = age(host.get("last_report_at"))
    return (
        host.get("name"),
        "silent" if host.get("silent") else host.get("status"),
        f"{seen} ago" if seen else "never",
        host.get("vms"),
        free_cores(capacity),
        _unit(capacity.get("memory_mib_available"), 1 << 10, "GiB"),
        _unit(capacity.get("storage_bytes_free"), 1 << 30, "GiB"),
        ", ".join(map(describe_hypervisor, documents(host, "hypervisors"))),
        host.get("id"),
    )


def free_cores(capacity: Document) -> str:
    total, held = capacity.get("cpu_millicores_total"), capacity.get("cpu_millicores_committed")
    if not isinstance(total, int) or not isinstance(held, int):
        return "unknown"
    return f"{(total - held) / 1000:g} of {total / 1000:g}"


def describe_hypervisor(found: Document) -> str:
    """Say which hypervisor runs guests and on what, or why it does not."""
    if not found.get("available"):
        return f"no {found.get('name')} ({found.get('why')})"
    version = f" {found['version']}" if found.get("version") else ""
    return f"{found.get('name')}{version} on {str(found.get('accelerator') or 'unknown').upper()}"


def show(name: str, /, *, as_json: Json = False) -> None:
    """Show a host, what it holds in quarantine, and what it holds although no row places it there.

    :param name: Name or id.
    """
    with Api() as api:
        host = api.get(f"/v1/hosts/{segment(name)}")
        path = f"/v1/hosts/{host['id']}"
        quarantined: list[Document] = api.list(f"{path}/quarantined")["items"]
        foreign = things(api.get(f"{path}/foreign"), "items")
    if as_json:
        print_json({**host, "quarantined": quarantined, "foreign": foreign})
        return
    print_facts(facts(host))
    if quarantined:
        sys.stdout.write("\nquarantined\n")
        rows = ((vm.get("name"), vm.get("id"), moment(inner(vm, "quarantine").get("destroy_at"))) for vm in quarantined)
        print_table(("NAME", "ID", "DESTROYED"), rows, empty="")
    if foreign:
        sys.stdout.write("\nforeign: here without a row; shown and left alone\n")
        print_table(("VM",), ((each,) for each in foreign), empty="")


def facts(host: Document) -> list[tuple[str, object]]:
    """List what is shown of a host."""
    hypervisors = documents(host, "hypervisors")
    told: list[tuple[str, object]] = [
        (key, moment(value) if key.endswith("_at") else value)
        for key, value in host.items()
        if key not in ("hypervisors", "activity_names", "capacity") and value not in (None, {}, [])
    ]
    capacity = inner(host, "capacity")
    told += [(key, "unknown" if value is None else value) for key, value in capacity.items()]
    told += [("hypervisor", f"{describe_hypervisor(each)}: {each.get('why')}") for each in hypervisors]
    return told


def _unit(value: object, size: int, unit: str) -> str:
    return f"{value / size:.1f} {unit}" if isinstance(value, int) else "unknown"
