"""The confined child that fetches an image, checks its digest, unpacks it and reads its header (D-2, D-3, S-18).

Its order is one line of JSON on standard input (the URL is a secret, so it is in no argument and no environment). It
says what happens as lines of JSON on standard output: `validator` and `need`, which are answered with a line each,
`progress`, and at last `done` or `failed`. Files are descriptors that were handed over: it can reach no other. When its
parent is gone (standard input ends), so is it.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import os
import queue
import sys
import threading
import time
from typing import Any

from drivers.headers import read_header
from drivers.image_source import Cut, NotAllowed, NotServed, open_url
from drivers.unpack import CHUNK, Damaged, find_packing, unpack
from model.errors import Permanent

MAX_RESUMES = 100
MAX_FAILURES_IN_A_ROW = 4
PROGRESS_SECONDS = 0.25


class Failure(Exception):
    """The end of this try: a word that the parent knows, and what a person may read."""

    def __init__(self, kind: str, detail: str = "", number: int = 0) -> None:
        super().__init__(detail)
        self.kind = kind
        self.number = number


class Parent:
    """The other end of standard input and output."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._last_progress = 0.0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin.buffer:
            self._lines.put(line)
        os._exit(4)

    def hear(self) -> Any:
        """Wait for the next line."""
        return json.loads(self._lines.get())

    def say(self, event: str, **fields: object) -> None:
        """Send one event."""
        sys.stdout.write(json.dumps({"event": event} | fields) + "\n")
        sys.stdout.flush()

    def ask(self, event: str, **fields: object) -> None:
        """Send one event and wait for the answer, which is always to go on; who must not is killed."""
        self.say(event, **fields)
        self.hear()

    def progress(self, done: int, total: int | None, written: int) -> None:
        """Tell how far it is, a few times a second."""
        now = time.monotonic()
        if now - self._last_progress >= PROGRESS_SECONDS:
            self._last_progress = now
            self.say("progress", done=done, total=total, written=written)


class Download:
    """One file on its way into the partial file, whose digest runs along."""

    def __init__(self, order: dict[str, Any], parent: Parent) -> None:
        self._parent = parent
        self._url: str = order["url"]
        self._wanted: str = order["sha256"]
        self._file: int = order["partial"]
        self._limit: int = order["max_bytes"]
        self._validator: str | None = order["validator"]
        allowed: list[str] | None = order["allowed"]
        self._allowed = None if allowed is None else [ipaddress.ip_network(a) for a in allowed]
        self.total: int | None = None
        self._restart()

    def run(self) -> int:
        """Fetch until the digest is right; give the number of bytes. Raises Failure."""
        self._read_what_is_there()
        if not self._is_right():
            self._fetch()
        if not self._is_right():
            raise Failure("mismatch")
        return self.done

    def copy(self, source: int) -> int:
        """Take the bytes of an open file instead of a server's; give their number. Raises Failure."""
        self._restart()
        os.ftruncate(self._file, 0)
        self.total = os.fstat(source).st_size
        self._promise()
        while chunk := os.pread(source, CHUNK, self.done):
            self._take(chunk)
        if not self._is_right():
            raise Failure("mismatch")
        return self.done

    def _fetch(self) -> None:
        failures = 0
        for _ in range(MAX_RESUMES):
            before = self.done
            try:
                self._request()
                return
            except Cut as error:
                failures = 0 if self.done > before else failures + 1
                if failures >= MAX_FAILURES_IN_A_ROW:
                    raise Failure("unreachable", f"the connection failed ({error})") from error
            except NotServed as error:
                raise Failure("unreachable", str(error)) from error
            except NotAllowed as error:
                raise Failure("permanent", f"the image was not fetched: {error}") from error
            time.sleep(min(2.0, 0.1 * 2**failures))
        raise Failure("unreachable", "the connection was cut too often")

    def _request(self) -> None:
        if self.done and not self._validator:
            self._restart()
        with open_url(self._url, start=self.done, validator=self._validator, allowed=self._allowed) as answer:
            if answer.start != self.done:
                self._restart()
            if answer.total_bytes == 0 and answer.body.status == 416:
                self._validator = None
                raise Cut("the file has changed")
            os.ftruncate(self._file, self.done)
            if answer.validator != self._validator:
                self._validator = answer.validator
                self._parent.ask("validator", value=self._validator)
            self.total = answer.total_bytes
            self._promise()
            while chunk := answer.body.read1(CHUNK):
                self._take(chunk)
            if self.total is not None and self.done < self.total:
                raise Cut("ended early")

    def _promise(self) -> None:
        if self.total is not None and self.total > self._limit:
            raise self._too_large(self.total)
        self._parent.ask("need", total=self.total)

    def _take(self, chunk: bytes) -> None:
        if self.done + len(chunk) > self._limit:
            raise self._too_large(self.done + len(chunk))
        written = 0
        try:
            while written < len(chunk):
                written += os.pwrite(self._file, memoryview(chunk)[written:], self.done + written)
        except OSError as error:  # no failure of the network, which the same exception means all around this
            raise Failure("system", number=error.errno or 0) from error
        self._digest.update(chunk)
        self.done += len(chunk)
        self._parent.progress(self.done, self.total, self.done)

    def _too_large(self, size: int) -> Failure:
        return Failure(
            "permanent",
            f"the image's file is {size >> 20} MiB or more, over the limit of {self._limit >> 20} MiB",
        )

    def _restart(self) -> None:
        self.done = 0
        self._digest = hashlib.sha256()

    def _read_what_is_there(self) -> None:
        while chunk := os.pread(self._file, CHUNK, self.done):
            self._digest.update(chunk)
            self.done += len(chunk)

    def _is_right(self) -> bool:
        return self._digest.hexdigest() == self._wanted


def fetch(order: dict[str, Any], parent: Parent) -> None:
    """Do all of it, or raise Failure."""
    download = Download(order, parent)
    try:
        done = download.run() if order["source"] is None else download.copy(order["source"])
    except Failure as failure:
        parent.say("failed", kind=failure.kind, detail=str(failure), number=failure.number, received=download.done)
        return
    parent.say("progress", done=done, total=done, written=done)
    file: int = order["partial"]
    packing = find_packing(file) if order["kind"] == "rootfs" else None  # a kernel is packed for its boot loader
    if packing is not None:
        try:
            with os.fdopen(os.dup(file), "rb") as source:
                source.seek(0)
                unpack(
                    packing,
                    source,
                    order["output"],
                    order["max_bytes"],
                    lambda _: parent.progress(done, done, done + os.fstat(order["output"]).st_blocks * 512),
                )
        except Damaged as error:
            raise Failure("permanent", f"the packed image ({packing}) {error}") from error
        file = order["output"]
    if order["kind"] == "rootfs":
        read_header(file, max_virtual_size_bytes=order["max_virtual_size_bytes"], stated_format=order["format"])
    parent.say("done", unpacked=packing is not None)


def main() -> None:
    """Be the child."""
    parent = Parent()
    order = parent.hear()
    try:
        fetch(order, parent)
    except Failure as failure:
        parent.say("failed", kind=failure.kind, detail=str(failure))
    except Permanent as error:
        parent.say("failed", kind="permanent", detail=error.detail)
    except (OSError, MemoryError) as error:
        # The text of the error may hold foreign text, so only its number leaves this process.
        parent.say("failed", kind="system", number=getattr(error, "errno", None) or 0)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(0)  # the listening thread would hold the interpreter's end up
