"""Working through a queue: records are leased, and each is acknowledged, rejected or extended.

    async with connection.queue("jobs") as queue:
        async for job in queue:
            ...
            await job.acknowledge()

Rule 1: at-least-once: a record that is not acknowledged within its lease is delivered again, here or elsewhere.
Rule 2: at most `prefetch` leases are out; what waits here is leased already.
Rule 3: a broker that fails is left; what was out comes again, and settling it then raises an error that says so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

from georelay._pb import streams_pb2 as pb
from georelay.channels import Channels
from georelay.errors import BadRequest, GeorelayError, OutcomeUnknown, Retry
from georelay.library_log import log
from georelay.limits import MIB
from georelay.refusals import error_of
from georelay.region_map import RegionMap
from georelay.subscription import Subscription

BUFFER_BYTES: Final = 16 * MIB
SETTLE_TIMEOUT_S: Final = 15.0
RETRY_S: Final = 0.2
CLOSE_S: Final = 5.0
PREFETCH: Final = 100


class QueuedRecord:
    """A leased record. `deliveries` counts from 1; the lease lasts until `leased_until_ms` on the broker's clock."""

    __slots__ = (
        "_owner",
        "_subscription",
        "deliveries",
        "headers",
        "key",
        "lease",
        "leased_until_ms",
        "offset",
        "partition",
        "timestamp_ms",
        "value",
    )

    def __init__(self, owner: QueueConsumer, subscription: Subscription, row: pb.LeasedRecord) -> None:
        record = row.record
        self._owner = owner
        self._subscription = subscription
        self.lease = row.lease
        self.partition = row.partition
        self.deliveries = row.deliveries
        self.leased_until_ms = row.leased_until_ms
        self.offset = record.offset
        self.timestamp_ms = record.timestamp_ms
        self.key = record.key if record.HasField("key") else None
        self.value = record.value if record.HasField("value") else None
        self.headers = tuple(
            (header.name, header.value if header.HasField("value") else None) for header in record.headers
        )

    async def acknowledge(self) -> None:
        """Be done with it (LeaseExpired: too late, it comes again; OutcomeUnknown: not answered)."""
        await self._settle(pb.VERDICT_ACKNOWLEDGE)

    async def reject(self, *, delay_s: float = 0.0) -> None:
        """Have it delivered again, after a delay; after the queue's max_deliveries it becomes a dead letter."""
        await self._settle(pb.VERDICT_REJECT, delay_ms=int(delay_s * 1000))

    async def dead_letter(self, reason: str = "") -> None:
        """Move it to the queue's dead-letter topic; `reason` (at most 200 characters) goes with it."""
        await self._settle(pb.VERDICT_DEAD_LETTER, reason=reason)

    async def extend(self, seconds: float) -> None:
        """Let the lease last `seconds` from now on."""
        await self._settle(pb.VERDICT_EXTEND, delay_ms=int(seconds * 1000))

    async def _settle(self, verdict: pb.Verdict, *, delay_ms: int = 0, reason: str = "") -> None:
        row = pb.Settlement(lease=self.lease, verdict=verdict, delay_ms=delay_ms, reason=reason)
        await self._owner.settle(self._subscription, row)


class QueueConsumer:
    """Made by `Connection.queue`; use as an async context manager."""

    def __init__(
        self, channels: Channels, region: RegionMap, queue: str, *, prefetch: int, session_timeout_s: float, name: str
    ) -> None:
        self._channels = channels
        self._region = region
        self._membership = pb.QueueMembership(
            queue=queue, prefetch=prefetch, session_timeout_ms=int(session_timeout_s * 1000), consumer=name
        )
        self._records: deque[tuple[QueuedRecord, int]] = deque()  # and its bytes of credit
        self._arrived = asyncio.Event()
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None
        self._failure: GeorelayError | None = None
        self._tag = 0
        self._closing = False
        self._settling: dict[int, asyncio.Future[None]] = {}

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="queue consumer")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        subscription = self._subscription
        if subscription is not None:
            await subscription.finish(CLOSE_S)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def __aiter__(self) -> AsyncIterator[QueuedRecord]:
        return self

    async def __anext__(self) -> QueuedRecord:
        """Return the next leased record (GeorelayError: the queue cannot be used)."""
        while not self._records:
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await self._arrived.wait()
        record, size_bytes = self._records.popleft()
        if self._subscription is not None:
            try:
                await self._subscription.consumed(size_bytes)
            except GeorelayError as error:
                log.debug("subscription.ended", error=str(error))
        return record

    async def settle(self, subscription: Subscription, row: pb.Settlement) -> None:
        """Settle one lease of a subscription; `QueuedRecord` does it."""
        if subscription is not self._subscription:
            raise OutcomeUnknown("the broker that gave this lease is gone; the record comes again")
        self._tag += 1
        tag = self._tag
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settling[tag] = done
        try:
            await subscription.send(pb.SubscribeRequest(settle=pb.Settle(tag=tag, settlements=[row])))
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await done
        except TimeoutError as error:
            raise OutcomeUnknown("settle: not answered in time") from error
        finally:
            self._settling.pop(tag, None)

    async def _run(self) -> None:
        while True:
            try:
                await self._region.locate(timeout_s=60.0)
                await self._region.until_answered(self._subscribe_at, timeout_s=60.0)
            except GeorelayError as error:
                if self._closing:
                    return
                if error.retry not in (Retry.LATER, Retry.REFRESH):
                    self._failure = error
                    self._arrived.set()
                    return
                log.info("subscription.lost", error=str(error))
                await asyncio.sleep(RETRY_S)

    async def _subscribe_at(self, address: str, _: float) -> None:
        if self._closing:
            raise BadRequest("the consumer is closed")
        start = pb.SubscribeStart(queue=self._membership, credit_bytes=BUFFER_BYTES)
        subscription = await Subscription.open(self._channels, address, start)
        self._subscription = subscription
        try:
            while True:
                response = await subscription.read()
                kind = response.WhichOneof("response")
                if kind == "leased":
                    for row in response.leased.records:
                        self._records.append((QueuedRecord(self, subscription, row), row.ByteSize()))
                    self._arrived.set()
                elif kind == "settled":
                    self._take_settled(response.settled)
        finally:
            subscription.cancel()
            self._subscription = None
            self._records.clear()  # their leases were handed back
            for done in self._settling.values():
                if not done.done():
                    done.set_exception(OutcomeUnknown("settle: the connection broke before it was answered"))

    def _take_settled(self, settled: pb.Settled) -> None:
        done = self._settling.get(settled.tag)
        if done is None or done.done():
            return
        if settled.refusals and settled.refusals[0].code:
            done.set_exception(error_of(settled.refusals[0]))
        else:
            done.set_result(None)
