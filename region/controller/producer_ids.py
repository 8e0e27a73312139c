"""Producer ids for the clients of one broker, taken from blocks that the controller hands out.

A block that got lost on the way (an answer that never came, a broker that died) is never given out again: ids are
unique, not dense.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class ProducerIds:
    """The ids this broker may still give out.

    Args:
        fetch_block: returns (first id, count) of a block that is this broker's alone.
    """

    def __init__(self, fetch_block: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        self._fetch_block = fetch_block
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()  # one fetch at a time, however many clients wait

    async def allocate(self) -> int:
        """Return an id that nobody in the mesh has had before. Raises what `fetch_block` raises."""
        async with self._lock:
            if self._next == self._end:
                first, count = await self._fetch_block()
                self._next, self._end = first, first + count
            allocated = self._next
            self._next += 1
            return allocated
