"""Answer what users ask of a host itself, such as a VM's console log. The host dials out, so it asks for questions."""

from __future__ import annotations

import asyncio
import logging

from drivers.console import ConsoleLog
from drivers.host.parts import Paths
from model.errors import HostlerError
from workers.host_api import Errand, HostApi

WAIT_SECONDS = 30.0
PAUSE_SECONDS = 2.0
_log = logging.getLogger("hostler.errands")


async def run_errands(api: HostApi, paths: Paths) -> None:
    """Ask and answer for ever; an API that is away is asked again a little later."""
    while True:
        try:
            for errand in await api.take_errands(WAIT_SECONDS):
                await api.answer_errand(errand.id, await answer(errand, paths))
        except HostlerError as error:
            _log.info("errands wait: %s", error.detail)
            await asyncio.sleep(PAUSE_SECONDS)


async def answer(errand: Errand, paths: Paths) -> bytes:
    """Return the answer to one question; empty for what this release does not know or has not got."""
    if errand.kind != "console":
        return b""
    try:
        console = ConsoleLog(paths.folder(errand.vm_id), errand.limit_bytes)
        return await asyncio.to_thread(console.tail, errand.limit_bytes)
    except (HostlerError, ValueError, OSError):
        return b""
