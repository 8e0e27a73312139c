"""How long a request waits for a decision of the controller or of a home: the client's patience, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from georelay.errors import OutcomeUnknown

TIMEOUT_MS_MAX: Final = 60_000

T = TypeVar("T")


async def within(timeout_ms: int, work: Awaitable[T]) -> T:
    """Return what `work` returns within `timeout_ms` (taken as 1..TIMEOUT_MS_MAX).

    Raises:
        OutcomeUnknown: not decided in time; what was proposed may still happen.
    """
    try:
        async with asyncio.timeout(min(max(timeout_ms, 1), TIMEOUT_MS_MAX) / 1000):
            return await work
    except TimeoutError as error:
        raise OutcomeUnknown("not decided in time; describe or list the topics to see what became of it") from error
