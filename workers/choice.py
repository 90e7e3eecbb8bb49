"""Choose an installation's names and ports once, and refuse what another holds, by name."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Generator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from drivers.durable import write_durably
from model.base import Lenient
from model.errors import Conflict, Invalid
from runtime.settings import DEFAULT_GATEWAY_PORT
from workers.host_place import MOST_HOSTS, HostPlace, join, place_host
from workers.installation import InstallationSettings, Ports, derive_settings, read_model, to_bytes

REGISTRY = Path("/var/lib/hostler-installations")
"""One file per installation of this machine. It lies outside /run: what is not up now still owns its users' files."""

DEFAULT_NETWORK = IPv4Network("0.0.0.0/0")


def no_environment() -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class Wishes:
    """What was said on the command line; None: nothing. A port of 0 asks for a free one."""

    name: str | None = None
    subnet: str | None = None
    uid_base: int | None = None
    netns: str | None = None
    hosts: int | None = None
    boot_id_path: str | None = None
    api_port: int | None = None
    temporal_port: int | None = None
    ui_port: int | None = None
    gateway_port: int | None = None
    database_url: str | None = None
    no_caps: bool = False
    service: bool = False
    environment: dict[str, str] = field(default_factory=no_environment)


class Held(Lenient):
    """What one installation holds on this machine."""

    home: str
    settings: InstallationSettings


def choose_settings(earlier: InstallationSettings | None, wishes: Wishes) -> InstallationSettings:
    """Return the earlier choice with what is said now; names, users and subnet of an installation never change."""
    base = earlier or derive_settings(wishes.name or "hostler")
    update: dict[str, object] = {}
    if wishes.subnet is not None:
        update["subnet"] = parse_subnet(wishes.subnet)
    if wishes.uid_base is not None:
        update["uid_base"] = wishes.uid_base
    if wishes.netns is not None:
        update["netns"] = wishes.netns
    fixed = {"name": wishes.name or base.name, **update}
    if earlier is not None:
        for what, wanted in fixed.items():
            if getattr(earlier, what) != wanted:
                raise Conflict(
                    f"this state directory was made with {what} {getattr(earlier, what)}, now {wanted} is asked for: "
                    "leave the option out, or use another HOSTLER_HOME"
                )
        if earlier.own_database and wishes.database_url:
            raise Conflict("this installation keeps its own Postgres: unset DATABASE_URL, or use another HOSTLER_HOME")
    else:
        update["own_database"] = wishes.database_url is None
    if wishes.service:
        update["service"] = True
    if wishes.environment:
        update["environment"] = {**base.environment, **check_environment(wishes.environment)}
    chosen = place_hosts(base.model_copy(update=update), wishes, first_time=earlier is None)
    for place in chosen.hosts:
        place.names()  # refuses what the drivers would not take
    return chosen


def place_hosts(chosen: InstallationSettings, wishes: Wishes, *, first_time: bool) -> InstallationSettings:
    """Place as many hosts on this machine as are asked for, those that are there kept where they are.

    Errors: Invalid for a number that cannot be, Conflict for fewer than there are.
    """
    there = len(chosen.hosts)
    wanted = there if wishes.hosts is None else wishes.hosts
    if not 1 <= wanted <= MOST_HOSTS:
        raise Invalid(f"--hosts {wanted}: one machine takes 1 to {MOST_HOSTS} hosts")
    if wanted < there:
        raise Conflict(f"this installation has {there} hosts on this machine: it cannot be brought up with {wanted}")
    if first_time and wanted > 1:
        if wishes.netns is not None:
            raise Invalid("--netns and --hosts: several hosts have namespaces of their own, leave out --netns")
        chosen = join(chosen, chosen.name)
    new = (place_host(chosen, chosen.name, number) for number in range(there + 1, wanted + 1))
    further = (*chosen.further_hosts, *new)
    if wishes.boot_id_path is not None:
        chosen = chosen.with_boot_id_path(wishes.boot_id_path)
        further = [place.with_boot_id_path(wishes.boot_id_path) for place in further]
    return chosen.model_copy(update={"further_hosts": tuple(further)})


def parse_subnet(text: str) -> IPv4Network:
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise Invalid(f"subnet {text[:40]!r} is no IPv4 network such as 10.84.0.0/24") from error


def check_environment(given: dict[str, str]) -> dict[str, str]:
    """Take further settings for our processes, but none that is secret: those would be in an environment (S-42)."""
    for name in given:
        if not name.startswith("HOSTLER_") or any(word in name for word in ("TOKEN", "DATABASE_URL", "KEY")):
            raise Invalid(f"--set {name[:64]}: only settings HOSTLER_… that hold no secret can be set this way")
    return given


