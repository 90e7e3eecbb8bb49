"""Make an admin token of this installation and print it, once: `python -m workers.token`, run as `hostler`.

It needs no token itself: whoever is `hostler` on this machine reaches Postgres anyway (S-9).
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from model.credential import new_credential
from model.errors import HostlerError, Unavailable
from runtime.settings import Settings
from store.audit import Actor
from store.database import open_pool
from store.token import TokenStore

LIFETIME = timedelta(days=90)


async def make_admin_token(database_url: str) -> str:
    """Store a new admin token that reaches every project, and return it. Raises Unavailable without Postgres."""
    token, credential = new_credential("hst")
    pool = await open_pool(database_url, largest=1, application="hostler token")
    try:
        await TokenStore(pool).add(
            token_id=credential.id,
            digest=credential.digest,
            role="admin",
            project=None,
            lifetime=LIFETIME,
            actor=Actor("hostler up"),
            name="command line",
        )
    finally:
        await pool.close()
    return token


def main() -> int:
    url = Settings().database_url
    try:
        if url is None:
            raise Unavailable("no database is configured: set HOSTLER_DATABASE_URL or HOSTLER_DATABASE_URL_FILE")
        print(asyncio.run(make_admin_token(url.get_secret_value())))
    except HostlerError as error:
        print(error.detail, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
