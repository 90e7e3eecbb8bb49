"""A visitor's session: their token, sealed into a cookie that only this fleet's API can open (S-35).

Nothing is kept here: any process of the API, also after a restart, knows the visitor again.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from dataclasses import dataclass, replace

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from model.errors import Unreadable
from runtime.keys import MasterKeys

COOKIE = "hostler_session"
LONGEST_SECONDS = 12 * 3600
IDLE_SECONDS = 30 * 60
_CONTEXT = "console.session"


class _Sealed(BaseModel):
    token: str
    csrf: str
    began: float
    seen: float


@dataclass(frozen=True)
class Session:
    """Whose token it is, and the word that every form of theirs carries. `began`, `seen`: seconds of Unix time."""

    token: str
    csrf: str
    began: float
    seen: float

    @property
    def authorization(self) -> str:
        return f"Bearer {self.token}"

    def is_over(self, now: float) -> bool:
        """Tell whether it has lasted, or idled, for too long."""
        return now - self.began > LONGEST_SECONDS or now - self.seen > IDLE_SECONDS


def begin(token: str) -> Session:
    """Begin a session with a token that counts."""
    now = time.time()
    return Session(token, secrets.token_urlsafe(24), now, now)


def read(keys: MasterKeys, request: Request) -> Session | None:
    """Return a request's session, None for one that is over, forged, or of another fleet."""
    try:
        sealed = base64.urlsafe_b64decode(request.cookies.get(COOKIE, ""))
        found = _Sealed.model_validate_json(keys.open_at_rest(sealed, _CONTEXT))
    except (binascii.Error, ValueError, ValidationError, Unreadable):
        return None
    session = Session(found.token, found.csrf, found.began, found.seen)
    return None if session.is_over(time.time()) else session


def write(keys: MasterKeys, response: Response, session: Session, *, secure: bool) -> None:
    """Give the visitor the session, seen now."""
    now = replace(session, seen=time.time())
    sealed = keys.seal_at_rest(_Sealed(**vars(now)).model_dump_json().encode(), _CONTEXT)
    response.set_cookie(
        COOKIE,
        base64.urlsafe_b64encode(sealed).decode(),
        max_age=LONGEST_SECONDS,
        httponly=True,
        secure=secure,
        samesite="strict",
    )


def end(response: Response) -> None:
    """Take the session from the visitor; the token itself goes on."""
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
