"""Reach Postgres: the pool, one way to run a transaction, and what its errors mean to the rest of Hostler."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from model.errors import Conflict, NoRoom, Unavailable

if TYPE_CHECKING:
    Pool = asyncpg.Pool[asyncpg.Record]
    Connection = PoolConnectionProxy[asyncpg.Record]
else:
    Pool = asyncpg.Pool
    Connection = PoolConnectionProxy

STATEMENT_TIMEOUT_SECONDS = 5
LOCK_TIMEOUT_SECONDS = 2
ACQUIRE_TIMEOUT_SECONDS = 2.0

# What says nothing about the request: the server is away, full, going down, read-only, or gave this one up for another.
_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InternalClientError,
)


@contextmanager
def translated() -> Generator[None]:
    """Turn what asyncpg raises into the errors of the model, with the cause chained."""
    try:
        yield
    except asyncpg.UniqueViolationError as error:
        raise Conflict("another row has this value already; choose another one") from error
    except asyncpg.ConfigurationLimitExceededError as error:  # what migrations raise for a project's limits (S-36)
        raise NoRoom(str(error)) from error
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        raise Unavailable("the database refuses this user, or is not there; check the database URL") from error
    except _AWAY as error:
        raise Unavailable("the database does not answer now; try again in a moment") from error


async def open_pool(url: str, *, smallest: int = 1, largest: int = 10, application: str = "hostler") -> Pool:
    """Connect to the database at `url` and return a pool; raise Unavailable when it does not answer."""
    with translated():
        return await asyncpg.create_pool(
            url,
            min_size=smallest,
            max_size=largest,
            init=_prepare,
            timeout=5,
            command_timeout=STATEMENT_TIMEOUT_SECONDS + 2,
            max_inactive_connection_lifetime=300,
            server_settings={
                "application_name": application,
                "timezone": "UTC",
                "statement_timeout": f"{STATEMENT_TIMEOUT_SECONDS}s",
                "lock_timeout": f"{LOCK_TIMEOUT_SECONDS}s",
                "idle_in_transaction_session_timeout": "30s",
            },
        )


async def _prepare(connection: Any) -> None:
    await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


@asynccontextmanager
async def transaction(pool: Pool) -> AsyncGenerator[Connection]:
    """Run the block in one transaction: all of it, or nothing."""
    with translated():
        async with pool.acquire(timeout=ACQUIRE_TIMEOUT_SECONDS) as connection, connection.transaction():
            yield connection


@asynccontextmanager
async def reading(pool: Pool) -> AsyncGenerator[Connection]:
    """Run the block's single statement on a connection, without a transaction around it."""
    with translated():
        async with pool.acquire(timeout=ACQUIRE_TIMEOUT_SECONDS) as connection:
            yield connection


def changed(status: str) -> int:
    """Return how many rows a command changed, from its command tag (`UPDATE 1`)."""
    return int(status.rsplit(" ", 1)[-1])
