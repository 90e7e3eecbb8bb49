"""Answer what users ask of a host itself, such as a VM's console log. The host dials out, so it asks for questions."""

from __future__ import annotations

import asyncio
import logging

from drivers.console import ConsoleLog
from drivers.host.parts import Parts
from model.adoption import HostRecord
from model.errors import HostlerError
from workers.host_api import Errand, HostApi

WAIT_SECONDS = 30.0
PAUSE_SECONDS = 2.0
_log = logging.getLogger("hostler.errands")


async def run_errands(api: HostApi, parts: Parts) -> None:
    """Ask and answer for ever; an API that is away is asked again a little later."""
    while True:
        try:
            for errand in await api.take_errands(WAIT_SECONDS):
                await api.answer_errand(errand.id, await answer(errand, parts))
        except HostlerError as error:
            _log.info("errands wait: %s", error.detail)
            await asyncio.sleep(PAUSE_SECONDS)


async def answer(errand: Errand, parts: Parts) -> bytes:
    """Return the answer to one question; empty for what this release does not know or has not got."""
    if errand.kind == "record":
        return _record(errand, parts)
    if errand.kind != "console":
        return b""
    try:
        console = ConsoleLog(parts.paths.folder(errand.vm_id), errand.limit_bytes)
        return await asyncio.to_thread(console.tail, errand.limit_bytes)
    except (HostlerError, ValueError, OSError):
        return b""


def _record(errand: Errand, parts: Parts) -> bytes:
    """Tell what is kept of a VM, from which a row can be made again; all its secrets came from the API (S-5)."""
    entry = parts.records.find(errand.vm_id)
    if entry is None or entry.unreadable or entry.config is None or entry.status is None:
        return b""
    told = HostRecord(
        input=entry.config.input,
        record=entry.status.record,
        power_state=parts.seen.last(errand.vm_id).power_state,
        ssh_host_key=entry.config.host_key.public,
        has_host_certificate=entry.config.host_certificate is not None,
    )
    text = told.model_dump_json().encode()
    return text if len(text) <= errand.limit_bytes else b""
