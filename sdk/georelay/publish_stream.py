"""One PublishStream call to one broker: publishes in, acknowledgements out, by tag.

Rule 1: nothing is sent before the broker has answered with its window: until then nothing can be stored.
Rule 2: the window is kept: what is beyond it waits here.
Rule 3: when the call breaks, what was sent has an unknown outcome and what was not is not stored; this object is over.
Rule 4: a broker that owes an answer for too long is given up like a broken one.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import grpc.aio

from georelay._pb import streams_pb2 as pb
from georelay.channels import Channels, error_of_call
from georelay.errors import GeorelayError, OutcomeUnknown, PolicyViolation, Unavailable
from georelay.limits import MIB
from georelay.region_map import Route

PATH: Final = "/georelay.v1.Streams/PublishStream"
OPEN_TIMEOUT_S: Final = 5.0
REQUEST_BYTES_MAX: Final = 1 * MIB  # publishes of one turn travel together up to this; a larger one travels alone
PUBLISH_OVERHEAD_BYTES: Final = 256  # as brokers count it
PATIENCE_S: Final = 2.0  # beyond a publish's deadline, within which the broker itself says UNKNOWN
WATCH_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Sent:
    done: asyncio.Future[pb.Acknowledgement]
    size_bytes: int
    give_up_at: float


class _Queued(NamedTuple):
    publish: pb.Publish
    done: asyncio.Future[pb.Acknowledgement]
    size_bytes: int
    only_in: str


class PublishStream:
    """One call. `lost` is called once, when it is over for any reason but `close`."""

    def __init__(
        self, channels: Channels, route: Route, *, lost: Callable[[PublishStream, GeorelayError], None]
    ) -> None:
        self.route = route
        self.address = address = route.address
        self.is_over = False
        self._is_left = False
        self._channels = channels
        self._lost = lost
        self._tag = 0
        self._queue: deque[_Queued] = deque()
        self._sent: dict[int, _Sent] = {}
        self._sent_bytes = 0
        self._window = pb.Window()
        self._work = asyncio.Event()  # something may be written
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"publish to {address}")

    @property
    def region(self) -> str:
        """Return the region that serves the call, "" while it is not open."""
        return self._window.region

    def publish(self, publish: pb.Publish, *, only_in: str = "") -> asyncio.Future[pb.Acknowledgement]:
        """Queue one publish (its tag is given here); the future has the acknowledgement, or the call's error.

        `only_in`: the one region that may get it, "" for any; another one gives PolicyViolation, and nothing is sent.
        """
        done: asyncio.Future[pb.Acknowledgement] = asyncio.get_running_loop().create_future()
        if self.is_over:
            done.set_exception(Unavailable(f"{self.address}: the connection is over"))
            return done
        self._tag += 1
        publish.tag = self._tag
        self._queue.append(_Queued(publish, done, PUBLISH_OVERHEAD_BYTES + publish.ByteSize(), only_in))
        self._work.set()
        return done

    def leave(self) -> None:
        """End the call as soon as what was sent is answered; nothing more is to be published with it."""
        self._is_left = True
        if self._window.publishes and (self._sent or self._queue):
            return
        self._task.cancel()
        self._fail(Unavailable(f"{self.address}: its region was left"))

    async def close(self) -> None:
        """End the call now; what is open gets its outcome."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._fail(Unavailable("the producer is closed"))

    async def _run(self) -> None:
        call = self._channels.stream(
            self.address, PATH, pb.PublishStreamRequest, pb.PublishStreamResponse, broker=self.route.broker
        )
        loop = asyncio.get_running_loop()
        helpers: list[asyncio.Task[None]] = []
        error: GeorelayError = Unavailable(f"{self.address}: the broker ended the call")
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await call.write(pb.PublishStreamRequest())
                self._take(await call.read())
            helpers = [loop.create_task(self._write(call)), loop.create_task(self._watch())]
            helpers.append(loop.create_task(self._read(call)))
            done, _ = await asyncio.wait(helpers, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except grpc.aio.AioRpcError as broken:
            error = error_of_call(broken, self.address)
        except GeorelayError as ours:
            error = ours
        except (TimeoutError, asyncio.InvalidStateError):
            error = Unavailable(f"{self.address}: no answer within {OPEN_TIMEOUT_S:g} s")
        finally:
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            call.cancel()
        self._fail(error)
        self._lost(self, error)

    def _fail(self, error: GeorelayError) -> None:
        self.is_over = True
        sent, self._sent = list(self._sent.values()), {}
        for row in sent:
            if not row.done.done():
                row.done.set_exception(OutcomeUnknown(f"no answer: {error}"))
        while self._queue:
            done = self._queue.popleft().done
            if not done.done():
                # Not written: whatever broke the call, these are not stored.
                done.set_exception(error if not isinstance(error, OutcomeUnknown) else Unavailable(str(error)))

    async def _read(self, call: object) -> None:
        while True:
            self._take(await call.read())  # type: ignore[attr-defined]

    def _take(self, response: object) -> None:
        if not isinstance(response, pb.PublishStreamResponse):  # grpc.aio.EOF
            raise Unavailable(f"{self.address}: the broker ended the call")
        if response.HasField("window"):
            self._window = response.window
        for acknowledgement in response.acknowledgements:
            row = self._sent.pop(acknowledgement.tag, None)
            if row is None:
                continue
            self._sent_bytes -= row.size_bytes
            if not row.done.done():
                row.done.set_result(acknowledgement)
        if self._is_left and not (self._sent or self._queue):
            raise Unavailable(f"{self.address}: its region was left")
        self._work.set()

    async def _write(self, call: object) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while publishes := self._next_request():
                await call.write(pb.PublishStreamRequest(publishes=publishes))  # type: ignore[attr-defined]

    def _next_request(self) -> list[pb.Publish]:
        """Take what the window and the size of one request allow; at least one when nothing is out."""
        taken: list[pb.Publish] = []
        request_bytes = 0
        now = time.monotonic()
        while self._queue:
            publish, done, size, only_in = self._queue[0]
            if only_in and only_in != self.region:
                self._queue.popleft()
                refused = PolicyViolation(f"it may be stored in region {only_in}, and {self.region} is another stream")
                done.set_exception(refused)
                continue
            fits = self._sent_bytes + size <= self._window.bytes and len(self._sent) < self._window.publishes
            if (self._sent and not fits) or (taken and request_bytes + size > REQUEST_BYTES_MAX):
                break
            self._queue.popleft()
            self._sent[publish.tag] = _Sent(done, size, now + publish.deadline_ms / 1000 + PATIENCE_S)
            self._sent_bytes += size
            request_bytes += size
            taken.append(publish)
        return taken

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            oldest = next(iter(self._sent.values()), None)
            if oldest is not None and oldest.give_up_at < time.monotonic():
                raise OutcomeUnknown(f"{self.address}: a publish was not answered in time")
