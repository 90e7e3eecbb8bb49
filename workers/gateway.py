"""The gateway's process: all that hosts reach of Temporal (S-7). `python -m workers.gateway`.

A process of its own, since it reads what hosts send in another protocol, and so that neither it nor the API goes with
the other. It keeps nothing: a host whose poll ends with it asks again, and the next one opens what this one sealed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial

import grpc
import grpc.aio

from api.gateway import Gateway
from api.host_credentials import HostCredentials
from model.errors import Permanent
from runtime.converter import data_converter
from runtime.gateway import is_loopback
from runtime.keys import MasterKeys, read_secret
from runtime.settings import Settings
from runtime.temporal import connect
from store.database import open_pool
from store.host import HostStore
from store.migrate import check_schema
from workers import process

LIMIT_BYTES = 4 << 20
"""The largest message (S-6)."""

MOST_CALLS = 1000
"""Calls of one connection at a time: polls, answers and heartbeats of a host with many VMs."""

END_SECONDS = 5.0
_CERTIFICATE_LIMIT_BYTES = 64 << 10
_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second gateway at one address is a mistake that must be seen
    ("grpc.max_receive_message_length", LIMIT_BYTES),
    ("grpc.max_concurrent_streams", MOST_CALLS),
    ("grpc.max_metadata_size", 16 << 10),
    # A host that is gone without a word is found within a minute, and its polls end: they would take orders with them.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Hosts ping every 30 s; a server takes that for abuse unless told otherwise.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
)
_log = logging.getLogger("hostler.gateway")


async def main(settings: Settings, stopping: asyncio.Event) -> None:
    """Serve until told to stop. Calls that are answered end in peace, open polls are answered with nothing."""
    keys = await asyncio.to_thread(MasterKeys.load_or_create, settings.master_key_file)
    open_store = partial(open_pool, process.database_url(settings), largest=4, application="hostler gateway")
    pool = await process.await_server("Postgres", stopping, open_store)
    await process.await_server("the database's schema", stopping, partial(check_schema, pool))
    client = await process.await_server("Temporal", stopping, partial(connect, settings, data_converter(None)))
    credentials = HostCredentials(HostStore(pool).by_credential)
    gateway = Gateway(client.workflow_service, client.namespace, keys, credentials)
    server = build_server(gateway, settings)
    await server.start()
    _log.info("hosts reach the gateway at %s", settings.gateway_url)
    await stopping.wait()
    gateway.end()
    await server.stop(END_SECONDS)
    await pool.close()


def build_server(gateway: Gateway, settings: Settings) -> grpc.aio.Server:
    """Return a server, of this event loop, that listens where the settings say once it is started.

    Raises Permanent where hosts' credentials would travel in the clear (S-34), or the address is taken.
    """
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((gateway,))
    address = settings.gateway_listen
    try:
        if settings.gateway_certificate_file is not None and settings.gateway_key_file is not None:
            chain = settings.gateway_certificate_file.read_bytes()
            key = read_secret(settings.gateway_key_file, _CERTIFICATE_LIMIT_BYTES)
            server.add_secure_port(address, grpc.ssl_server_credentials([(key, chain)]))
        elif is_loopback(address):
            server.add_insecure_port(address)
        else:
            raise Permanent(
                f"the gateway listens on {address}, beyond this machine: name a certificate and its key by "
                "HOSTLER_GATEWAY_CERTIFICATE_FILE and HOSTLER_GATEWAY_KEY_FILE"
            )
    except FileNotFoundError as error:
        raise Permanent("the gateway's certificate or its key is not there: correct the path") from error
    except RuntimeError as error:
        raise Permanent(
            f"the gateway cannot listen on {address}: it is taken, not of this machine, or the certificate is "
            "none for the key"
        ) from error
    return server


if __name__ == "__main__":
    os.umask(0o077)
    process.run(main)
