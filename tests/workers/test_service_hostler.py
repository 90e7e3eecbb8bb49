"""What host workers are told and reach of the control plane (S-7)."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

from workers.choice import Wishes, choose_settings
from workers.installation import Installation, Ports
from workers.service_hostler import host_service, installation_services

PORTS = Ports(api=1001, temporal=1002, ui=1003, gateway=1004, temporal_http=1005, temporal_metrics=1006)


def test_a_host_is_told_of_api_and_gateway_alone() -> None:
    """S-7: neither by its environment nor by its namespace does a host come to Temporal or Postgres."""
    installation = Installation(Path("/tmp/none"), choose_settings(None, Wishes(name="some", hosts=2)), PORTS)
    for place in installation.settings.hosts:
        told = host_service(installation, place).environment
        assert not [name for name in told if "TEMPORAL" in name or "DATABASE" in name]
        assert not [value for value in told.values() if "1002" in value or str(installation.postgres) in value]
        joint = installation.joint(place)
        assert joint is not None
        assert joint.network.subnet_of(IPv4Network("169.254.0.0/16"))
        assert set(joint.ports) == {1001, 1004}


def test_the_gateway_starts_before_hosts_and_ends_after_them() -> None:
    """S-7: hosts are the first to stop, so that what they finish is still taken."""
    installation = Installation(Path("/tmp/none"), choose_settings(None, Wishes(name="some", hosts=2)), PORTS)
    names = [service.name for service in installation_services(installation)]
    assert names.index("api") < names.index("gateway") < names.index("host") < names.index("host-2")
