"""A forwarder between two brokers: when one side is gone, so is the other, and nobody else hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from loadtest.campaign.forwarder import Forwarder

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def forwarded(serve: Serve) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Dial a server through a forwarder."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    forwarder = Forwarder()
    forwarder.target = server.sockets[0].getsockname()[:2]
    await forwarder.start()
    try:
        yield await asyncio.open_connection("127.0.0.1", forwarder.port)
    finally:
        await forwarder.close()
        server.close()


async def test_what_is_said_passes_both_ways() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(4))
        await reader.read()
        writer.close()

    async with forwarded(echo) as (reader, writer):
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"ping"
        writer.close()


async def test_a_side_that_goes_takes_the_other_with_it_and_no_task_fails_unheard() -> None:
    async def go(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.close()

    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    async with forwarded(go) as (reader, writer):
        writer.write(b"ping")
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
    assert not failed
