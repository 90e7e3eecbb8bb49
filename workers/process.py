"""What the control plane's processes have in common: how they start, wait for their servers, and end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from temporalio.client import Client

from model.errors import HostlerError, Permanent, Unavailable
from runtime.converter import data_converter
from runtime.finish import finish
from runtime.keys import MasterKeys
from runtime.log import configure_logging
from runtime.seal import Seal
from runtime.settings import Settings
from runtime.temporal import connect
from store.database import open_pool

if TYPE_CHECKING:
    from store.database import Pool

T = TypeVar("T")
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0
_log = logging.getLogger("hostler.process")


def run(main: Callable[[Settings, asyncio.Event], Awaitable[None]]) -> None:
    """Run a process until it is told to stop, and end with the code that this means."""
    settings = Settings()
    configure_logging(settings.log_format, settings.log_level)
    try:
        asyncio.run(_until_stopped(settings, main))
    except HostlerError as error:
        _log.error("%s", error.detail)
        finish(1)
    finish(0)


async def _until_stopped(settings: Settings, main: Callable[[Settings, asyncio.Event], Awaitable[None]]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await main(settings, stopping)


async def await_server(name: str, stopping: asyncio.Event, attempt: Callable[[], Awaitable[T]]) -> T:
    """Try until the server answers; raise Unavailable when the process is told to stop first (case O16)."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return await attempt()
        except Unavailable as error:
            _log.info("waiting for %s: %s", name, error.detail)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), pause)
            raise Unavailable(f"told to stop while waiting for {name}")
        pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


async def open_store(settings: Settings, *, application: str) -> Pool:
    """Connect to the fleet's database."""
    return await open_pool(database_url(settings), application=application)


def database_url(settings: Settings) -> str:
    """Return the address of Postgres; raise Permanent where none is named."""
    if settings.database_url is None:
        raise Permanent("no database is named: set DATABASE_URL, or HOSTLER_DATABASE_URL_FILE to a file that holds it")
    return settings.database_url.get_secret_value()


def control_seal(keys: MasterKeys, fleet_id: str) -> Seal:
    """Return the control plane's side of the seal on host orders (S-3)."""
    return Seal(
        side="control",
        fleet_id=fleet_id,
        key_for=keys.host_sealing_key,
        control_key=keys.control_sealing_key(),
    )


async def connect_temporal(settings: Settings, seal: Seal, *, lazy: bool = False) -> Client:
    """Connect to Temporal with the control plane's seal."""
    return await connect(settings, data_converter(seal), lazy=lazy)
