"""Reads one partition for one subscription, from its start on, as fast as the client takes it.

Rule 1: committed batches leave as they are stored; records are unfolded only for clients that ask for records, and
        leave READ_BYTES_MAX at a time: credit and quotas count them as they leave.
Rule 2: what passes by itself (a leader change, a broker that left) is waited for; anything else ends the call.
Rule 3: the right to read is asked for before each delivery: a right that was taken away ends the subscription.
Rule 4: what retention has overtaken is told (OUT_OF_RANGE), and this partition stops: nothing is skipped silently.
Rule 5: of all partitions of a call so much is read and not taken yet as there is room for (answer_room).
Rule 6: a batch that is handed on as it is may hold no records: its reader sees that. Where records are asked for, what
        cannot be read is passed over, and the broker's log says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

import structlog

from georelay import errors
from georelay._pb import streams_pb2 as pb
from georelay.errors import Busy, GeorelayError, OffsetOutOfRange, Retry
from georelay.limits import KIB, MIB
from georelay.wire.batch import Record
from region.api.answer_room import AnswerMemory, AnswerRoom, CallMemory, read_with_room
from region.api.reading import StreamReader
from region.api.streams.credit import Credit
from region.api.streams.standing_core import Judgement, Standing
from region.api.streams.starting import StartPoint
from region.api.unfolding import Unreadable, readable_chunks
from region.coordination.shares_core import NOBODY
from region.kafka.ports import ReadAnswer, TraceSession

log = structlog.get_logger()

READ_BYTES_MIN: Final = 16 * KIB
READ_BYTES_MAX: Final = 1 * MIB  # of one delivery; a batch over it travels alone
READ_WAIT_MS: Final = 10_000
RETRY_S: Final = 0.1

Put = Callable[[pb.SubscribeResponse], Awaitable[None]]


class PartitionPump:
    """One partition inside a subscription; `run` ends only by its error or by cancelling."""

    def __init__(
        self,
        start: StartPoint,
        *,
        reader: StreamReader,
        credit: Credit,
        put: Put,
        trace: Callable[[int], TraceSession],
        wall_ns: Callable[[], int],
        delivered: Callable[[int], None],
        as_records: bool,
        memory: AnswerMemory | None = None,
        throttle_ms: Callable[[int], int] = lambda _: 0,
        check_right: Callable[[], None] = lambda: None,
    ) -> None:
        """Read from `start` on.

        Args:
            trace: opens the trace of deliveries from an offset on. delivered: told how many records left.
            memory: of the call. throttle_ms: how long the client's quota holds up what follows so many bytes.
            check_right: raises when the client may not read this any more.
        """
        self._start = start
        self._reader = reader
        self._credit = credit
        self._put = put
        self._trace = trace
        self._wall_ns = wall_ns
        self._delivered = delivered
        self._as_records = as_records
        self._room = AnswerRoom(NOBODY, CallMemory() if memory is None else memory)
        self._throttle_ms = throttle_ms
        self._check_right = check_right
        self._running = asyncio.Event()
        self._running.set()
        self.stream = start.place.stream
        self.partition = start.place.partition
        self.next_offset = start.judgement.offset

    def pause(self) -> None:
        """Read nothing until `resume`; what is on its way arrives."""
        self._running.clear()

    def resume(self) -> None:
        """Go on."""
        self._running.set()

    async def run(self) -> None:
        """Deliver for ever.

        Raises:
            GeorelayError: this partition cannot be read any more.
        """
        try:
            await self._run()
        finally:
            self._room.end()

    async def _run(self) -> None:
        session: TraceSession | None = None
        while True:
            self._room.end()
            await self._running.wait()
            await self._credit.some()
            try:
                answer = await read_with_room(self._read, self._room)
            except OffsetOutOfRange as error:
                await self._tell_out_of_range(error)
                return
            except GeorelayError as error:
                if error.retry not in (Retry.LATER, Retry.REFRESH) or isinstance(error, errors.UnknownTopic):
                    raise
                await asyncio.sleep(RETRY_S)
                continue
            self._check_right()
            if session is None:
                session = self._trace(self.next_offset)
            try:
                await self._deliver(answer, session)
            except Busy as error:  # a batch took too long to unfold: on with what comes next, for a new while
                log.debug("subscription.delayed", stream=self.stream, partition=self.partition, reason=str(error))
                await asyncio.sleep(RETRY_S)
                continue
            if self.next_offset >= answer.end:
                session.caught_up(self._wall_ns())

    async def _read(self) -> ReadAnswer:
        size = min(max(self._credit.left_bytes, READ_BYTES_MIN), READ_BYTES_MAX)
        return await self._reader.read(
            self.stream, self.partition, self.next_offset, max_bytes=size, wait_ms=READ_WAIT_MS
        )

    async def _deliver(self, answer: ReadAnswer, session: TraceSession) -> None:
        first, following = self.next_offset, _following(answer, self.next_offset)
        if following <= first:
            return
        if self._as_records:
            await self._deliver_records(answer, following)
        else:
            delivery = self._delivery(answer)
            delivery.batches.extend(bytes(entry.payload) for entry in answer.entries)
            delivery.epoch = _epoch(answer)
            await self._send(delivery, sum(len(entry.payload) for entry in answer.entries), following)
        self._note(answer, session)

    async def _deliver_records(self, answer: ReadAnswer, following: int) -> None:
        delivery, size_bytes = self._delivery(answer), 0
        for entry in answer.entries:
            epoch = entry.header().epoch
            async with aclosing(readable_chunks(entry, f"{self.stream}/{self.partition}")) as chunks:
                async for chunk in chunks:
                    for record in () if isinstance(chunk, Unreadable) else chunk:
                        if record.offset < self.next_offset:
                            continue
                        stored = _stored(record, epoch)
                        delivery.records.append(stored)
                        delivery.epoch = epoch
                        size_bytes += stored.ByteSize()
                        if size_bytes >= READ_BYTES_MAX:
                            await self._send(delivery, size_bytes, record.offset + 1)
                            delivery, size_bytes = self._delivery(answer), 0
                            await self._credit.some()
                            self._check_right()
        if following > self.next_offset:
            delivery.epoch = _epoch(answer)
            await self._send(delivery, size_bytes, following)

    def _delivery(self, answer: ReadAnswer) -> pb.Delivery:
        return pb.Delivery(
            stream=self.stream,
            partition=self.partition,
            cursor=self._start.place.asked.cursor,
            high_watermark=answer.high_watermark,
        )

    async def _send(self, delivery: pb.Delivery, size_bytes: int, following: int) -> None:
        # The credit is taken before anybody waits: other partitions of the call see what is left.
        self._credit.use(size_bytes)
        delivery.next_offset = following
        await self._put(pb.SubscribeResponse(delivery=delivery))
        self.next_offset = following
        if (pause_ms := self._throttle_ms(size_bytes)) > 0:
            await asyncio.sleep(pause_ms / 1000)

    def _note(self, answer: ReadAnswer, session: TraceSession) -> None:
        now_ns = self._wall_ns()
        for entry in answer.entries:
            header = entry.header()
            session.delivered(
                epoch=header.epoch,
                base_offset=entry.base_offset,
                record_count=entry.record_count,
                entry_region=header.entry_region,
                received_ns=header.received_ns,
                delivered_ns=now_ns,
                size_bytes=len(entry.payload),
            )
            self._delivered(entry.record_count)

    async def _tell_out_of_range(self, error: OffsetOutOfRange) -> None:
        log.warning("subscription.overtaken", stream=self.stream, partition=self.partition, error=str(error))
        bounds = await self._reader.read(self.stream, self.partition, -2, max_bytes=1, wait_ms=0)
        overtaken = StartPoint(
            place=self._start.place,
            judgement=Judgement(standing=Standing.OUT_OF_RANGE, offset=self.next_offset),
            log_start=bounds.log_start,
            high_watermark=bounds.high_watermark,
        )
        await self._put(pb.SubscribeResponse(started=pb.Started(starts=[overtaken.written()])))


def _stored(record: Record, epoch: int) -> pb.StoredRecord:
    return pb.StoredRecord(
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=[pb.Header(name=name, value=value) for name, value in record.headers],
        epoch=epoch,
    )


def _epoch(answer: ReadAnswer) -> int:
    """Return the epoch that goes with the end of what was read: also where that is a marker, which nobody is shown.

    With the epoch of the last record, which may have ended below, the position would be taken for one of another log.
    """
    return answer.epoch or (answer.entries[-1].header().epoch if answer.entries else 0)


def _following(answer: ReadAnswer, offset: int) -> int:
    """Return where reading goes on."""
    if answer.next_offset >= 0:
        return answer.next_offset
    read_to = answer.entries[-1].base_offset + answer.entries[-1].record_count if answer.entries else offset
    return max(read_to, answer.next_offset)
