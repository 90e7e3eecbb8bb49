"""Images of a test's own, served from loopback, and what must stay as it was around them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drivers.confine import Confinement, python_binds, run_confined
from tests.e2e.installation import Installation
from tests.fixtures.image_server import ImageServer

CANARY = "canary-of-the-query"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SQL = """
import asyncio, asyncpg, sys
async def main():
    connection = await asyncpg.connect(sys.argv[1])
    print(await connection.fetchval(sys.argv[2]))
    await connection.close()
asyncio.run(main())
"""


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def make_image(folder: Path, *arguments: str) -> bytes:
    """Return the bytes of what `qemu-img create -f qcow2` makes."""
    made = folder / f"{len(list(folder.iterdir()))}.qcow2"
    options = [word for word in arguments if not word[0].isdigit()]
    size = [word for word in arguments if word[0].isdigit()]
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *options, str(made), *size], check=True)
    return made.read_bytes()


def variant(root: bytes, number: int) -> bytes:
    """The same disk as other content: qcow2 reads nothing behind its last cluster."""
    return root + f"variant {number:04} {os.urandom(4).hex()}".encode().ljust(512, b"\0")


def serve(server: ImageServer, path: str, body: bytes, *, sha256: str | None = None, **how: Any) -> dict[str, Any]:
    """Serve a body; return the `image` of a VM: an address whose query is a secret, and a digest."""
    server.serve(path, body, **how)
    return {"url": f"{server.base}{path}?token={CANARY}", "sha256": sha256 or digest_of(body)}


def name_image(fleet: Installation, name: str, rootfs: dict[str, Any]) -> str:
    """Name an image that boots as the demo guest does, with another root disk; return its reference."""
    items = fleet.call("GET", "/v1/images")[1]["items"]
    demo = next(image for image in items if image["name"] == "demo")
    body = {"name": name, "rootfs": rootfs, **{part: demo[part] for part in ("kernel", "initrd", "command_line")}}
    status, image = fleet.call("POST", "/v1/images", body)
    assert status in (200, 201), image
    return name


@contextmanager
def all_stays(fleet: Installation) -> Iterator[None]:
    """Inventory and running guests (pid, start time) are the same afterwards."""
    inventory, guests = fleet.inventory(), fleet.guests()
    assert guests, "no other guest runs: nothing would be proven"
    yield
    after = fleet.inventory()
    changed = {kind: (inventory[kind], after[kind]) for kind in inventory if after[kind] != inventory[kind]}
    assert not changed, f"what was there, and what is: {changed}"
    assert fleet.guests() == guests, (guests, fleet.guests())


def flat(text: str) -> str:
    """Undo the wrapping of a terminal."""
    return " ".join(text.split())


def assert_fit_to_read(fleet: Installation, text: str, *wanted_digests: str) -> None:
    """No host path, no query of an address, no digest but the one that was asked for, no trace (S-19, S-33)."""
    for never in (str(fleet.home), "/tmp/", "/var/lib", CANARY, "token=", "Traceback", "Errno"):
        assert never not in text, (never, text)
    assert set(_DIGEST.findall(text)) <= set(wanted_digests), text


def remove(fleet: Installation, name: str) -> None:
    """Delete a VM by the command line, without grace, and wait until it is gone."""
    fleet.hostler("vm", "rm", name, "--now", timeout=100)


def ask_database(fleet: Installation, sql: str) -> str:
    """Run one statement as the fleet's own user (peer authentication); return its first value."""
    user = pwd.getpwnam("hostler")
    url = f"postgresql://hostler@/hostler?host={fleet.home}/postgres/socket"
    order = Confinement(
        argv=(sys.executable, "-P", "-c", _SQL, url, sql),
        uid=user.pw_uid,
        gid=user.pw_gid,
        environment={"LANG": "C.UTF-8"},
        bind=(*python_binds(), fleet.home / "postgres"),
    )
    done = asyncio.run(run_confined(order, timeout_seconds=20))
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@contextmanager
def attempts(fleet: Installation, limit: int) -> Iterator[None]:
    """Let creates end after so many attempts (the pauses between five of them are minutes)."""
    before = ask_database(fleet, "select max_create_attempts from fleet")
    ask_database(fleet, f"update fleet set max_create_attempts = {limit}")
    try:
        yield
    finally:
        ask_database(fleet, f"update fleet set max_create_attempts = {int(before)}")
