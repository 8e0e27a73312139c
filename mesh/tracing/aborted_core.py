"""Which offsets belong to aborted transactions, learned from the entries of a stream as they commit: pure.

Rule: exact or silent. A transaction whose beginning was committed before this broker led the stream has only the
ranges that it saw; a report treats the others as delivered or not, like any record. What an epoch cut off belongs to no
transaction any more: the records that take its place are others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from georelay.errors import CorruptRecordBatch
from georelay.wire.control_batch import parse_marker
from georelay.wire.header import CONTROL, TRANSACTIONAL

ATTRIBUTES_AT: Final = 22  # low byte of the attributes in a record batch (Kafka's RecordBatch v2)
PRODUCERS_MAX: Final = 10_000  # open transactions remembered per stream
RANGES_MAX: Final = 1_000  # per transaction; beyond it its newest ranges are not named


class EntryHeader(Protocol):
    """The stream part of an entry, as far as traces need it."""

    @property
    def append_us(self) -> int:
        """Append time at the home."""

    @property
    def received_ns(self) -> int:
        """When the first broker received it."""

    @property
    def entry_region(self) -> int:
        """Region of that broker."""

    @property
    def producer_id(self) -> int:
        """Who wrote it, -1 for nobody in particular."""


class CommittedEntry(Protocol):
    """One entry that became readable (region.log.entry.Entry)."""

    @property
    def base_offset(self) -> int:
        """First offset."""

    @property
    def record_count(self) -> int:
        """Offsets it owns."""

    @property
    def payload(self) -> memoryview:
        """The record batch."""

    def header(self) -> EntryHeader:
        """The stream part."""


class OpenTransactions:
    """Ranges of the transactions of one stream that have not ended."""

    __slots__ = ("_end", "_ranges")

    def __init__(self) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self._end = 0  # of the entries seen

    @property
    def are_open(self) -> bool:
        """Return whether any transaction has begun and not ended."""
        return bool(self._ranges)

    def committed(self, entries: Iterable[CommittedEntry]) -> list[tuple[int, int]]:
        """Take entries in, in order; return the ranges [from, to) that are known to be aborted now."""
        aborted: list[tuple[int, int]] = []
        for entry in entries:
            if entry.base_offset < self._end:
                self._cut(entry.base_offset)
            self._end = entry.base_offset + entry.record_count
            payload = entry.payload
            attributes = payload[ATTRIBUTES_AT] if len(payload) > ATTRIBUTES_AT else 0
            if not attributes & TRANSACTIONAL:
                continue
            if attributes & CONTROL:
                aborted += self._ended(payload)
            else:
                self._extend(entry)
        return aborted

    def _cut(self, offset: int) -> None:
        """Forget what is at `offset` and beyond: an epoch has begun there or below."""
        left = {
            producer: [(first, min(end, offset)) for first, end in ranges if first < offset]
            for producer, ranges in self._ranges.items()
        }
        self._ranges = {producer: ranges for producer, ranges in left.items() if ranges}

    def _extend(self, entry: CommittedEntry) -> None:
        producer = entry.header().producer_id
        ranges = self._ranges.get(producer)
        if ranges is None:
            if len(self._ranges) >= PRODUCERS_MAX:
                return
            ranges = self._ranges[producer] = []
        end = entry.base_offset + entry.record_count
        if ranges and ranges[-1][1] == entry.base_offset:
            ranges[-1] = (ranges[-1][0], end)
        elif len(ranges) < RANGES_MAX:
            ranges.append((entry.base_offset, end))

    def _ended(self, payload: memoryview) -> list[tuple[int, int]]:
        try:
            marker = parse_marker(payload)
        except CorruptRecordBatch:  # traces judge no data: the stream has checked it before it was committed
            return []
        ranges = self._ranges.pop(marker.producer_id, [])
        return [] if marker.is_commit else ranges
