"""How a host reaches the gateway, its only way to Temporal (S-7)."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.service import TLSConfig

from model.errors import Permanent
from runtime.temporal import dial


async def connect_gateway(
    url: str, *, namespace: str, credential: str, converter: DataConverter, identity: str, ca: bytes | None = None
) -> Client:
    """Connect with a host's credential. url: `https://host:port`, or `host:port` of loopback; ca: PEM.

    Raises Unavailable when the gateway does not answer or refuses the credential, Permanent where the credential would
    travel in the clear.
    """
    tls: bool | TLSConfig = False
    target = url
    if url.startswith("https://"):
        target = urlsplit(url).netloc
        tls = TLSConfig(server_root_ca_cert=ca) if ca is not None else True
    elif not is_loopback(url):
        raise Permanent(f"the gateway's address {url} is not https: this host's credential would travel in the clear")
    options: dict[str, Any] = {"target_host": target, "namespace": namespace, "api_key": credential, "tls": tls}
    return await dial(options | {"identity": identity, "data_converter": converter}, "the gateway")


def is_loopback(address: str) -> bool:
    """Say whether `host:port` is reached from this machine alone."""
    host = urlsplit(f"//{address}").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
