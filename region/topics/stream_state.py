"""The state of one stream after its applied entries, as bytes: what a manifest holds beside the log.

Layout (big-endian; it never changes):

    u8 version (1, 2, 3 or 4)
    i64 next offset | 16 digest | i64 append_us | u32 epoch          the log end at the applied index
    u64 first index | i64 log start | i64 boundary | 16 digest       the log start
    u64 records skipped                                              by SKIP entries, for operators
    i64 timestamp | i64 offset | i64 unseen below                    the newest timestamp
    u32 rows, each u64 index, u32 epoch, i64 start                   epochs, ascending
    from version 2 on: transactions (region.topics.transaction_rows)
    from version 3 on: fences (region.topics.fence_core), orphan branches (region.topics.orphan_core)
    producer states (region.topics.producer_rows), from version 4 on in their second layout

Rule 1: it is a function of the log up to the applied index, and of the feature level: replicas hold equal bytes at
        equal index and level.
Rule 2: bounded: producers, epochs and transactions are.
Rule 3: a stream that never held a transaction has version 1, which brokers of before transactions read; that, too, is
        a function of the log alone. One without a fence and without an orphan branch has version 1 or 2. Checksums of
        producers' batches are written from CHECKSUM_LEVEL on. All versions are read for ever.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from georelay.ids import Epoch, Offset, RaftIndex
from mesh.replication.frames import EPOCH_ROWS_MAX
from region.topics.fence_core import FENCE_ROWS_BYTES_MAX, NO_FENCES, FenceState, decode_fences, encode_fences
from region.topics.log_end_core import IndexedEpoch, LogEnd
from region.topics.log_start_core import LogStart
from region.topics.newest_timestamp_core import NewestTimestamp
from region.topics.orphan_core import ORPHAN_ROWS_BYTES_MAX, OrphanBranch, decode_orphans, encode_orphans
from region.topics.producer_rows import (
    CHECKSUM_LEVEL,
    PRODUCER_ROWS_BYTES_MAX,
    decode_producers,
    encode_producers,
)
from region.topics.producer_table_core import Row
from region.topics.transaction_rows import TRANSACTION_ROWS_BYTES_MAX, decode_transactions, encode_transactions
from region.topics.transaction_table_core import TransactionRows

FIRST_LEVEL: Final = 1
STATE_VERSION: Final = 1
TRANSACTIONAL_VERSION: Final = 2
MOVED_VERSION: Final = 3
CHECKSUM_VERSION: Final = 4
_VERSIONS: Final = range(STATE_VERSION, CHECKSUM_VERSION + 1)
_HEAD: Final = struct.Struct(">Bq16sqIQqq16sQqqqI")
_ROW: Final = struct.Struct(">QIq")
STATE_BYTES_MAX: Final = (
    _HEAD.size
    + EPOCH_ROWS_MAX * _ROW.size
    + PRODUCER_ROWS_BYTES_MAX
    + TRANSACTION_ROWS_BYTES_MAX
    + FENCE_ROWS_BYTES_MAX
    + ORPHAN_ROWS_BYTES_MAX
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """A stream after its applied entries. `producers` stand in the order of their last append."""

    end: LogEnd
    start: LogStart
    skipped_records: int
    newest: NewestTimestamp
    epochs: tuple[IndexedEpoch, ...]
    producers: tuple[Row, ...]
    transactions: TransactionRows = field(default_factory=TransactionRows)
    fences: FenceState = NO_FENCES
    orphans: tuple[OrphanBranch, ...] = ()

    def version(self, feature_level: int) -> int:
        """Return the lowest version that can say all of it that a region of this level may write."""
        if feature_level >= CHECKSUM_LEVEL and self.producers:
            return CHECKSUM_VERSION
        if self.fences != NO_FENCES or self.orphans:
            return MOVED_VERSION
        return STATE_VERSION if self.transactions.is_empty else TRANSACTIONAL_VERSION

    def encode(self, *, feature_level: int = FIRST_LEVEL) -> bytes:
        """Return the bytes: of version 1 unless there is something that only later ones can say."""
        version = self.version(feature_level)
        head = _HEAD.pack(
            version,
            self.end.next_offset,
            self.end.digest,
            self.end.append_us,
            self.end.epoch,
            self.start.first_index,
            self.start.offset,
            self.start.boundary,
            self.start.digest,
            self.skipped_records,
            self.newest.timestamp_ms,
            self.newest.offset,
            self.newest.unseen_below,
            len(self.epochs),
        )
        transactions = encode_transactions(self.transactions) if version >= TRANSACTIONAL_VERSION else b""
        moved = encode_fences(self.fences) + encode_orphans(self.orphans) if version >= MOVED_VERSION else b""
        rows = (_ROW.pack(*row) for row in self.epochs)
        producers = encode_producers(self.producers, checksums=version >= CHECKSUM_VERSION)
        return b"".join((head, *rows, transactions, moved, producers))

    @classmethod
    def decode(cls, raw: bytes | memoryview) -> StreamState:
        """Decode what `encode` returned.

        Raises:
            ValueError: another version, or lengths, counts or values that cannot be.
        """
        try:
            fields = _HEAD.unpack_from(raw)
            if fields[0] not in _VERSIONS:
                raise ValueError(
                    f"stream state version {fields[0]} is unknown, this broker reads 1..{CHECKSUM_VERSION}"
                )
            if fields[13] > EPOCH_ROWS_MAX:
                raise ValueError(f"{fields[13]} epochs are over {EPOCH_ROWS_MAX}")
            rows = [_ROW.unpack_from(raw, _HEAD.size + at * _ROW.size) for at in range(fields[13])]
        except struct.error as error:
            raise ValueError(f"a stream state ends too early: {error}") from error
        position = _HEAD.size + len(rows) * _ROW.size
        transactions = TransactionRows()
        fences, orphans = NO_FENCES, tuple[OrphanBranch, ...]()
        if fields[0] >= TRANSACTIONAL_VERSION:
            transactions, position = decode_transactions(raw, position)
        if fields[0] >= MOVED_VERSION:
            fences, position = decode_fences(raw, position)
            orphans, position = decode_orphans(raw, position)
        state = cls(
            end=LogEnd(next_offset=Offset(fields[1]), digest=fields[2], append_us=fields[3], epoch=Epoch(fields[4])),
            start=LogStart(
                first_index=RaftIndex(fields[5]), offset=Offset(fields[6]), boundary=Offset(fields[7]), digest=fields[8]
            ),
            skipped_records=fields[9],
            newest=NewestTimestamp(timestamp_ms=fields[10], offset=Offset(fields[11]), unseen_below=Offset(fields[12])),
            epochs=tuple((index, Epoch(epoch), Offset(start)) for index, epoch, start in rows),
            producers=tuple(decode_producers(memoryview(raw)[position:], checksums=fields[0] >= CHECKSUM_VERSION)),
            transactions=transactions,
            fences=fences,
            orphans=orphans,
        )
        if state.start.offset > state.end.next_offset:
            raise ValueError(f"log start {state.start.offset} is beyond the end {state.end.next_offset}")
        return state
