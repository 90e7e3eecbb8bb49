"""Run nft(8): one transaction or one list, inside a namespace, that never outlives who asked for it."""

from __future__ import annotations

import asyncio
import os

from drivers.network.namespace import prefix
from drivers.threads import finish
from model.errors import StepFailed

NFT_SECONDS = 20.0
_NOT_FOUND = 127
_ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""A transaction on its way ends with this process: it must not come after what the next worker has done (L-G2)."""


async def run_nft(netns: str | None, *arguments: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    """Run `nft -j` with these arguments; return its exit status, output and errors. netns: None is where this runs.

    Raises StepFailed when it is not installed, or did not end in time and was killed.
    """
    argv = (*prefix(netns), *_ENDS_WITH_US, "nft", "-j", *arguments)
    pipe = asyncio.subprocess.PIPE
    environment = {"PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin", "LC_ALL": "C"}
    try:
        process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
    except FileNotFoundError as error:
        raise StepFailed(f"{argv[0]} is not installed: install util-linux") from error
    # A transaction that began is waited for however often the caller is cancelled: else it could come after what
    # the next caller does.
    code, out, err = await finish(converse(process, stdin))
    if code == _NOT_FOUND:
        raise StepFailed("nft is not installed: install nftables")
    return code, out, err


async def converse(process: asyncio.subprocess.Process, stdin: bytes) -> tuple[int, bytes, bytes]:
    """Return exit status, output and errors of nft. Killed when it takes too long, or when the event loop ends."""
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin), NFT_SECONDS)
    except TimeoutError as error:
        raise StepFailed(f"nft did not end within {NFT_SECONDS:g} s and was killed") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return process.returncode or 0, out, err
