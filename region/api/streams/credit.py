"""How many bytes a client takes: it gives credit, deliveries use it up, at 0 nothing is read for it.

The last delivery may go below 0 by one batch: a batch larger than any credit must get through.
"""

from __future__ import annotations

import asyncio
from typing import Final

from georelay.errors import BadRequest
from georelay.limits import MIB

CREDIT_BYTES_MAX: Final = 64 * MIB


class Credit:
    """The credit of one subscription."""

    def __init__(self, size_bytes: int) -> None:
        self._bytes = 0
        self._some = asyncio.Event()
        self.give(size_bytes)

    @property
    def left_bytes(self) -> int:
        """Return what is left, below 0 when a batch was larger."""
        return self._bytes

    def give(self, size_bytes: int) -> None:
        """Add what a client sent.

        Raises:
            BadRequest: negative, or over CREDIT_BYTES_MAX together with what is left.
        """
        if size_bytes < 0 or self._bytes + size_bytes > CREDIT_BYTES_MAX:
            raise BadRequest(f"credit_bytes: {size_bytes} on top of {self._bytes} is outside 0..{CREDIT_BYTES_MAX}")
        self._bytes += size_bytes
        if self._bytes > 0:
            self._some.set()

    def use(self, size_bytes: int) -> None:
        """Take off what is being delivered."""
        self._bytes -= size_bytes
        if self._bytes <= 0:
            self._some.clear()

    async def some(self) -> None:
        """Return when there is credit."""
        await self._some.wait()