def choose_ports(earlier: Ports | None, wishes: Wishes) -> Ports:
    """Return the remembered ports with what is said now; each 0 becomes a free port."""
    base = earlier or Ports(gateway=DEFAULT_GATEWAY_PORT)

    def pick(said: int | None, known: int) -> int:
        # A remembered free port answers the wish for a free one: a second run finds the first.
        return known if said is None or (said == 0 and earlier is not None) else said

    wanted = (
        pick(wishes.api_port, base.api),
        pick(wishes.temporal_port, base.temporal),
        pick(wishes.ui_port, base.ui),
        pick(wishes.gateway_port, base.gateway),
        base.temporal_http,
        base.temporal_metrics,
    )
    with contextlib.ExitStack() as held:
        chosen = [port or held.enter_context(free_port()) for port in wanted]
    if len(set(chosen)) < len(chosen):
        raise Invalid("two of the ports are the same: choose others")
    api, temporal, ui, gateway, http, metrics = chosen
    return Ports(api=api, temporal=temporal, ui=ui, gateway=gateway, temporal_http=http, temporal_metrics=metrics)


@contextlib.contextmanager
def free_port() -> Generator[int]:
    """Find a free port of loopback and hold it, so that the next one asked for is another."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener.getsockname()[1]


def check_ports(ports: Ports) -> None:
    """Refuse ports that other programs listen on; only while nothing of this installation runs."""
    options = {
        "--api-port": ports.api,
        "--gateway-port": ports.gateway,
        "--temporal-port": ports.temporal,
        "--ui-port": ports.ui,
    }
    others = {"Temporal's HTTP port": ports.temporal_http, "Temporal's metrics port": ports.temporal_metrics}
    for what, port in (options | others).items():
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError as error:
                raise Conflict(f"port {port} ({what}) is taken: choose another, or 0 for a free one") from error


def check_subnet(settings: InstallationSettings, routes: Path = Path("/proc/net/route")) -> None:
    """Refuse a subnet that a route of this machine already leads to, unless by our own bridge. Blocks."""
    found = [(link, network) for link, network in read_routes(routes) if network != DEFAULT_NETWORK]
    for place in settings.hosts:
        own = place.bridge if place.netns is None else f"{place.tap_prefix}-h{place.number}"
        wanted = place.subnet if place.netns is None else place.link
        for link, network in found:
            if wanted is not None and link != own and network.overlaps(wanted):
                raise Conflict(f"subnet {wanted} meets the route to {network} by {link}: choose {other_way(place)}")


def other_way(place: HostPlace) -> str:
    return "one with --subnet" if place.netns is None else "another --name, from which it follows"


def read_routes(path: Path) -> list[tuple[str, IPv4Network]]:
    """Read the kernel's IPv4 routes: link and destination (proc(5), /proc/net/route)."""
    found: list[tuple[str, IPv4Network]] = []
    for line in path.read_text().splitlines()[1:]:
        words = line.split()
        address, mask = (IPv4Address(int.from_bytes(bytes.fromhex(words[at]), "little")) for at in (1, 7))
        found.append((words[0], IPv4Network(f"{address}/{mask}")))
    return found


def hold_names(home: Path, settings: InstallationSettings, registry: Path = REGISTRY) -> None:
    """Write down what this installation holds. Blocks. Errors: Conflict, naming what another installation holds."""
    registry.mkdir(mode=0o755, exist_ok=True)
    for entry in sorted(registry.glob("*.json")):
        other = read_model(entry, Held)
        if other is None or other.home == str(home):
            continue
        if not (Path(other.home) / "settings.json").exists():
            entry.unlink(missing_ok=True)  # its state directory is gone, and with it all that it held
            continue
        refuse_meeting(settings, other)
    write_durably(registry / f"{settings.name}.json", to_bytes(Held(home=str(home), settings=settings)), mode=0o644)


def refuse_meeting(ours: InstallationSettings, other: Held) -> None:
    if ours.name == other.settings.name:
        refuse(f"name {ours.name}", other, "--name")
    for our, their in itertools.product(ours.hosts, other.settings.hosts):
        refuse_meeting_host(our, their, other)


def refuse_meeting_host(ours: HostPlace, theirs: HostPlace, other: Held) -> None:
    for what in ("bridge", "table", "tap_prefix", "cgroup", "link"):
        same_net = ours.netns == theirs.netns or what in ("cgroup", "link")
        if same_net and getattr(ours, what) == getattr(theirs, what) is not None:
            refuse(f"{what.replace('_', ' ')} {getattr(ours, what)}", other, "--name")
    if ours.uid_base < theirs.uid_base + theirs.uid_count and theirs.uid_base < ours.uid_base + ours.uid_count:
        refuse(f"users from {theirs.uid_base} to {theirs.uid_base + theirs.uid_count - 1}", other, "--uid-base")
    if ours.netns == theirs.netns and ours.subnet.overlaps(theirs.subnet):
        refuse(f"subnet {theirs.subnet}", other, "--subnet")


def refuse(what: str, other: Held, option: str) -> None:
    raise Conflict(f"{what}: held by the installation in {other.home}; choose another with {option}")
