"""Every error that Hostler raises on purpose.

    HostlerError
    ├── Refused                the caller's or the fleet's state; the same call meets the same answer
    │   ├── Malformed          400  the request cannot be read
    │   ├── Unauthenticated    401  no credential, or none that counts
    │   ├── Forbidden          403  the credential's role does not reach that far
    │   ├── NotFound           404  no such thing, or another project's
    │   ├── Conflict           409  the state or the fleet forbids it
    │   ├── Gone               410  past its grace
    │   ├── GenerationMoved    412  the row changed since the caller read it
    │   ├── TooLarge           413  the body is over its limit
    │   ├── Invalid            422  a value is out of range
    │   ├── Fenced             an older order than the host has seen (L-G5)
    │   ├── BelowFloor         the host worker is older than the fleet allows (H-S5)
    │   ├── Superseded         the row moved on under the order: read it again
    │   ├── NoRoom             409  the caps of a host leave no room for it (H-A2, H-P2)
    │   ├── Unreadable         a record that cannot be trusted (L-G8)
    │   └── Permanent          the VM's own fault: trying again cannot help (L-C6)
    └── Failed                 the world; tried again as the step's policy says
        ├── Unavailable        503  Postgres, Temporal or the API does not answer
        ├── TooOften           429  asked more often than this caller may: again in a second (S-6)
        ├── Busy               an earlier step of the same VM has not ended yet
        ├── OutOfSpace         the filesystem cannot hold it (D-7)
        ├── OutOfAddresses     every address of the host's subnet is taken
        ├── ImageUnreachable   the image's server does not answer (L-C4)
        └── StepFailed         a host call failed

A message says what was wanted, what was found and what to do. It never repeats its cause's text, and never holds
user-data, keys, the query of a URL or a host path (L-V5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class FieldError:
    """One bad field of a request: a JSON pointer (RFC 6901) and what is wrong with it."""

    pointer: str
    detail: str


class HostlerError(Exception):
    """Base of all; `detail` is the sentence that a person acts on."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Something failed"
    retryable: ClassVar[bool] = False

    def __init__(self, detail: str, *, errors: tuple[FieldError, ...] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = errors


class Refused(HostlerError):
    status = 409
    title = "Refused"


class Malformed(Refused):
    status = 400
    title = "The request cannot be read"


class Unauthenticated(Refused):
    status = 401
    title = "No valid credential"


class Forbidden(Refused):
    status = 403
    title = "Not allowed"


class NotFound(Refused):
    status = 404
    title = "Not found"


class Conflict(Refused):
    status = 409
    title = "The state forbids it"


class Gone(Refused):
    status = 410
    title = "Gone"


class GenerationMoved(Refused):
    status = 412
    title = "The generation moved"


class TooLarge(Refused):
    status = 413
    title = "Too large"


class Invalid(Refused):
    status = 422
    title = "A value is out of range"


class Fenced(Refused):
    title = "An older order than one already seen"


class BelowFloor(Refused):
    title = "The host worker is too old"


class Superseded(Refused):
    title = "The order's row has moved on"


class NoRoom(Refused):
    title = "No room"


class Unreadable(Refused):
    title = "A record cannot be trusted"


class Permanent(Refused):
    title = "Trying again cannot help"


class Failed(HostlerError):
    status = 503
    title = "Failed, will be tried again"
    retryable = True


class Unavailable(Failed):
    title = "Not available now"


class TooOften(Failed):
    status = 429
    title = "Asked too often"


class Busy(Failed):
    title = "An earlier step has not ended"


class OutOfSpace(Failed):
    title = "Not enough free space"


class OutOfAddresses(Failed):
    title = "No free address"


class ImageUnreachable(Failed):
    title = "The image cannot be reached"


class StepFailed(Failed):
    title = "A step on the host failed"
