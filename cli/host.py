"""Look at hosts, and say which take new VMs."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from cli import host_sets
from cli.campaign import describe, describe_failures
from cli.client import Api
from cli.document import Document, documents, inner
from cli.host_foreign import print_foreign
from cli.options import Json, read_duration, read_pairs
from cli.output import age, moment, print_facts, print_json, print_table, say
from cli.room import describe_conditions, describe_room, short_room
from cli.vm_create import segment
from model.capacity import DIMENSIONS

_COLUMNS = ("NAME", "STATUS", "SEEN", "VMS", "CPU", "MEMORY", "DISK", "HYPERVISOR", "ID")


def ls(*, as_json: Json = False) -> None:
    """List hosts. A bar draws what living VMs hold of a host as `#`, what is being torn down as `~`."""
    with Api() as api:
        found = api.list("/v1/hosts")
    if as_json:
        print_json(found)
        return
    print_table(_COLUMNS, map(row, found["items"]), empty="there are no hosts; `hostler up` enrols this machine")


def row(host: Document) -> tuple[object, ...]:
    """Make a host's row of the table. What its probe could not tell is shown as unknown, never as 0 (H-S7)."""
    seen = age(host.get("last_report_at"))
    return (
        host.get("name"),
        describe_status(host),
        f"{seen} ago" if seen else "never",
        host.get("vms"),
        *(short_room(host, name) for name in DIMENSIONS),
        ", ".join(map(describe_hypervisor, documents(host, "hypervisors"))),
        host.get("id"),
    )


def describe_status(host: Document) -> str:
    """Say what a host is, and that it is silent; in maintenance that is expected until then (H-E2).

    Of one that is drained it says how far, as `draining 3/8`.
    """
    if host.get("status") == "maintenance":
        return f"maintenance until {moment(host.get('maintenance_until'))}"
    drain = inner(host, "drain")
    told = f"{host.get('status')} {drain.get('done')}/{drain.get('total')}" if drain else str(host.get("status"))
    return "silent" if host.get("silent") else told


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
        foreign = documents(api.get(f"{path}/foreign"), "items")
        forgotten: list[Document] = api.list(f"{path}/forgotten")["items"]
        sets = api.get(f"{path}/sets")
    if as_json:
        print_json({**host, "sets": sets, "quarantined": quarantined, "foreign": foreign, "forgotten": forgotten})
        return
    print_facts([*facts(host), *(host_sets.facts(sets) if sets.get("revision") else [])])
    if quarantined:
        sys.stdout.write("\nquarantined\n")
        rows = ((vm.get("name"), vm.get("id"), moment(inner(vm, "quarantine").get("destroy_at"))) for vm in quarantined)
        print_table(("NAME", "ID", "DESTROYED"), rows, empty="")
    if forgotten:
        sys.stdout.write("\ngiven up with this host\n")
        rows = (tuple(vm.get(key) for key in ("project", "name", "power_state", "id")) for vm in forgotten)
        print_table(("PROJECT", "NAME", "WANTED", "ID"), rows, empty="")
    if foreign:
        sys.stdout.write("\nhere without a row\n")
        print_foreign(foreign)


def cordon(name: str, /, *, as_json: Json = False) -> None:
    """Let no new VM come to a host; those that are there stay.

    :param name: Name or id.
    """
    _change(name, "cordon", as_json=as_json)


def uncordon(name: str, /, *, as_json: Json = False) -> None:
    """Let new VMs come to a host again.

    :param name: Name or id.
    """
    _change(name, "uncordon", as_json=as_json)


def label(name: str, /, *labels: str, as_json: Json = False) -> None:
    """Give a host these labels, and none besides; without any it has none.

    :param name: Name or id.
    :param labels: As key=value.
    """
    with Api() as api:
        body = {"labels": read_pairs(labels, "a label")}
        host = api.call("PATCH", f"/v1/hosts/{segment(name)}", body=body)
    if as_json:
        print_json(host)
        return
    told = ", ".join(f"{key}={value}" for key, value in sorted(inner(host, "labels").items()))
    say(f"{host['name']} is labelled {told}" if told else f"{host['name']} has no label")


def maintenance(
    name: str,
    /,
    *,
    lasting: Annotated[str, Parameter(name="--for", help="For how long, as 30m or 4h.")],
    as_json: Json = False,
) -> None:
    """Expect a host to be silent for a while, and let no new VM come to it; `hostler host uncordon` ends it.

    :param name: Name or id.
    """
    duration = read_duration(lasting, "--for")
    seconds = int(duration.total_seconds()) if duration else 0
    _change(name, "maintenance", as_json=as_json, body={"seconds": seconds})


def _change(name: str, verb: str, *, as_json: bool, body: Document | None = None) -> None:
    with Api() as api:
        host = api.call("POST", f"/v1/hosts/{segment(name)}/{verb}", body=body)
    if as_json:
        print_json(host)
    else:
        status = describe_status(host) if host["status"] == "maintenance" else host["status"]
        say(f"{host['name']} is {status}")


def facts(host: Document) -> list[tuple[str, object]]:
    """List what is shown of a host."""
    hypervisors = documents(host, "hypervisors")
    told: list[tuple[str, object]] = [
        (key, moment(value) if key.endswith("_at") else value)
        for key, value in host.items()
        if key not in ("hypervisors", "activity_names", "capacity", "caps", "held", "conditions", "drain")
        and value not in (None, {}, [])
    ]
    drain = inner(host, "drain")
    if drain:
        told.append(("drain", describe(drain)))
        told += [("not drained", each) for each in describe_failures(drain)]
    told += describe_room(host)
    capacity, held = inner(host, "capacity"), inner(host, "held")
    if held.get("leaving_vms"):
        vms = "1 VM" if held["leaving_vms"] == 1 else f"{held['leaving_vms']} VMs, the last"
        told.append(("being torn down", f"{vms} until {moment(held.get('leaving_until'))}"))
    told += [(key, "unknown" if value is None else value) for key, value in capacity.items()]
    told += describe_conditions(host)
    told += [("hypervisor", f"{describe_hypervisor(each)}: {each.get('why')}") for each in hypervisors]
    return told
