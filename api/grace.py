"""How long what is deleted can be undeleted: the same question to VMs and volumes (L-R3, H-V3)."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import Query

from api.gate import Caller
from api.waiting import read_duration
from model.errors import FieldError, Forbidden, Invalid

LONGEST_GRACE = timedelta(days=30)

Grace = Annotated[str | None, Query(description="How long it can be undeleted, as 24h; 0s to 30d")]
Now = Annotated[bool, Query(description="The same as grace=0s")]


def read_grace(caller: Caller, grace: str | None, fleets: timedelta, *, now: bool) -> timedelta | None:
    """Return the grace that was asked for, None where none was.

    `fleets` is that of the fleet: a shorter one takes a token that belongs to no project. Raise Invalid, Forbidden.
    """
    if now and grace is not None:
        why = "give either grace or now"
        raise Invalid(f"grace: {why}", errors=(FieldError("query:grace", why),))
    chosen = timedelta(0) if now else read_duration(grace, "grace", LONGEST_GRACE) if grace is not None else None
    if chosen is not None and chosen < fleets and caller.project is not None:
        raise Forbidden("a grace shorter than the fleet's takes a token that belongs to no project")
    return chosen
