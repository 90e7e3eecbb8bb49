"""The API's process: migrations, then HTTP. `python -m workers.api`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from datetime import timedelta
from functools import partial
from urllib.parse import urlsplit

import uvicorn

from api.app import LOOPBACK_NAMES, create_app
from api.parts import Parts
from model.errors import Unavailable
from runtime.keys import MasterKeys
from runtime.profile import connect_options
from runtime.settings import Settings
from runtime.ssh_ca import SshCa
from runtime.temporal import register_search_attributes
from store.fleet import ensure_fleet, note_hearing, set_silence
from store.migrate import migrate
from workers import process

HEARING_EVERY_SECONDS = 10.0
SIGNING_EVERY_SECONDS = 10.0
_log = logging.getLogger("hostler.api")


async def main(settings: Settings, stopping: asyncio.Event) -> None:
    """Serve until told to stop. Without Temporal it serves too: the sweep finds what could not be poked."""
    keys = await asyncio.to_thread(MasterKeys.load_or_create, settings.master_key_file)
    url = process.database_url(settings)
    await process.await_server("Postgres", stopping, partial(migrate, url))
    pool = await process.open_store(settings, application="hostler api")
    fleet = await ensure_fleet(pool)
    await set_silence(pool, timedelta(seconds=settings.host_silent_after_seconds))
    parts = Parts(
        pool=pool,
        keys=keys,
        fleet_id=fleet.id,
        authority=SshCa(settings.host_ca_file),
        ui_url=settings.temporal_ui_url,
        url=settings.url,
        gateway_url=settings.gateway_url,
        namespace=str(connect_options(settings)["namespace"]),
        domain=settings.domain,
        placement=settings.policy,
    )
    tasks = [
        asyncio.create_task(_connect(settings, parts, stopping)),
        asyncio.create_task(_say_that_we_hear(parts)),
        asyncio.create_task(_sign_certificates(parts)),
    ]
    server = _server(settings, parts)
    serving = asyncio.create_task(server.serve())
    await asyncio.wait([serving, asyncio.create_task(stopping.wait())], return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    await serving
    for task in tasks:
        task.cancel()
    await parts.drain()
    await pool.close()


def _server(settings: Settings, parts: Parts) -> uvicorn.Server:
    address = urlsplit(settings.url)
    config = uvicorn.Config(
        create_app(parts, LOOPBACK_NAMES),
        host="127.0.0.1",
        port=address.port or 8460,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=5,
        lifespan="off",
    )
    server = uvicorn.Server(config)
    # The process has handlers of its own: a second pair would swallow the first signal.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    return server


async def _connect(settings: Settings, parts: Parts, stopping: asyncio.Event) -> None:
    """Have a Temporal client as soon as Temporal answers; from then on the client reconnects by itself."""
    seal = process.control_seal(parts.keys, parts.fleet_id)
    with contextlib.suppress(Unavailable):
        client = await process.await_server("Temporal", stopping, partial(process.connect_temporal, settings, seal))
        parts.search_attributes = await register_search_attributes(client)
        parts.client = client


async def _say_that_we_hear(parts: Parts) -> None:
    """Silence of hosts counts only while the control plane itself can hear (H-S10)."""
    while True:
        try:
            await note_hearing(parts.pool)
        except Unavailable as error:
            _log.warning("cannot say that the API hears: %s", error.detail)
        await asyncio.sleep(HEARING_EVERY_SECONDS)


async def _sign_certificates(parts: Parts) -> None:
    """Sign what could not be signed when it was asked for, and what ends soon (L-C2)."""
    while True:
        try:
            await parts.certificates.establish()
            for woken in await parts.certificates.sign_due():
                parts.poke(woken.vm_id, woken.pass_type, woken.host_id)
        except Unavailable as error:
            _log.warning("host certificates wait: %s", error.detail)
        await asyncio.sleep(SIGNING_EVERY_SECONDS)


if __name__ == "__main__":
    os.umask(0o077)
    process.run(main)
