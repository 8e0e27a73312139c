"""Fetches ranges of entries out of other brokers' sealed segments, throttled, verified before anybody trusts them.

Rule 1: what arrives is staged; only after checksums and chain were verified it may be linked into a log.
Rule 2: never faster than the token bucket allows, never more than WINDOW chunks ahead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Final

from georelay.clock import Clock
from georelay.ids import BrokerId, GroupId, RaftIndex, Term
from region.log.entry import EntryError
from region.log.manifest import Manifest
from region.log.staging import StagedSegment
from region.multiraft.bulk_server import TERM
from region.multiraft.bulk_wire import (
    CHUNK_BYTES_MAX,
    Ask,
    BulkAnswer,
    BulkFrame,
    BulkRequest,
    SegmentRow,
    Status,
    decode_rows,
)
from region.multiraft.frame_cutter import FrameCutter
from region.multiraft.token_bucket import TokenBucket

BYTES_PER_S: Final = 100_000_000
WINDOW: Final = 4
ANSWER_TIMEOUT_MS: Final = 5_000
SEND_TRIES: Final = 40
SEND_AGAIN_MS: Final = 50


class BulkFailed(Exception):
    """A fetch did not work out with this source; another one may do."""


class BulkClient:
    """Asks other brokers for segments.

    Args:
        send: one frame to a peer; False when it was dropped.
        bytes_per_s: of everything this broker fetches.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        clock: Clock,
        send: Callable[[BrokerId, BulkFrame], bool],
        bytes_per_s: int = BYTES_PER_S,
    ) -> None:
        self._executor = executor
        self._clock = clock
        self._send = send
        self._bucket = TokenBucket(
            rate_per_s=bytes_per_s, burst=max(bytes_per_s // 20, CHUNK_BYTES_MAX), now_ns=clock.monotonic_ns()
        )
        self.received_bytes = 0  # since the start, for metrics
        self._requests = 0
        self._waiting: dict[int, tuple[BrokerId, asyncio.Future[tuple[Status, bytes]]]] = {}

    def answered(self, peer: BrokerId, answer: BulkAnswer) -> None:
        """Take an answer; one that nobody waits for is dropped."""
        peer_of, future = self._waiting.get(answer.request, (None, None))
        if future is not None and peer_of == peer and not future.done():
            future.set_result((answer.status, bytes(answer.data)))

    async def list_segments(self, source: BrokerId, group: GroupId, first: RaftIndex) -> tuple[Term, list[SegmentRow]]:
        """Return the source's term and its sealed, committed segments from index `first` on. Raises BulkFailed."""
        data = await self._ask(source, Ask.LIST, group, first)
        if len(data) < TERM.size:
            raise BulkFailed(f"broker {source} answered a list of {len(data)} bytes")
        try:
            return Term(TERM.unpack_from(data)[0]), decode_rows(memoryview(data)[TERM.size :])
        except ValueError as error:
            raise BulkFailed(str(error)) from error

    async def seal(self, source: BrokerId, group: GroupId, index: RaftIndex) -> None:
        """Have the source end its open segment if it holds `index`, so that it can be fetched. Raises BulkFailed."""
        await self._ask(source, Ask.SEAL, group, index)

    async def manifest(self, source: BrokerId, group: GroupId, index: RaftIndex) -> Manifest:
        """Return the source's manifest at `index`. Raises BulkFailed."""
        data = await self._ask(source, Ask.MANIFEST, group, index)
        try:
            found = Manifest.decode(data)
        except ValueError as error:
            raise BulkFailed(f"broker {source} sent a damaged manifest: {error}") from error
        if found.index != index:
            raise BulkFailed(f"broker {source} sent the manifest of {found.index}, not of {index}")
        return found

    async def fetch(
        self,
        source: BrokerId,
        group: GroupId,
        rows: Sequence[SegmentRow],
        *,
        first: RaftIndex,
        last: RaftIndex,
        into: StagedSegment,
    ) -> None:
        """Stage the entries [first, last], which lie in `rows`, in order.

        Raises:
            BulkFailed: the source cannot, or what it sent is no such range. OSError: the own disk.
        """
        loop = asyncio.get_running_loop()
        cutter = FrameCutter(first_index=first, last_index=last)
        pieces = _pieces(rows)
        asked: deque[asyncio.Task[bytes]] = deque()
        staged_bytes = 0
        try:
            while True:
                while len(asked) < WINDOW and (piece := next(pieces, None)) is not None:
                    await self._throttle(piece[2])
                    asked.append(loop.create_task(self._ask(source, Ask.READ, group, *piece)))
                if not asked:
                    break
                data = await asked.popleft()
                staged_bytes = await loop.run_in_executor(self._executor, _stage, cutter, into, staged_bytes, data)
        except EntryError as error:
            raise BulkFailed(f"broker {source} sent a damaged segment: {error}") from error
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if cutter.kept_index != last or not cutter.whole:
            raise BulkFailed(f"broker {source} sent entries up to {cutter.kept_index}, not up to {last}")

    async def _throttle(self, size_bytes: int) -> None:
        wait_s = self._bucket.take(size_bytes, now_ns=self._clock.monotonic_ns())
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def _ask(
        self, source: BrokerId, ask: Ask, group: GroupId, first: RaftIndex, position: int = 0, size: int = 0
    ) -> bytes:
        """Ask and wait for the answer. Raises BulkFailed."""
        self._requests = (self._requests + 1) & 0xFFFFFFFF
        number = self._requests
        request = BulkRequest(ask=ask, request=number, group=group, first=first, position=position, size=size)
        answered: asyncio.Future[tuple[Status, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (source, answered)
        try:
            await self._dispatch(source, request)
            async with asyncio.timeout(ANSWER_TIMEOUT_MS / 1000):
                status, data = await answered
        except TimeoutError as error:
            raise BulkFailed(f"broker {source} did not answer a {ask.name}") from error
        finally:
            del self._waiting[number]
        if status is not Status.OK or (size and len(data) != size):
            raise BulkFailed(f"broker {source} answered a {ask.name} of {first} with {status.name}, {len(data)} bytes")
        self.received_bytes += len(data)
        return data

    async def _dispatch(self, source: BrokerId, request: BulkRequest) -> None:
        for _ in range(SEND_TRIES):  # the lane may have to be dialled first
            if self._send(source, request):
                return
            await asyncio.sleep(SEND_AGAIN_MS / 1000)
        raise BulkFailed(f"broker {source} cannot be reached")


def _pieces(rows: Sequence[SegmentRow]) -> Iterator[tuple[RaftIndex, int, int]]:
    """Yield (segment, position, size) of each chunk."""
    for row in rows:
        for position in range(0, row.size_bytes, CHUNK_BYTES_MAX):
            yield row.first_index, position, min(CHUNK_BYTES_MAX, row.size_bytes - position)


def _stage(cutter: FrameCutter, into: StagedSegment, staged_bytes: int, data: bytes) -> int:
    """Write what is wanted of `data`; return the bytes staged. Any thread. Raises EntryError, OSError."""
    for wanted in cutter.feed(data):
        into.write(staged_bytes, wanted)
        staged_bytes += len(wanted)
    return staged_bytes
