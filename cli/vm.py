"""Look at VMs: list, show, wait, console log."""

from __future__ import annotations

import base64
import binascii
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from cli.client import Api
from cli.document import Document, documents, inner
from cli.failures import Unsuccessful, Usage
from cli.follow import Watch, check_outcome, follow
from cli.options import Json, Timeout, read_duration
from cli.output import age, moment, print_facts, print_json, print_links, print_table

_COLUMNS = ("NAME", "PHASE", "POWER", "ADDRESS", "HOST", "IMAGE", "CPUS", "MEMORY", "AGE", "DETAIL")
_CONSOLE_LIMIT = 256 << 10


def ls(
    *,
    host: str | None = None,
    phase: str | None = None,
    power_state: str | None = None,
    label: str | None = None,
    image: str | None = None,
    name: str | None = None,
    limit: int | None = None,
    as_json: Json = False,
) -> None:
    """List VMs.

    :param host: Only those of this host (id or name).
    :param phase: Only those in this phase: creating, ready, failed, quarantined …
    :param power_state: Only those that are running, paused or stopped.
    :param label: Only those with this label, as key=value.
    :param image: Only those made from this image.
    :param name: Only the one with this name.
    :param limit: At most so many.
    """
    if limit is not None and limit < 1:
        raise Usage("--limit: must be at least 1")
    with Api() as api:
        found = api.list(
            "/v1/vms",
            most=limit,
            host=host,
            phase=phase,
            power_state=power_state,
            label=label,
            image=image,
            name=name,
        )
    if as_json:
        print_json(found)
        return
    print_table(_COLUMNS, map(row, found["items"]), empty="there are no VMs; `hostler vm create` makes one")


def row(vm: Document) -> tuple[object, ...]:
    """Make a VM's row of the table."""
    cores = vm.get("cpu_millicores")
    return (
        vm.get("name"),
        vm.get("phase"),
        power(vm),
        _of(vm, "addresses", "ip"),
        _of(vm, "host", "name"),
        vm.get("image"),
        f"{cores / 1000:g}" if isinstance(cores, int) else None,
        f"{vm.get('memory_mib')} MiB",
        age(vm.get("created_at")),
        detail(vm),
    )


def power(vm: Document) -> str | None:
    """Say whether a VM runs, and what is wanted where that differs; what nobody can tell stays None (H-S10)."""
    found, wanted = vm.get("power_state"), vm.get("desired_power_state")
    if found is None or found == wanted or vm.get("quarantine"):
        return found
    return f"{found} → {wanted}"


def detail(vm: Document) -> object:
    """Say what is worth knowing now: the end of a quarantine, the work that goes on, or the last error."""
    if vm.get("quarantine"):
        ends = f"destroyed {moment(_of(vm, 'quarantine', 'destroy_at'))}"
        # Where nobody can tell whether it is stopped, the end waits for whoever can.
        return f"{vm['status_detail']}; {ends}" if vm.get("status_detail") and not vm.get("power_state") else ends
    if vm.get("phase") == "unknown":
        known = inner(vm, "last_known")
        return f"its host is silent; was {known.get('phase')} {moment(known.get('seen_at'))}"
    told = vm.get("status_detail") or vm.get("last_error")
    return f"overdue: {told or 'see `hostler vm why`'}" if vm.get("overdue") else told


def show(name: str, /, *, as_json: Json = False) -> None:
    """Show a VM: all that is known of it, and its recent operations.

    :param name: Name or id.
    """
    with Api() as api:
        vm = api.get(f"/v1/vms/{api.find_vm_id(name)}")
    if as_json:
        print_json(vm)
        return
    print_facts(facts(vm))
    operations = documents(vm, "operations")
    if operations:
        sys.stdout.write("\n")
        names = ("id", "kind", "state", "result", "started_at", "ended_at", "attempts", "error")
        used = [each for each in names if any(operation.get(each) is not None for operation in operations)]
        rows = ([_shown(each, operation.get(each)) for each in used] for operation in operations)
        print_table([each.upper() for each in used], rows, empty="")
        print_links((each.get("kind"), each["link"]) for each in operations if each.get("link"))


