"""Which address of a host's subnet a VM gets."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network

from model.errors import OutOfAddresses


def draw_address(subnet: IPv4Network, taken: Collection[IPv4Address], after: IPv4Address | None = None) -> IPv4Address:
    """Draw the next free address of a subnet: never its network, gateway (the first) or broadcast address.

    Next is the first one above `after`, then from the beginning on: an address that was just given back rests, while
    leases and neighbour tables still know its last holder.

    Raises OutOfAddresses when every one is taken. The caller holds the host's address lock and records the result
    before it lets go.
    """
    held = {int(address) for address in taken}
    first, end = int(subnet.network_address) + 2, int(subnet.broadcast_address)
    start = first if after is None else int(after) + 1
    for number in (*range(start, end), *range(first, start)):
        if number not in held:
            return IPv4Address(number)
    raise OutOfAddresses(f"no free address in {subnet}")


def is_guest_address(subnet: IPv4Network, address: IPv4Address) -> bool:
    """Tell whether an address is one that a VM of this subnet may have."""
    return int(subnet.network_address) + 2 <= int(address) < int(subnet.broadcast_address)
