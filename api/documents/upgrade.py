"""How far an upgrade is, as the API shows it."""

from __future__ import annotations

from api.documents.base import Shown


class HostReleaseDocument(Shown):
    """A host and what its worker runs."""

    name: str
    version: str | None
    silent: bool


class ObstacleDocument(Shown):
    """Something that is in the way of an upgrade, and what a person does about it."""

    what: str
    found: str
    advice: str


class UpgradeDocument(Shown):
    """What runs where. `release` is the API's; `build` the one that new passes begin on; `runs`: open passes by build.

    `migrations` are those that the database has. `obstacles`: what is in the way, in the order of the upgrade.
    """

    release: str
    migrations: int
    floor: str | None
    build: str | None
    runs: dict[str, int]
    hosts: list[HostReleaseDocument]
    obstacles: list[ObstacleDocument]
