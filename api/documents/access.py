"""Tokens and the audit trail as the API shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from api.documents.base import Shown
from store.token import Role


class TokenDocument(Shown):
    """A token without itself. `project` null: it reaches every project. `maker`: who made it."""

    id: str
    name: str
    role: Role
    project: str | None
    maker: str | None
    created_at: datetime
    expires_at: datetime
    last_used_at: datetime | None
    revoked_at: datetime | None


class NewTokenDocument(TokenDocument):
    """A token that was just made, with itself, which is shown this once."""

    token: str


class AuditDocument(Shown):
    """Who changed what, when and from where. `before` and `after` hold what differs, never a secret."""

    number: int
    at: datetime
    project: str
    actor: str
    origin: str | None
    action: str
    object: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class AuditCheckDocument(Shown):
    """Whether the audit trail is what was written: `entries` of it fit together; `head` is the hash of the last one.

    Keep that hash elsewhere: with it a later check tells whether anything up to there was changed since.
    """

    entries: int
    head: str | None
    broken: str | None


class Limits(Shown):
    """How much a project may have in all; null: as much as hosts have room for."""

    max_vms: int | None
    max_vcpus: int | None
    max_memory_mib: int | None
    max_disk_gib: int | None
    max_images: int | None


class HeldByProject(Shown):
    """What a project has. What is deleted and can be undeleted holds its disk, and nothing else."""

    vms: int
    cpu_millicores: int
    memory_mib: int
    disk_gib: int
    images: int


class ProjectDocument(Shown):
    """A project: what it has, and how much it may."""

    name: str
    held: HeldByProject
    limits: Limits
