"""The installation on this machine: bring it up, take it down, say how it is. Processes of `workers` do the work."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, cast

from cyclopts import Parameter

from cli.document import Document, documents, inner, things
from cli.failures import NotReachable, Unsuccessful
from cli.options import Json
from cli.output import cell, console, plain, print_facts, print_json, print_table, say
from cli.place import Place, home_directory, read_token_file
from cli.room import describe_conditions

Home = Annotated[Path | None, Parameter(name="--home", help="State directory. Default: HOSTLER_HOME.")]
_COLUMNS = ("SERVICE", "STATE", "PID", "RESTARTS", "WHERE", "DETAIL")
_TOKEN_HIDDEN = ("HOSTLER_TOKEN",)


def up(
    *,
    home: Home = None,
    guest: Path | None = None,
    name: str | None = None,
    subnet: str | None = None,
    uid_base: int | None = None,
    netns: str | None = None,
    hosts: int | None = None,
    boot_id_path: str | None = None,
    api_port: int | None = None,
    gateway_port: int | None = None,
    temporal_port: int | None = None,
    ui_port: int | None = None,
    port: int | None = None,
    service: bool = False,
    no_caps: bool = False,
    settings: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
    demo: Annotated[bool, Parameter(negative="--no-demo")] = True,
    as_json: Json = False,
) -> None:
    """Bring up everything on this machine, and the VM `demo`. What runs stays, unless it is of another build.

    Takes root.

    :param guest: Folder of the demo guest. Default: the checkout's newest.
    :param name: What bridge, tables and cgroup are named after.
    :param subnet: The guests' IPv4 network.
    :param uid_base: First user id of guests.
    :param netns: Named network namespace for guests.
    :param hosts: How many hosts this machine is; several live in network namespaces of their own.
    :param boot_id_path: Where the host worker reads the boot id; of several, each at this path with -h and its number.
    :param api_port: The API's port; 0 is a free one, remembered.
    :param gateway_port: The port where host workers get their orders; 0 is a free one, remembered.
    :param temporal_port: Temporal's port; 0 is a free one, remembered.
    :param ui_port: The port of Temporal's UI; 0 is a free one, remembered.
    :param port: 0: all ports are free ones, remembered.
    :param service: Have systemd keep it and start it at each boot; remembered.
    :param no_caps: Let a host that is made now admit whatever it is asked; else it takes caps below its machine's size.
    :param settings: A HOSTLER_… setting for all processes, as NAME=VALUE; may be given several times.
    :param demo: Make the VM `demo`.
    """
    from cli.events import run_told

    given = {
        "--guest": guest,
        "--name": name,
        "--subnet": subnet,
        "--uid-base": uid_base,
        "--netns": netns,
        "--hosts": hosts,
        "--boot-id-path": boot_id_path,
        "--api-port": api_port,
        "--gateway-port": gateway_port,
        "--temporal-port": temporal_port,
        "--ui-port": ui_port,
        "--port": port,
    }
    # One word each, so that no value is ever taken for an option.
    words = [f"{option}={value}" for option, value in given.items() if value is not None]
    words += ["--service"] * service + ["--no-caps"] * no_caps + [f"--set={pair}" for pair in settings]
    place = (home or home_directory()).absolute()
    found = run_told("workers.up", words, home=place, as_json=as_json, environment=environment())
    vm = make_demo(found, place, silent=as_json) if demo and found.get("image") else None
    if as_json:
        print_json({**found, "demo": vm})
        return
    tell_up(found, vm, place)


def make_demo(found: Document, home: Path, *, silent: bool) -> Document:
    from cli.client import Api
    from cli.demo import ensure_demo

    # The installation that was just brought up, whatever HOSTLER_URL and HOSTLER_TOKEN say of another one.
    with Api(Place(str(found["url"]), read_token_file(home), home)) as api:
        return ensure_demo(api, str(found["image"]), silent=silent)


def tell_up(found: Document, vm: Document | None, home: Path) -> None:
    """Tell where everything is, and what to type next."""
    from cli.demo import demo_line

    host = inner(found, "host")
    facts: list[tuple[str, object]] = []
    if vm is not None:
        facts += [("demo", demo_line(vm))]
    path = path_line()
    # First what the commands below it need.
    facts += [("PATH", path)] if path else []
    facts += [("environment", f"export HOSTLER_HOME={shlex.quote(str(home))}")] if home != home_directory() else []
    if vm is not None:
        command = command_prefix(home)
        facts += [
            ("log in", f"{command} vm ssh demo"),
            ("another VM", f"{command} vm create web-1 --image demo --ssh-key FILE.pub"),
        ]
    facts += [
        ("API docs", found.get("docs_url")),
        ("Temporal UI", found.get("ui_url")),
        ("logs", found.get("logs")),
        ("guests run on", guests_run_on(host)),
        *more_hosts(found),
    ]
    console().print(cell("Hostler is up."))
    print_facts(facts)
    if vm is None:
        say("the VM demo was not made: the demo guest is not built (`make guest`), or --no-demo was given")


def command_prefix(home: Path) -> str:
    """Return how to call this program: by its name, or with sudo and by its path if that is how it was called."""
    state = f"HOSTLER_HOME={shlex.quote(str(home))} " if home != _root_home() else ""
    if os.environ.get("SUDO_UID", "0") != "0":
        return f"sudo {state}{shlex.quote(str(program()))}"
    return "hostler"


def program() -> Path:
    """Return the path of the program `hostler` of this installation."""
    return Path(sys.executable).parent / "hostler"


def path_line() -> str | None:
    """Return the line that puts `hostler` on the PATH; None where it is already there."""
    found = shutil.which("hostler")
    if found is not None and Path(found).resolve() == program().resolve():
        return None
    return f'export PATH={shlex.quote(str(program().parent))}:"$PATH"'


def more_hosts(found: Document) -> list[tuple[str, object]]:
    """Name the hosts of this machine, where there are several."""
    hosts = documents(found, "hosts")
    return [("hosts", ", ".join(str(each.get("name") or each.get("why")) for each in hosts))] if len(hosts) > 1 else []


def guests_run_on(host: Document) -> str:
    """Say whether guests run on KVM or emulated, and why."""
    hypervisors = documents(host, "hypervisors")
    told = [
        f"{str(each.get('accelerator') or 'unknown').upper()} ({each.get('name')}): {one_line(each.get('why'))}"
        if each.get("available")
        else f"not on {each.get('name')}: {one_line(each.get('why'))}"
        for each in hypervisors
    ]
    return "; ".join(told) or "unknown: the host has not said"


def one_line(text: object) -> str:
    """Put what a program said in several lines, its line ends escaped or not, into one."""
    return " ".join(str(text).replace("\\n", " ").split())


def down(
    *,
    vms: Annotated[bool, Parameter(help="Stop the guests too; the next `hostler up` boots them.")] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Stop the processes of this machine's installation; guests keep running. Takes root."""
    from cli.events import run_told

    place = (home or home_directory()).absolute()
    words = ["--vms"] if vms else []
    found = run_told("workers.down", words, home=place, as_json=as_json, environment=environment())
    if as_json:
        print_json(found)
        return
    stopped = things(found, "stopped")
    guests = found.get("guests")
    what = f"stopped {plain(stopped)}" if stopped else "nothing was running"
    told = f"; guests stopped: {guests}" if guests is not None else "; guests keep running" if stopped else ""
    console().print(cell(what + told))


