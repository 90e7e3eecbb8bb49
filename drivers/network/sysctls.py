"""The kernel settings of our bridge and of forwarding (S-24)."""

from __future__ import annotations

from pathlib import Path

from drivers.names import HostNames
from drivers.network.namespace import run_inside_async
from model.errors import StepFailed

_ROOT = Path("/proc/sys/net")


def wanted(names: HostNames) -> dict[str, str]:
    """Return the settings: what guests say about routes is not believed, and only the bridge's own address answers."""
    four, six = f"ipv4/conf/{names.bridge}", f"ipv6/conf/{names.bridge}"
    return {
        "ipv4/ip_forward": "1",
        f"{four}/rp_filter": "1",
        f"{four}/accept_redirects": "0",
        f"{four}/send_redirects": "0",
        f"{four}/accept_source_route": "0",
        f"{four}/route_localnet": "0",
        f"{four}/proxy_arp": "0",
        f"{four}/arp_ignore": "1",
        f"{four}/arp_announce": "2",
        f"{six}/accept_ra": "0",
        f"{six}/accept_redirects": "0",
    }


async def ensure(names: HostNames) -> None:
    """Make the settings match; a kernel without IPv6 has none of its."""
    try:
        await run_inside_async(names.netns, lambda: _write(wanted(names)))
    except OSError as error:
        raise StepFailed(f"the settings of bridge {names.bridge} cannot be written") from error


async def read(names: HostNames) -> dict[str, str]:
    """Read the settings that are there."""
    return await run_inside_async(names.netns, lambda: _read(wanted(names)))


def _read(keys: dict[str, str]) -> dict[str, str]:
    return {key: (_ROOT / key).read_text().strip() for key in keys if (_ROOT / key).exists()}


def _write(settings: dict[str, str]) -> None:
    found = _read(settings)
    for key, value in settings.items():
        # Writing ip_forward resets others' settings even when it changes nothing.
        if key in found and found[key] != value:
            (_ROOT / key).write_text(value)
