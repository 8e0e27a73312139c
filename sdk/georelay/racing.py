"""Several ways to one answer, begun one after the other: the first that answers wins, the others are given up.

Source of the idea: RFC 8305 ("happy eyeballs"); its 250 ms between two ways were 250 ms lost where the first was dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from georelay.errors import GeorelayError, Retry, Unavailable

T = TypeVar("T")


class Way(NamedTuple):
    """One address, and how long after the first one it is tried at the latest; a failure before is not waited out."""

    after_s: float
    address: str


async def race(
    ways: Sequence[Way], ask: Callable[[str], Awaitable[T]], *, failed: Callable[[str, GeorelayError], None]
) -> T:
    """Return the first answer of `ask(address)`, tried in order.

    Args:
        failed: told of each way that was tried and failed.

    Raises:
        GeorelayError: one that another address would not help with, or the last one when all have failed.
    """
    last: GeorelayError = Unavailable("no address is known")
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    waiting = list(ways)
    running: dict[asyncio.Task[T], str] = {}
    try:
        while waiting or running:
            if waiting and (not running or loop.time() - began_s >= waiting[0].after_s):
                address = waiting.pop(0).address
                running[asyncio.ensure_future(_called(ask, address))] = address
                continue
            patience_s = began_s + waiting[0].after_s - loop.time() if waiting else None
            done, _ = await asyncio.wait(running, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                address = running.pop(task)
                try:
                    return task.result()
                except GeorelayError as error:
                    if error.retry not in (Retry.LATER, Retry.REFRESH):
                        raise
                    failed(address, error)
                    last = error
        raise last
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _called(ask: Callable[[str], Awaitable[T]], address: str) -> T:
    return await ask(address)
