"""Let an assistant on this machine use the API's tools: its standard input and output, passed on to the API (S-38)."""

from __future__ import annotations

import asyncio
from typing import Any

from cli.place import find_place

_SECONDS = 90.0


def mcp(*, write: bool = False) -> None:
    """Speak the Model Context Protocol on standard input and output, for an assistant that starts this command.

    The assistant sees what your token sees, and only looks unless you say otherwise.

    :param write: Let it change things, too. Deleting asks for the name again, and can be undone within its grace.
    """
    asyncio.run(_pass_on(write))


async def _pass_on(write: bool) -> None:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client
    from mcp.server.stdio import stdio_server

    place = find_place()
    headers = {"Authorization": f"Bearer {place.token}"} if place.token is not None else {}
    url = f"{str(place.url).rstrip('/')}/mcp" + ("/write" if write else "")
    async with (
        httpx2.AsyncClient(headers=headers, timeout=_SECONDS, trust_env=False, follow_redirects=False) as client,
        streamable_http_client(url, http_client=client) as (from_api, to_api),
        stdio_server() as (from_assistant, to_assistant),
    ):
        back = asyncio.create_task(_forward(from_api, to_assistant))
        await _forward(from_assistant, to_api)
        back.cancel()


async def _forward(source: Any, target: Any) -> None:
    async for message in source:
        if not isinstance(message, Exception):
            await target.send(message)