def facts(vm: Document) -> list[tuple[str, object]]:
    """List what is shown of a VM."""
    hidden = {
        "operations",
        "operation",
        "settled",
        "addresses",
        "host",
        "quarantine",
        "last_known",
        "why",
        "at_next_boot",
        "volumes",
        "firewall",
    }
    told: list[tuple[str, object]] = [
        (key, _shown(key, value)) for key, value in vm.items() if key not in hidden and value not in (None, {}, [])
    ]
    quarantine = inner(vm, "quarantine")
    known = inner(vm, "last_known")
    more: list[tuple[str, object]] = [
        ("addresses", {key: each for key, each in inner(vm, "addresses").items() if each}),
        ("host", f"{_of(vm, 'host', 'name')} ({_of(vm, 'host', 'id')})" if vm.get("host") else None),
        ("quarantine", f"{quarantine.get('kind')}, destroyed {moment(quarantine.get('destroy_at'))}"),
        ("last_known", f"{known.get('phase')}, {known.get('power_state')}, {moment(known.get('seen_at'))}"),
    ]
    volumes = documents(vm, "volumes")
    more.append(("volumes", ", ".join(f"{each.get('name')} ({each.get('size_gib')} GiB)" for each in volumes)))
    more.append(("firewall", _firewall(inner(vm, "firewall"))))
    more.append(("why", inner(vm, "why").get("sentence")))
    wanted = {
        "why": True,
        "volumes": True,
        "firewall": True,
        "addresses": True,
        "host": True,
        "quarantine": quarantine,
        "last_known": vm.get("phase") == "unknown",
    }
    return told + [(key, value) for key, value in more if wanted[key] and value]


def _firewall(found: Document) -> str | None:
    ways = [f"{len(documents(found, way))} {way}" for way in ("inbound", "outbound")]
    if not found.get("enabled"):
        return None if ways == ["0 inbound", "0 outbound"] else f"disabled; rules: {', '.join(ways)}"
    return f"enabled; rules: {', '.join(ways)}"


def why(name: str, /, *, as_json: Json = False) -> None:
    """Say what a VM waits for, since when, until when, what was tried, and what a person can do.

    :param name: Name or id.
    """
    with Api() as api:
        vm = api.get(f"/v1/vms/{api.find_vm_id(name)}")
    if as_json:
        print_json(vm.get("why"))
        return
    told = inner(vm, "why")
    from cli.output import console as make_console

    settled = f"{vm.get('name')} is {vm.get('phase')}: nothing is waited for"
    make_console().print(_cell(str(told.get("sentence") or settled)))


def wait(name: str, /, *, timeout: Timeout = None, as_json: Json = False) -> None:
    """Wait until nothing is left to do for a VM.

    :param name: Name or id.
    """
    limit = read_duration(timeout, "--timeout")
    with Api() as api:
        found = api.find_vm(name)
        watch = Watch(str(found.get("name")), timeout=limit, silent=as_json)
        vm = follow(api, api.get(f"/v1/vms/{found['id']}"), watch)
    if as_json:
        print_json(vm)
    else:
        print_outcome(vm)
    check_outcome(vm)


def console(
    name: str,
    /,
    *,
    limit: Annotated[int, Parameter(name="--bytes", help="How much of its end, at most 262144.")] = 64 << 10,
    as_json: Json = False,
) -> None:
    """Print the end of a VM's console log, as the guest wrote it.

    :param name: Name or id.
    """
    if not 1 <= limit <= _CONSOLE_LIMIT:
        raise Usage(f"--bytes: must be 1 to {_CONSOLE_LIMIT}")
    with Api() as api:
        answer = api.get(f"/v1/vms/{api.find_vm_id(name)}/console", bytes=limit)
    if as_json:
        print_json(answer)
        return
    try:
        data = base64.b64decode(str(answer.get("data")), validate=True)
    except (ValueError, binascii.Error) as error:
        raise Unsuccessful("the API's answer holds no console log") from error
    # Raw, since it was asked for (S-17).
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def print_outcome(vm: Document) -> None:
    """Print in one line what a VM is now."""
    from cli.output import console as make_console

    words = [f"{vm.get('name')} is {vm.get('phase')}"]
    if vm.get("quarantine"):
        words.append(f"destroyed {moment(_of(vm, 'quarantine', 'destroy_at'))}")
    elif vm.get("phase") == "ready":
        words += [str(each) for each in (power(vm), _of(vm, "addresses", "ip")) if each]
    make_console().print(_cell(", ".join(words)))


def _cell(text: str) -> Any:
    from cli.output import cell

    return cell(text)


def _of(vm: Document, key: str, part: str) -> Any:
    return inner(vm, key).get(part)


def _shown(key: str, value: object) -> object:
    return moment(value) if key.endswith("_at") else value
