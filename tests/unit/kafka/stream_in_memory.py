"""A stream without a log: it sequences, commits on demand, and fails on demand."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from georelay.errors import GeorelayError, NotLeader, OutOfOrderSequence, Unavailable, UnknownProducer
from georelay.ids import Epoch, Offset, RaftIndex, RegionNumber, StreamKey, Term
from georelay.wire.batch import build_batch, parse_header, stamp
from georelay.wire.crc import crc32c
from mesh.replication.publish import Publish
from mesh.replication.stream_header import EntryType, StreamHeader
from region.kafka.ports import Published
from region.log.entry import Entry, EntryDraft, seal_entry
from region.topics.transaction_table_core import AbortedTransaction


class FakeStream:
    """One stream; `auto_commit` False holds publishes until `commit`."""

    def __init__(self, key: StreamKey, partition: int) -> None:
        self.key = key
        self.partition = partition
        self.is_leader = True
        self.leader_id = 1001
        self.is_home = True
        self.home = RegionNumber(1)
        self.epoch = Epoch(1)
        self.log_start = Offset(0)
        self.high_watermark = Offset(0)
        self.next_offset = Offset(0)
        self.geo_end: Offset | None = None  # what enough regions have, of a topic that asks for several
        self.geo_end_confirmed: Offset | None = None  # what is known once the end is confirmed
        self.auto_commit = True
        self.in_memory = True
        self.unstable: Offset | None = None  # first record of an open transaction
        self.knows_stable = True  # which records are decided
        self.aborted: list[AbortedTransaction] = []
        self.entries: list[Entry] = []
        self.cold_reads = 0
        self.ends_confirmed = 0
        self.is_cut_off = False
        self.now_us = 1_000_000
        self.epoch_ends: dict[int, tuple[int, int]] = {}
        self.sequences: dict[tuple[int, int], tuple[int, list[tuple[int, int, int]]]] = {}  # of producer id and epoch
        self.lets_jump = False  # as after a home epoch that began with a loss
        self.publish_errors: list[GeorelayError] = []  # raised by the next publishes
        self._pending: list[tuple[asyncio.Future[Published], Published]] = []
        self._waiters: dict[int, Callable[[], None]] = {}
        self._ids = itertools.count()

    @property
    def knows_end(self) -> bool:
        return bool(self.is_home)

    def publish(self, publish: Publish) -> asyncio.Future[Published]:
        if self.publish_errors:
            raise self.publish_errors.pop(0)
        known = self._check_sequence(publish.header)
        base = self.next_offset if known is None else Offset(known)
        if known is None:
            batch = bytearray(publish.raw)
            stamp(batch, base_offset=base, epoch=self.epoch)
            self._append(bytes(batch), publish.header, publish.received_ns, publish.entry_region)
        published = Published(epoch=self.epoch, base_offset=base, append_us=self.now_us, regions=(self.home,))
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        self._pending.append((future, published))
        if self.auto_commit:
            self.commit()
        return future

    def _check_sequence(self, header: Any) -> int | None:
        if header.producer_id < 0:
            return None
        producer = header.producer_id, header.producer_epoch
        expected, known = self.sequences.get(producer, (0, []))
        for sequence, offset, crc in known:
            if sequence == header.base_sequence:
                if crc != header.crc:
                    raise UnknownProducer(f"sequence {sequence} is another batch")
                return offset
        if header.base_sequence < expected or (header.base_sequence > expected and not self.lets_jump):
            raise OutOfOrderSequence(f"sequence {header.base_sequence}, expected {expected}")
        known.append((header.base_sequence, self.next_offset, header.crc))
        self.sequences[producer] = (header.base_sequence + header.record_count, known[-5:])
        return None

    def _append(self, payload: bytes, header: Any, received_ns: int, entry_region: int) -> None:
        stream_header = StreamHeader(
            type=EntryType.DATA,
            entry_region=entry_region,
            record_count=header.record_count,
            epoch=self.epoch,
            base_offset=self.next_offset,
            append_us=self.now_us,
            received_ns=received_ns,
            max_timestamp_ms=header.max_timestamp_ms,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            payload_crc=int(crc32c(payload)),
            digest=bytes(16),
        )
        self.entries.append(
            seal_entry(
                EntryDraft(header=stream_header, payload=payload),
                term=Term(1),
                index=RaftIndex(len(self.entries) + 1),
                previous_chain=0,
            )
        )
        self.next_offset = stream_header.next_offset

    def add(self, *values: bytes, timestamp_ms: int = 1_700_000_000_000) -> None:
        """Append one committed batch."""
        raw = build_batch([(value, None, ()) for value in values], timestamps_ms=timestamp_ms)
        header = parse_header(raw)
        batch = bytearray(raw)
        stamp(batch, base_offset=self.next_offset, epoch=self.epoch)
        self._append(bytes(batch), header, 0, 1)
        self.commit()

    def add_raw(self, raw: bytes) -> None:
        """Append one committed batch as it is: a transactional one, a marker."""
        batch = bytearray(raw)
        stamp(batch, base_offset=self.next_offset, epoch=self.epoch)
        self._append(bytes(batch), parse_header(raw), 0, 1)
        self.commit()

    def commit(self) -> None:
        self.high_watermark = self.next_offset
        pending, self._pending = self._pending, []
        for future, published in pending:
            if not future.done():
                future.set_result(published)
        self.wake()

    def fail_pending(self, error: GeorelayError) -> None:
        """Answer what waits with `error`; the batches stay in the log."""
        pending, self._pending = self._pending, []
        for future, _ in pending:
            if not future.done():
                future.set_exception(error)

    def wake(self) -> None:
        for callback in list(self._waiters.values()):
            callback()

    @property
    def visible_end(self) -> Offset:
        return self.high_watermark if self.geo_end is None else min(self.geo_end, self.high_watermark)

    @property
    def is_visible_end_known(self) -> bool:
        return True

    @property
    def last_stable_offset(self) -> Offset:
        return self.visible_end if self.unstable is None else min(self.unstable, self.visible_end)

    @property
    def is_last_stable_known(self) -> bool:
        return self.knows_stable

    def aborted_between(self, first: int, following: int) -> list[AbortedTransaction]:
        return [row for row in self.aborted if row.last_offset >= first and row.first_offset < following]

    @property
    def waiter_count(self) -> int:
        return len(self._waiters)

    def add_waiter(self, callback: Callable[[], None]) -> int:
        handle = next(self._ids)
        self._waiters[handle] = callback
        return handle

    def remove_waiter(self, handle: Any) -> None:
        self._waiters.pop(handle, None)

    def _find(self, offset: int, max_bytes: int) -> list[Entry]:
        found: list[Entry] = []
        left = max_bytes
        for entry in self.entries:
            if entry.next_offset <= offset or entry.next_offset > self.high_watermark:
                continue
            size = len(entry.payload)
            if found and size > left:
                break
            found.append(entry)
            left -= size
        return found

    def read(self, offset: int, max_bytes: int) -> list[Entry] | None:
        return self._find(offset, max_bytes) if self.in_memory else None

    async def confirmed_end(self) -> Offset:
        if not self.is_leader:
            raise NotLeader(leader=self.leader_id)
        self.ends_confirmed += 1
        if self.is_cut_off:
            raise Unavailable("no quorum answered")
        if self.geo_end_confirmed is not None:
            self.geo_end = self.geo_end_confirmed
        return self.visible_end

    async def read_cold(self, offset: int, max_bytes: int) -> list[Entry]:
        self.cold_reads += 1
        return self._find(offset, max_bytes)

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[Offset, int] | None:
        for entry in self.entries:
            newest = entry.header().max_timestamp_ms
            if newest >= timestamp_ms:
                return entry.base_offset, newest
        return None

    async def max_timestamp(self) -> tuple[Offset, int] | None:
        newest = max(self.entries, key=lambda entry: entry.header().max_timestamp_ms, default=None)
        return None if newest is None else (newest.base_offset, newest.header().max_timestamp_ms)

    def epoch_end(self, epoch: int) -> tuple[Any, Any]:
        return self.epoch_ends.get(epoch, (-1, -1))