def status(*, home: Home = None, as_json: Json = False) -> None:
    """Say what is up on this machine, where, and why not. Takes root."""
    place = (home or home_directory()).absolute()
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "workers.status", "--home", str(place)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment(),
        check=False,
    )
    try:
        found = cast("Document", json.loads(ran.stdout))
    except ValueError as error:
        raise Unsuccessful(f"workers.status ended with {ran.returncode} and no document") from error
    if as_json:
        print_json(found)
    elif found.get("installed"):
        tell_status(found)
    if not found.get("installed"):
        kind = NotReachable if found.get("installed") is False else Unsuccessful
        raise kind(str(found.get("why") or "nothing is known of the state directory"))
    if ran.returncode != 0:
        stopped = all(each.get("state") == "stopped" for each in documents(found, "services"))
        raise Unsuccessful("nothing is up: `hostler up` brings it up" if stopped else "not everything is up")


def tell_status(found: Document) -> None:
    """Print the services as a table, and what else there is to know."""
    supervisor = inner(found, "supervisor")
    services = documents(found, "services")
    rows: list[tuple[object, ...]] = [
        ("supervisor", "ready" if supervisor.get("up") else "stopped", None, None, None, supervisor.get("why"))
    ]
    rows += [
        tuple(each.get(key) for key in ("name", "state", "pid", "restarts", "where", "detail")) for each in services
    ]
    print_table(_COLUMNS, rows, empty="")
    host = inner(found, "host")
    facts = [
        ("state directory", found.get("home")),
        ("API", found.get("url")),
        ("Temporal UI", found.get("ui_url")),
        ("guests run on", host.get("why") or guests_run_on(host)),
        *more_hosts(found),
        *(told for each in documents(found, "hosts") or [host] for told in describe_conditions(each)),
        *(("overdue VMs", ", ".join(map(str, things(host, "overdue")))) for _ in things(host, "overdue")[:1]),
        *(("nothing is done", f"{why}; see `hostler restore`") for why in [host.get("standstill")] if why),
    ]
    sys.stdout.write("\n")
    print_facts(facts)
    for each in services:
        # What was stopped on purpose has nothing to explain.
        for line in things(each, "log") if each.get("state") != "stopped" else ():
            say(f"{each.get('name')} | {line}")
    for rule, why in inner(found, "not_held").items():
        say(f"{rule} is not held: {why}")


def environment() -> dict[str, str]:
    """Return what a process of this installation is told: ours, without a token, which it has no use for."""
    from cli.processes import child_environment

    return {name: value for name, value in child_environment().items() if name not in _TOKEN_HIDDEN}


def _root_home() -> Path:
    return Path("/var/lib/hostler")
