"""What is in the way of an upgrade: a pure function of what runs where (H-D4).

The order is: Postgres' schema and the API, the control workers, the host workers, then the floor.
"""

from __future__ import annotations

from collections.abc import Iterator

from model.base import Frozen
from model.versions import is_below, is_newer, numbers_of, release_order


class HostRelease(Frozen):
    """A host, and the release of its worker as it last said; None: it never did."""

    name: str
    version: str | None
    silent: bool = False


class Installed(Frozen):
    """What runs. `release`: of the API. `build`: the one that new passes begin on. `told`: whether Temporal answered.

    `migrations`: how many the database has, and how many the API knows. `runs`: open passes by build. `behind`: why the
    database stands still since it was restored (H-R1).
    """

    release: str
    migrations: tuple[int, int]
    floor: str | None = None
    told: bool = True
    build: str | None = None
    runs: dict[str, int] = {}
    hosts: tuple[HostRelease, ...] = ()
    behind: str | None = None


class Obstacle(Frozen):
    """Something that is in the way: what, what was found, and what a person does about it."""

    what: str
    found: str
    advice: str


def find_obstacles(there: Installed, to: str | None = None) -> tuple[Obstacle, ...]:
    """Name what is in the way of release `to`, or of having all of it on the API's own, in the order of the upgrade."""
    kinds = (_schema(there), _control(there), _runs(there), _hosts(there), _floor(there), _step(there, to))
    return tuple(found for each in kinds for found in each)


def _schema(there: Installed) -> Iterator[Obstacle]:
    made, known = there.migrations
    if there.behind:
        yield Obstacle(what="database", found=there.behind, advice="settle that first: `hostler restore`")
    if made > known:
        found = f"has migration {made}, the API's release knows {known}"
        yield Obstacle(what="schema", found=found, advice="start the API of the newer release")
    if made < known:
        found = f"lacks {known - made} of {known} migrations"
        yield Obstacle(what="schema", found=found, advice="start the API anew: it brings the schema forward")


def _control(there: Installed) -> Iterator[Obstacle]:
    build, release = there.build, there.release
    if not there.told:
        found, advice = "Temporal does not tell which builds there are", "look at `hostler status`, and ask again"
        yield Obstacle(what="control workers", found=found, advice=advice)
    elif build is None:
        advice = f"start control workers of {release}"
        yield Obstacle(what="control workers", found="no build is the one that passes begin on", advice=advice)
    elif release_order(build) < release_order(release):
        advice = f"start control workers of {release}; those of {build} end what they began"
        yield Obstacle(what="control workers", found=f"passes begin on the older build {build}", advice=advice)
    elif release_order(build) > release_order(release):
        found = f"passes begin on the build {build}, newer than the API's release {release}"
        yield Obstacle(what="control workers", found=found, advice="start the API of that release")


def _runs(there: Installed) -> Iterator[Obstacle]:
    for build, count in sorted(there.runs.items()):
        if build != there.build:
            passes = "1 pass is" if count == 1 else f"{count} passes are"
            advice = "keep a control worker of it until they have ended; without one the sweep begins them anew"
            yield Obstacle(what="open runs", found=f"{passes} open on the build {build}", advice=advice)


def _hosts(there: Installed) -> Iterator[Obstacle]:
    for host in there.hosts:
        what, runs = f"host {host.name}", f"runs {host.version}"
        if host.version is None:
            yield Obstacle(what=what, found="never said what it runs", advice="see `hostler host show`; let it report")
        elif is_newer(host.version, there.release):
            found = f"{runs}, newer than its control plane: it would refuse to start again"
            yield Obstacle(what=what, found=found, advice="upgrade the control plane first")
        elif is_newer(there.release, host.version):
            silent = ", and is silent" if host.silent else ""
            yield Obstacle(what=what, found=f"{runs}{silent}", advice=f"upgrade it to {there.release}")


def _floor(there: Installed) -> Iterator[Obstacle]:
    floor = there.floor
    if floor is None:
        return
    if is_newer(floor, there.release):
        found = f"is {floor}, above the control plane's release {there.release}"
        yield Obstacle(what="floor", found=found, advice="lower it (`hostler floor`), or upgrade the control plane")
    for host in there.hosts:
        if host.version is not None and is_below(host.version, floor):
            found = f"is {floor}: host {host.name} runs {host.version} and acts on no VM"
            yield Obstacle(what="floor", found=found, advice="upgrade that host, or lower the floor (`hostler floor`)")


def _step(there: Installed, to: str | None) -> Iterator[Obstacle]:
    ours, theirs = numbers_of(there.release), numbers_of(to)
    if ours is None or theirs is None or to is None:
        return
    if theirs[0] > ours[0] + 1 or (theirs[0] == ours[0] and theirs[1] > ours[1] + 1):
        found = f"{to} is more than one release after {there.release}"
        yield Obstacle(what="release", found=found, advice="upgrade to the releases between them, one after the other")
    if there.floor is not None and is_newer(there.floor, to):
        found = f"is {there.floor}, above {to}: its workers would act on no VM"
        yield Obstacle(what="floor", found=found, advice="lower it before you go back: `hostler floor`")
