"""The SSH CA as the API shows it."""

from __future__ import annotations

from datetime import datetime

from api.documents.base import Shown


class RevokedDocument(Shown):
    """A host certificate that counts no more; its key belongs to a VM that was destroyed."""

    serial: int
    public_key: str
    valid_until: datetime


class SshCaDocument(Shown):
    """What VMs' host certificates are checked by. `domain` ends their names: `<name>.<project>.<domain>`."""

    host_ca: str | None
    domain: str
    revoked: list[RevokedDocument]
