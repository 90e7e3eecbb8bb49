"""The hosts of one installation on one machine, and what each has for itself there.

The first may be the machine itself. Every other one, and the first too where several were asked for at once, is a
network namespace joined to the machine by one link: its worker and its guests live in there, and reach the control
plane by that link only, so that cutting it cuts the host off (H-S10).
"""

from __future__ import annotations

import hashlib
from ipaddress import IPv4Network
from typing import Self, TypeVar

from drivers.names import HostNames
from drivers.network.joint import Joint
from model.base import Lenient
from model.errors import Invalid

MOST_HOSTS = 16
"""So many the first user ids of the default installation leave room for."""

_LINKS = IPv4Network("169.254.0.0/16")
"""The links' addresses: no guest's traffic to link-local addresses is ever forwarded (N-4)."""

_THIRD_NUMBERS = range(64, 168)
"""Third numbers of the links' networks: clear of both ends (RFC 3927, 2.1) and of 169.254.169.254."""


class HostPlace(Lenient):
    """All that two hosts on one machine must not share.

    link: the /30 between the host's own namespace `netns` and the machine; None: the worker runs on the machine itself,
    and `netns` holds no more than the guests' links.
    """

    number: int = 1
    bridge: str
    table: str
    tap_prefix: str
    cgroup: str
    uid_base: int
    uid_count: int = 10_000
    subnet: IPv4Network
    netns: str | None = None
    boot_id_path: str | None = None
    link: IPv4Network | None = None

    def names(self) -> HostNames:
        """Return what the drivers are given. Errors: Invalid, when a name does not fit."""
        return HostNames(
            bridge=self.bridge,
            table=self.table,
            tap_prefix=self.tap_prefix,
            cgroup=self.cgroup,
            uid_base=self.uid_base,
            uid_count=self.uid_count,
            subnet=self.subnet,
            netns=self.netns,
        )

    def with_boot_id_path(self, path: str) -> Self:
        """Say where the boot id is read; a host in a namespace of its own boots by itself, so it has its own file."""
        return self.model_copy(update={"boot_id_path": path if self.link is None else f"{path}-h{self.number}"})

    def joint(self, ports: tuple[int, ...]) -> Joint | None:
        """Return the namespace with its link, by which the machine's loopback ports `ports` are reached from inside."""
        if self.link is None or self.netns is None:
            return None
        return Joint(
            netns=self.netns,
            link=f"{self.tap_prefix}-h{self.number}",
            network=self.link,
            table=f"{self.table}_h{self.number}",
            ports=ports,
        )


Place = TypeVar("Place", bound=HostPlace)


def join(place: Place, name: str) -> Place:
    """Give a host a namespace of its own, with a link of which installations of other names have others."""
    digest = hashlib.sha256(f"links {name}".encode()).digest()
    third = _THIRD_NUMBERS[int.from_bytes(digest[:4], "big") % len(_THIRD_NUMBERS)]
    first = 256 * third + 4 * MOST_HOSTS * (digest[4] % (64 // MOST_HOSTS))
    link = IPv4Network((int(_LINKS.network_address) + first + 4 * (place.number - 1), 30))
    return place.model_copy(update={"netns": f"{name}-h{place.number}", "link": link})


def place_host(first: HostPlace, name: str, number: int) -> HostPlace:
    """Place host `number` of an installation beside its first. Errors: Invalid, where its subnet is beyond the last."""
    size = first.subnet.num_addresses
    try:
        subnet = IPv4Network((int(first.subnet.network_address) + size * (number - 1), first.subnet.prefixlen))
    except ValueError as error:
        raise Invalid(f"no subnet is left for host {number}: choose a lower one with --subnet") from error
    beside = HostPlace(
        number=number,
        bridge=first.bridge,
        table=first.table,
        tap_prefix=first.tap_prefix,
        cgroup=f"{name}-h{number}",
        uid_base=first.uid_base + first.uid_count * (number - 1),
        uid_count=first.uid_count,
        subnet=subnet,
    )
    return join(beside, name)
