"""Talk to the confined child that fetches an image, and have qemu-img confirm what our reader found (S-18)."""

from __future__ import annotations

import asyncio
import errno
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drivers.confine import Confinement, Jail, python_binds, run_confined, start_confined
from drivers.headers import MIB, DiskFormat
from drivers.image_files import FetchProgress, ImageFile, escape, redacted_url
from drivers.launching import kill
from drivers.space import Reservation
from model.errors import ImageUnreachable, OutOfSpace, Permanent, StepFailed

PROBE_CPU_SECONDS = 30
PROBE_MEMORY_BYTES = 1 << 30
PROBE_TIMEOUT_SECONDS = 120.0
SILENCE_SECONDS = 180.0
_AHEAD_BYTES = 128 * MIB
_ROOT = Path(__file__).resolve().parents[1]
_PROGRAM = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from drivers.fetch import main; main()"
_PARTIAL, _OUTPUT, _SOURCE = 3, 4, 5
_RESOLVER = tuple(Path("/etc", name) for name in ("hosts", "nsswitch.conf", "resolv.conf", "gai.conf", "ssl"))
"""How the host finds other machines, and which certificates it believes."""


class Mismatch(Exception):
    """The digest is wrong; received_bytes is how much came."""

    def __init__(self, received_bytes: int) -> None:
        super().__init__()
        self.received_bytes = received_bytes


@dataclass(frozen=True)
class FetchOrder:
    """What one run of the child is about; the descriptors are open here, source only for a `file:` URL."""

    file: ImageFile
    user: tuple[int, int]
    partial: int
    output: int
    source: int | None
    validator: str | None
    allowed: tuple[str, ...] | None
    max_virtual_size_bytes: int

    @property
    def max_bytes(self) -> int:
        """The largest file: a disk of the limit, and what a format's tables may add."""
        return self.max_virtual_size_bytes + self.max_virtual_size_bytes // 50 + 64 * MIB


async def fetch(
    order: FetchOrder,
    reservation: Reservation,
    on_progress: Callable[[FetchProgress], None],
    keep_validator: Callable[[str | None], Awaitable[None]],
) -> bool:
    """Run the child to its end; tell whether the image was unpacked into `output`.

    keep_validator: stores what If-Range will need after a restart. Raises Mismatch, ImageUnreachable, Permanent,
    OutOfSpace or StepFailed.
    """
    process = await start_confined(_confinement(order), stdin=PIPE, stdout=PIPE)
    try:
        return await _converse(process, order, reservation, on_progress, keep_validator)
    except (BrokenPipeError, ConnectionResetError, TimeoutError, ValueError, KeyError, TypeError) as error:
        raise StepFailed("the process that fetches the image failed; it is tried again") from error
    finally:
        await kill(process)


async def probe(descriptor: int, image_format: DiskFormat, user: tuple[int, int]) -> int:
    """Let a confined qemu-img read the file by its settled format; give the disk's size in bytes."""
    finished = await run_confined(
        Confinement(
            argv=("qemu-img", "info", "--output=json", "-f", image_format, f"/dev/fd/{_PARTIAL}"),
            uid=user[0],
            gid=user[1],
            descriptors={_PARTIAL: descriptor},
            limits={"RLIMIT_CPU": PROBE_CPU_SECONDS, "RLIMIT_AS": PROBE_MEMORY_BYTES, "RLIMIT_FSIZE": 0},
            jail=Jail(reopened=(_PARTIAL,)),
        ),
        timeout_seconds=PROBE_TIMEOUT_SECONDS,
    )
    if finished.returncode != 0:
        raise Permanent(f"qemu-img cannot read the image as {image_format}; give an image that it can")
    try:
        found: dict[str, Any] = json.loads(finished.stdout)
        details: dict[str, Any] = found.get("format-specific", {}).get("data", {})
        size = int(found["virtual-size"])
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise StepFailed("qemu-img's answer about the image cannot be read") from error
    for is_wrong, what in (
        ("backing-filename" in found, "a backing file"),
        ("data-file" in details, "an external data file"),
        (bool(found.get("encrypted")), "encryption"),
        (bool(details.get("corrupt")), "a mark of corruption"),
    ):
        if is_wrong:
            raise Permanent(f"qemu-img found {what} in the image; give an image that stands alone")
    return size


