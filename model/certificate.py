"""Host certificates of VMs: who they name, how long they hold, what a host gets (S-41)."""

from __future__ import annotations

from datetime import datetime, timedelta

from model.base import Frozen

VALID_FOR = timedelta(days=365)
RENEW_BEFORE = timedelta(days=60)
"""How long before its end a certificate is renewed: a VM has that time to be booted again, and then presents it."""
CLOCK_SKEW = timedelta(minutes=5)


class HostCertificate(Frozen):
    """A signed certificate. `certificate`: one line, as in a `…-cert.pub` file."""

    serial: int
    certificate: str
    valid_until: datetime


def principals(*, vm_id: str, name: str, project: str, domain: str) -> tuple[str, ...]:
    """Name whom a VM's certificate is good for: never a bare name, which another project has too (S-41)."""
    return (vm_id, f"{name}.{project}.{domain}")
