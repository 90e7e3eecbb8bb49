"""How a command ends: its exit code, and the errors that decide it.

0  done                      3  the API, or the installation, is not reachable
1  refused, or failed        4  what was waited for did not come in time
2  called in a wrong way   130  left with Ctrl-C
"""

from __future__ import annotations

from enum import IntEnum

from cli.document import Document, documents
from model.errors import Failed, FieldError, HostlerError, Invalid, NotFound, Unavailable


class Exit(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    TIMED_OUT = 4
    LEFT = 130


class Problem(HostlerError):
    """The API's refusal or failure, with its whole problem document (RFC 9457)."""

    def __init__(self, status: int, document: Document) -> None:
        errors = tuple(
            FieldError(str(error.get("pointer", "")), str(error.get("detail", "")))
            for error in documents(document, "errors")
        )
        super().__init__(str(document.get("detail") or document.get("title") or f"HTTP {status}"), errors=errors)
        self.http_status = status
        self.document = document


class NoSuchThing(NotFound):
    """Nothing has the name or id that was given."""


class NotReachable(Unavailable):
    """The API does not answer."""


class TimedOut(Failed):
    """The wait is over, the work goes on."""


class Usage(Invalid):
    """A value on the command line that no request can be made of."""


class Unsuccessful(Failed):
    """The work ended, and not as it was wanted; `hints` are lines that say what is missing."""

    def __init__(self, detail: str, *, hints: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.hints = hints


class Left(Exception):
    """Ctrl-C while waiting for work that goes on without us; `hint` says how to come back to it."""

    def __init__(self, hint: str) -> None:
        super().__init__(hint)
        self.hint = hint


def exit_code(error: HostlerError) -> Exit:
    """Choose the exit code of an error."""
    for kind, code in ((NotReachable, Exit.UNREACHABLE), (TimedOut, Exit.TIMED_OUT), (Usage, Exit.USAGE)):
        if isinstance(error, kind):
            return code
    return Exit.FAILED
