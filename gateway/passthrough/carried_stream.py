"""One streaming call through the gateway: bytes both ways, each direction as fast as its reader takes them.

Rule 1: a message is read when the one before it was written: back-pressure of either end reaches the other, and a call
        holds at most one message per direction here.
Rule 2: whichever end is over ends the other: the client's end of writing is passed on, its cancelling cancels, the
        broker's status goes back as it is.
Rule 3: a broken connection to the broker is UNAVAILABLE to the client, who opens another call: what it had not been
        answered has an unknown outcome, as with a broker of its own.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio


class CarriedStream:
    """One call; `run` carries it and returns the broker's (code, details, trailing metadata)."""

    def __init__(self, context: Any, call: Any) -> None:
        self._context = context
        self._call = call

    async def run(self) -> tuple[grpc.StatusCode, str, Any]:
        """Carry until the broker ends the call; cancelling this cancels it there."""
        loop = asyncio.get_running_loop()
        forth = loop.create_task(self._forth(), name="carry requests")
        try:
            await self._back()
            return await self._call.code(), await self._call.details() or "", await self._call.trailing_metadata()
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or "", error.trailing_metadata()
        finally:
            forth.cancel()
            await asyncio.gather(forth, return_exceptions=True)
            self._call.cancel()

    async def _forth(self) -> None:
        try:
            while (message := await self._context.read()) is not grpc.aio.EOF:
                await self._call.write(message)
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the broker has ended the call: `_back` has its status

    async def _back(self) -> None:
        while (message := await self._call.read()) is not grpc.aio.EOF:
            await self._context.write(message)
