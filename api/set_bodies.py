"""The sets of a host as operators give them, each whole (H-S1)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from api.bodies import Body, Reference
from model.sync import GatewayRoute, WireguardPeer

MOST_ENTRIES = 1000
MOST_IMAGES = 100

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
PublicKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$", examples=["A" * 43 + "="])]
Endpoint = Annotated[str, Field(pattern=r"^(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9.-]{1,253}):[0-9]{1,5}$")]


class AddressesBody(Body):
    """Addresses of VMs that may do what others may not."""

    items: Annotated[list[Address], Field(max_length=MOST_ENTRIES)]

    def wanted(self) -> list[str]:
        return sorted({str(address) for address in self.items})


class PeerBody(Body):
    """A peer of the mesh: its public key, where it is reached, and the networks behind it."""

    public_key: PublicKey
    endpoint: Endpoint | None = None
    allowed_networks: Annotated[list[Network], Field(max_length=100)] = []


class PeersBody(Body):
    """The WireGuard peers of a host; a key names one peer."""

    items: Annotated[list[PeerBody], Field(max_length=MOST_ENTRIES)]

    @field_validator("items")
    @classmethod
    def _one_of_each(cls, items: list[PeerBody]) -> list[PeerBody]:
        if len({peer.public_key for peer in items}) < len(items):
            raise ValueError("a public key is named twice")
        return items

    def wanted(self) -> list[WireguardPeer]:
        return [
            WireguardPeer(
                public_key=peer.public_key,
                endpoint=peer.endpoint,
                allowed_networks=tuple(map(str, peer.allowed_networks)),
            )
            for peer in self.items
        ]


class RouteBody(Body):
    """A network whose answers go back through the WireGuard gateway, and the gateway's address."""

    destination: Network
    gateway: Address

    @model_validator(mode="after")
    def _of_one_family(self) -> RouteBody:
        if self.destination.version != self.gateway.version:
            raise ValueError("destination and gateway are of different address families")
        return self


class RoutesBody(Body):
    """The return routes of the WireGuard gateway; a destination has one."""

    items: Annotated[list[RouteBody], Field(max_length=MOST_ENTRIES)]

    @field_validator("items")
    @classmethod
    def _one_of_each(cls, items: list[RouteBody]) -> list[RouteBody]:
        if len({route.destination for route in items}) < len(items):
            raise ValueError("a destination is named twice")
        return items

    def wanted(self) -> list[GatewayRoute]:
        return [GatewayRoute(destination=str(route.destination), gateway=str(route.gateway)) for route in self.items]


class ImagesBody(Body):
    """The images that a host fetches ahead and keeps: `public/NAME`, `PROJECT/NAME`, or an image's id."""

    items: Annotated[list[Reference], Field(max_length=MOST_IMAGES)]
