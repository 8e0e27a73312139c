"""Publish calls of all clients on their way to one broker: messages of one stream instead of a call for each.

Rule 1: calls that come in one turn of the loop, or while a message is being written, travel in one message. While
        others wait for answers, of whichever broker, a message is held back some milliseconds, the more the more wait;
        not one that is full, nor what did not fit into the one before.
        Each call has its own caller, and is answered, refused or cancelled by itself; the broker treats it like one
        that comes alone.
Rule 2: a stream is opened when a call has succeeded by itself, in the name of that caller, and used once the broker
        has said that it reads. Without one (an older broker, a new connection) calls go one by one as ever.
Rule 3: what was not written when a stream ends was surely not sent: it goes by a call of its own. What was written and
        not answered has an unknown outcome (Lost).
Rule 4: a broker that stops says so first: then nothing more is sent, and all that was is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from georelay._pb import carried_pb2 as pb
from georelay.limits import KIB

log = structlog.get_logger()

METHOD: Final = "/georelay.v1.CarriedCalls/Publish"
REQUEST_BYTES_MAX: Final = 64 * KIB  # a larger one goes by itself: it would hold up the others
MESSAGE_BYTES_MAX: Final = 256 * KIB
PACE_S: Final = 0.001  # for each other call that waits: a message costs as much as dozens of calls in it
PACE_S_MAX: Final = 0.015
AGAIN_S: Final = 10.0  # after a stream was refused, by a broker that knows none for instance


class Lost(Exception):
    """The stream ended before the answer: the record may be stored."""


class CarriedPublishes:
    """One stream to one broker, from its opening to its end."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        metadata: tuple[tuple[str, str], ...],
        *,
        ended: Callable[[CarriedPublishes], None],
        calls_waiting: Callable[[], int],
    ) -> None:
        """Open it in the name of a caller, whose `metadata` a broker has just taken.

        Args:
            ended: told of its end. calls_waiting: how many have no answer yet, those of other streams included.
        """
        self.channel = channel
        self.is_closing = False
        self._calls_waiting = calls_waiting
        self._tag = 0
        self._is_open = False
        self._unsent: dict[int, pb.CarriedCall] = {}
        self._cancelled: list[int] = []
        self._waiting: dict[int, asyncio.Future[pb.CarriedAnswer | None]] = {}
        self._news = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(metadata), name="carried publishes")
        self._task.add_done_callback(lambda _: ended(self))

    @property
    def is_usable(self) -> bool:
        """Return whether calls can be sent now."""
        return self._is_open and not self.is_closing

    @property
    def calls_waiting(self) -> int:
        """Return how many calls have no answer yet."""
        return len(self._waiting)

    async def publish(self, request: bytes, *, authorization: str | None, client: str) -> pb.CarriedAnswer | None:
        """Return the broker's answer to one call, None when it was surely not sent (Lost: it may have been)."""
        self._tag = tag = self._tag + 1
        call = pb.CarriedCall(tag=tag, request=request, authorization=authorization, client=client)
        future: asyncio.Future[pb.CarriedAnswer | None] = asyncio.get_running_loop().create_future()
        self._unsent[tag], self._waiting[tag] = call, future
        self._news.set()
        try:
            return await future
        finally:
            if self._waiting.pop(tag, None) is not None and self._unsent.pop(tag, None) is None:  # its client has left
                self._cancelled.append(tag)
                self._news.set()

    def close(self) -> None:
        """Take no more calls; the stream ends when all are answered."""
        self.is_closing = True
        self._news.set()

    async def abandon(self) -> None:
        """End it now."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, metadata: tuple[tuple[str, str], ...]) -> None:
        call = self.channel.stream_stream(
            METHOD,
            request_serializer=pb.CarriedRequest.SerializeToString,
            response_deserializer=pb.CarriedResponse.FromString,
        )(metadata=metadata)
        writing = asyncio.get_running_loop().create_task(self._write(call))
        code, details = grpc.StatusCode.CANCELLED, ""
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                self._is_open = True
                for answer in response.answers:
                    self._settle(answer)
                if response.closing:
                    self.close()
            code = await call.code()
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details() or ""
        finally:
            self._end()
            call.cancel()
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
            log.info("carried_publishes.ended", code=code.name, details=details)

    def _settle(self, answer: pb.CarriedAnswer) -> None:
        future = self._waiting.pop(answer.tag, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def _end(self) -> None:
        """Tell those who wait: what was not written was not sent."""
        self._is_open = False
        waiting, self._waiting = self._waiting, {}
        for tag, future in waiting.items():
            if future.done():
                continue
            if tag in self._unsent:
                future.set_result(None)
            else:
                future.set_exception(Lost())
        self._unsent.clear()

    async def _write(self, call: Any) -> None:
        while not self.is_closing or self._unsent:
            await self._news.wait()
            self._news.clear()
            was_cut = False
            while self._unsent or self._cancelled:
                others = self._calls_waiting() - 1
                if others > 0 and not was_cut and not self._is_full():  # whoever calls alone waits for nobody
                    await asyncio.sleep(min(PACE_S * others, PACE_S_MAX))
                if self._unsent or self._cancelled:  # clients may have left meanwhile
                    message = self._message()
                    was_cut = bool(self._unsent)
                    await call.write(message)
        await call.done_writing()

    def _is_full(self) -> bool:
        """Return whether a message could hold no more than what waits already."""
        return sum(call.ByteSize() for call in self._unsent.values()) >= MESSAGE_BYTES_MAX

    def _message(self) -> pb.CarriedRequest:
        """Return what waits, as much as a message may hold."""
        message = pb.CarriedRequest(cancelled=self._cancelled)
        self._cancelled.clear()
        size = 0
        for tag, call in list(self._unsent.items()):
            size += call.ByteSize()
            if message.calls and size > MESSAGE_BYTES_MAX:
                break
            message.calls.append(call)
            del self._unsent[tag]
        return message


class PublishStreams:
    """The streams of one gateway, by the address of the broker; they are as many as brokers are known."""

    def __init__(self) -> None:
        self._streams: dict[str, CarriedPublishes] = {}
        self._not_before_s: dict[str, float] = {}
        self._running: set[CarriedPublishes] = set()  # also those that only wait for answers

    def of(self, address: str, channel: grpc.aio.Channel) -> CarriedPublishes | None:
        """Return the stream that calls to a broker can go by, None: one by one for now."""
        stream = self._streams.get(address)
        return stream if stream is not None and stream.is_usable and stream.channel is channel else None

    def succeeded(self, address: str, channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...]) -> None:
        """Open a stream to a broker that has just taken a call with `metadata`, unless that was tried lately."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._not_before_s.get(address, now_s):
            return
        self._not_before_s[address] = now_s + AGAIN_S
        stream = self._streams.get(address)
        if stream in self._running and stream.channel is channel and not stream.is_closing:
            return
        self._forget(address)
        self._streams[address] = stream = CarriedPublishes(
            channel, metadata, ended=self._running.discard, calls_waiting=self._calls_waiting
        )
        self._running.add(stream)

    def keep(self, addresses: Collection[str]) -> None:
        """Send nothing more to brokers at other addresses."""
        for address in self._streams.keys() - addresses:
            self._forget(address)
            del self._not_before_s[address]

    async def close(self) -> None:
        """End all of them now."""
        await asyncio.gather(*(stream.abandon() for stream in self._running))

    def _calls_waiting(self) -> int:
        return sum([stream.calls_waiting for stream in self._running])

    def _forget(self, address: str) -> None:
        if (stream := self._streams.pop(address, None)) is not None:
            stream.close()
