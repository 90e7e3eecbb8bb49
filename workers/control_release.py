"""A host worker is never newer than its control plane: it refuses to start, before it changes any file (H-D4)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NoReturn

from model.errors import Conflict, HostlerError, Unreadable
from model.versions import VERSION, is_newer
from workers.host_api import HostApi, read_credentials

RETRY_SECONDS = 5.0
TIMEOUT_SECONDS = 3.0


async def check_release(api: HostApi, own: str = VERSION) -> bool:
    """Raise Conflict where the control plane is of an older release than this worker; False: it does not answer."""
    try:
        found = await api.find_release()
    except HostlerError:
        return False  # away, or it knows this host no more: its reports tell
    if is_newer(own, found):
        raise Conflict(
            f"this host worker is of release {own}, its control plane of {found or '0.1'}: upgrade the control plane "
            f"first, or start the host worker of {found or '0.1'} again; guests run on"
        )
    return True


async def check_at_start(home: Path) -> None:
    """Ask before anything is patched, so that going back stays possible. Raises Conflict.

    A control plane that is away keeps no host from starting (H-E6); `keep_checking` asks it later.
    """
    try:
        credentials = read_credentials(home / "credentials.json")
    except Unreadable:
        return  # has not joined, or is told what is wrong in a moment
    text = credentials.credential.get_secret_value()
    async with HostApi(credentials.api_url, text, timeout_seconds=TIMEOUT_SECONDS) as api:
        await check_release(api)


async def keep_checking(api: HostApi) -> NoReturn:
    """Ask until the control plane has told; raise Conflict where it is older."""
    while not await check_release(api):  # noqa: ASYNC110 - another machine's state
        await asyncio.sleep(RETRY_SECONDS)
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")