def _confinement(order: FetchOrder) -> Confinement:
    descriptors = {_PARTIAL: order.partial, _OUTPUT: order.output}
    if order.source is not None:
        descriptors[_SOURCE] = order.source
    return Confinement(
        argv=(sys.executable, "-I", "-B", "-c", _PROGRAM),
        uid=order.user[0],
        gid=order.user[1],
        environment={"LANG": "C.UTF-8"},
        descriptors=descriptors,
        limits={
            "RLIMIT_AS": PROBE_MEMORY_BYTES,
            "RLIMIT_CPU": 3600,
            "RLIMIT_FSIZE": order.max_bytes,
            "RLIMIT_NOFILE": 64,
        },
        bind=(*python_binds(), *(path for path in _RESOLVER if path.exists())),
        jail=Jail(network=True),
    )


async def _converse(
    process: Process,
    order: FetchOrder,
    reservation: Reservation,
    on_progress: Callable[[FetchProgress], None],
    keep_validator: Callable[[str | None], Awaitable[None]],
) -> bool:
    assert process.stdin is not None  # noqa: S101 - asked for above
    assert process.stdout is not None  # noqa: S101
    await _send(process, _wire(order))
    while line := await _read_line(process.stdout):
        event: dict[str, Any] = json.loads(line)
        match event["event"]:
            case "validator":
                value = event["value"]
                await keep_validator(escape(str(value), 1024) if value is not None else None)
                await _send(process, True)
            case "need":
                if event["total"] is not None:
                    reservation.raise_to(int(event["total"]))
                reservation.keep_ahead(reservation.written_bytes, 0)
                await _send(process, True)
            case "progress":
                _note_progress(event, reservation, on_progress)
            case "done":
                return bool(event["unpacked"])
            case _:
                raise _failure(event, order.file, reservation)
    raise StepFailed("the process that fetches the image ended too early; it is tried again")


def _note_progress(
    event: dict[str, Any], reservation: Reservation, on_progress: Callable[[FetchProgress], None]
) -> None:
    total = None if event["total"] is None else int(event["total"])
    done = int(event["done"])
    on_progress(FetchProgress(done, total))
    written = int(event["written"])
    is_unpacking = written > done
    reservation.keep_ahead(written, _AHEAD_BYTES if total is None or is_unpacking else 0)


def _failure(event: dict[str, Any], file: ImageFile, reservation: Reservation) -> Exception:
    url = redacted_url(file.url)
    detail = escape(str(event.get("detail", "")))
    match event["kind"]:
        case "mismatch":
            return Mismatch(int(event["received"]))
        case "unreachable":
            return ImageUnreachable(f"the image {url} could not be fetched: {detail}; it is tried again")
        case "permanent":
            return Permanent(f"{detail} ({url})")
        case "system" if event.get("number") in (errno.ENOSPC, errno.EDQUOT):
            return _space_is_gone(reservation)
        case "system" if event.get("number") == errno.EFBIG:
            return Permanent(f"the image {url} is larger than the limit")
        case _:
            return StepFailed(f"the image {url} could not be handled on the host; it is tried again")


def _space_is_gone(reservation: Reservation) -> Exception:
    """Something else took the room that was promised: say it with the numbers of this moment."""
    try:
        reservation.check_outstanding()
    except OutOfSpace as error:
        return error
    return OutOfSpace("the host's filesystem was full for a moment while the image was fetched; it is tried again")


def _wire(order: FetchOrder) -> dict[str, object]:
    return {
        "url": order.file.url,
        "sha256": order.file.sha256,
        "format": order.file.format,
        "kind": order.file.kind,
        "partial": _PARTIAL,
        "output": _OUTPUT,
        "source": None if order.source is None else _SOURCE,
        "validator": order.validator,
        "allowed": order.allowed,
        "max_bytes": order.max_bytes,
        "max_virtual_size_bytes": order.max_virtual_size_bytes,
    }


async def _send(process: Process, value: object) -> None:
    assert process.stdin is not None  # noqa: S101 - asked for by `fetch`
    process.stdin.write(json.dumps(value).encode() + b"\n")
    await process.stdin.drain()


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """Read one line of the child, which may be lying: bounded in size (by the stream, 64 KiB) and time."""
    async with asyncio.timeout(SILENCE_SECONDS):
        return await stream.readline()
