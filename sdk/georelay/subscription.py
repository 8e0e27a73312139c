"""One Subscribe call to one broker: responses out in order, requests in; what it delivers is bounded by credit."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc.aio

from georelay._pb import streams_pb2 as pb
from georelay.channels import Channels, error_of_call
from georelay.errors import GeorelayError, Unavailable

PATH: Final = "/georelay.v1.Streams/Subscribe"
OPEN_TIMEOUT_S: Final = 5.0


class Subscription:
    """Use `open`, then `read` until it raises."""

    def __init__(self, call: Any, address: str, credit_bytes: int) -> None:
        self.address = address
        self._call = call
        self._writing = asyncio.Lock()  # gRPC takes one write at a time
        self._owed_bytes = 0
        self._give_at_bytes = max(1, credit_bytes // 4)

    @classmethod
    async def open(cls, channels: Channels, address: str, start: pb.SubscribeStart) -> Subscription:
        """Begin a subscription at a broker.

        Raises:
            GeorelayError: refused, or nobody answers.
        """
        call = channels.stream(address, PATH, pb.SubscribeRequest, pb.SubscribeResponse)
        subscription = cls(call, address, start.credit_bytes)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await subscription.send(pb.SubscribeRequest(start=start))
                first = await subscription.read()
        except TimeoutError as error:
            call.cancel()
            raise Unavailable(f"{address}: no answer within {OPEN_TIMEOUT_S:g} s") from error
        except BaseException:
            call.cancel()
            raise
        if first.WhichOneof("response") != "opened":
            call.cancel()
            raise Unavailable(f"{address}: the answer to a subscription was {first.WhichOneof('response')}")
        return subscription

    async def read(self) -> pb.SubscribeResponse:
        """Return the next response (GeorelayError: the call is over)."""
        try:
            response = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error, self.address) from error
        if response is grpc.aio.EOF:
            raise await self._ended()
        found: pb.SubscribeResponse = response
        return found

    async def send(self, request: pb.SubscribeRequest) -> None:
        """Send one request (GeorelayError: the call is over)."""
        try:
            async with self._writing:
                await self._call.write(request)
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error, self.address) from error
        except asyncio.InvalidStateError as error:  # what grpc.aio says of a call that has ended
            raise await self._ended() from error

    async def _ended(self) -> GeorelayError:
        code, details = await self._call.code(), await self._call.details()
        if code is grpc.StatusCode.OK:
            return Unavailable(f"{self.address}: the broker ended the subscription")
        return Unavailable(f"{self.address}: {details or code.name}")

    async def consumed(self, size_bytes: int) -> None:
        """Give credit back for what the application has taken."""
        self._owed_bytes += size_bytes
        if self._owed_bytes >= self._give_at_bytes:
            owed, self._owed_bytes = self._owed_bytes, 0
            await self.send(pb.SubscribeRequest(credit_bytes=owed))

    async def finish(self, timeout_s: float) -> None:
        """End our side and wait for the broker's, so that what was sent last has its effect; then cancel."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self._writing:
                    await self._call.done_writing()
                await self._call.code()
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        """End the call now."""
        self._call.cancel()
