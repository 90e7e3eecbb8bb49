"""What is wrong with a host, each with what a person can do (D-12, H-E2, H-E5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from api.documents.base import Condition, ConditionName
from model.report import Capacity
from model.room import DISK_STOP_CREATES_PERCENT, DISK_WARN_PERCENT, describe_room, is_below
from model.text import clean_text
from model.versions import describe_floor
from store.host import StoredHost

SHOWN_FOR = timedelta(days=7)
"""How long it is told that a host lost its state: nobody has to say that it was read."""


def host_conditions(host: StoredHost) -> list[Condition]:
    """List what is wrong with a host by its row and its last report."""
    found = _identity(host) + _foreign(host) + _outdated(host) + _unsynced(host)
    if host.report is not None:
        found += _disk(host.report.capacity) + _unmanaged(host.report.unmanaged)
    return found


def _identity(host: StoredHost) -> list[Condition]:
    told: list[Condition] = []
    names: tuple[tuple[ConditionName, datetime | None, str], ...] = (
        ("state_lost", host.state_lost_at, "reported with a new state directory: what it held before is lost"),
        ("rolled_back", host.rolled_back_at, "reported with an older copy of its state directory"),
    )
    for condition, at, what in names:
        if at is not None and datetime.now(UTC) - at < SHOWN_FOR:
            advice = "its VMs were looked at anew: rebuild, or delete, those that failed for want of their record"
            told.append(Condition(condition=condition, what=f"{what} ({at:%Y-%m-%d %H:%M} UTC)", advice=advice))
    if host.credential_revoked_at is not None:
        advice = f"`hostler host replace {host.name}` lets it join again"
        told.append(Condition(condition="revoked", what="its credential was revoked", advice=advice))
    return told


def _foreign(host: StoredHost) -> list[Condition]:
    """Tell of VMs that no row places there: which nobody stops before an operator has chosen (L-R1, H-R2)."""
    found: list[Condition] = []
    advice = f"`hostler host foreign {host.name}` lists them; "
    if host.vms_braked:
        what = f"it holds {host.vms_braked} VMs that no row places there: too many at once, so none of them is stopped"
        choices = "`hostler host adopt`, `quarantine` or `leave` settles each"
        found.append(Condition(condition="rows_missing", what=what, advice=advice + choices))
    if host.vms_misplaced:
        what = f"it holds {host.vms_misplaced} VMs whose rows name another host; they are stopped and kept"
        told = "nothing destroys them but you, on the host itself"
        found.append(Condition(condition="misplaced", what=what, advice=advice + told))
    return found


def _outdated(host: StoredHost) -> list[Condition]:
    if host.floor is None:
        return []
    what = describe_floor(host.worker_version, host.floor)
    advice = "upgrade Hostler there; until then nothing is done for its VMs, and their guests run on"
    return [Condition(condition="host_floored", what=what, advice=advice)]


def _unsynced(host: StoredHost) -> list[Condition]:
    """What the host said of its last sync is data (S-17)."""
    synced = host.synced
    if synced.fenced is not None:
        what = f"it refused its sets, having seen epoch {synced.fenced[0]}, number {synced.fenced[1]}"
        advice = "look whether this database was restored (`hostler restore`)"
        return [Condition(condition="sync_fenced", what=what, advice=advice)]
    if synced.error is None:
        return []
    what = f"its sets could not be applied: {clean_text(synced.error)}"
    return [Condition(condition="sync_failed", what=what, advice="it is tried again every minute")]


def _unmanaged(count: int) -> list[Condition]:
    if not count:
        return []
    what = f"{count} of its user ids for guests run processes that no readable record accounts for"
    return [Condition(condition="unmanaged", what=what, advice="look at them on the host; nothing touches them")]


def _disk(capacity: Capacity) -> list[Condition]:
    """List what is wrong with a host by its last report (D-12)."""
    free, total = capacity.storage_bytes_free, capacity.storage_bytes_total
    if not is_below(DISK_WARN_PERCENT, free, total):
        return []
    stopped = is_below(DISK_STOP_CREATES_PERCENT, free, total)
    what = "no VM is made there, and unused images were removed" if stopped else "VMs are still made there"
    advice = f"make room on the host; below {DISK_STOP_CREATES_PERCENT} % no VM is made"
    return [Condition(condition="disk_short", what=f"{describe_room(free, total)}: {what}", advice=advice)]
