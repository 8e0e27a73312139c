"""The STREAM part of a log entry: written once by the home region, copied verbatim by every mirror.

Layout of format 1 (80 bytes, big-endian; it never changes):

    pos  size  field
      0     1  type                EntryType
      1     1  reserved            0
      2     2  entry_region        number of the region where the first broker of the mesh received it
      4     4  record_count        offsets owned: data >= 1, txn marker 1, every other control entry 0
      8     4  epoch               home epoch in which the entry was sequenced
     12     8  base_offset         first offset owned; for control entries the next offset
     20     8  append_us           max(home wall clock, previous append_us), microseconds since 1970
     28     8  received_ns         wall clock of the first broker that received it, ns since 1970
     36     8  max_timestamp_ms    of the batch (CreateTime of the client), -1 for control entries
     44     8  producer_id         -1 without
     52     2  producer_epoch      -1 without
     54     4  base_sequence       -1 without
     58     4  payload_crc         CRC-32C of the payload
     62    16  digest              digest chain after this entry (BLAKE2b-128)
     78     2  reserved            0

Rule 1: a mirror never changes a byte of it.
Rule 2: the payload of DATA is a Kafka v2 RecordBatch with base offset and home epoch stamped in.
"""

from __future__ import annotations

import enum
import hashlib
import struct
from dataclasses import dataclass
from typing import Final

from georelay.ids import Epoch, Offset, StreamKey

STREAM_HEADER: Final = struct.Struct(">BBHIIqqqqqhiI16sH")
STREAM_HEADER_BYTES: Final = STREAM_HEADER.size
DIGEST_BYTES: Final = 16
BATCH_DIGEST_FROM: Final = 21  # bytes before it (base offset, length, epoch, magic, crc) are not covered
assert STREAM_HEADER_BYTES == 80


class EntryType(enum.IntEnum):
    """Kinds of log entries. Numbers are on disk: never renumber, never reuse."""

    DATA = 1  # a record batch
    NOOP = 2  # first entry of a leader's term
    CONF = 3  # membership of the Raft group
    START = 4  # retention: a new log start
    TXN_MARKER = 5  # Kafka control batch: owns one offset
    EPOCH = 6  # first entry of a home epoch
    PROMISE = 7  # fences all lower epochs from its index on
    SEAL = 8  # closes an epoch at a last offset
    SKIP = 9  # this region's log start becomes last + 1


OWNS_OFFSETS: Final = frozenset({EntryType.DATA, EntryType.TXN_MARKER})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHeader:
    """The decoded STREAM part. Units and ranges: module docstring."""

    type: EntryType
    entry_region: int
    record_count: int
    epoch: Epoch
    base_offset: Offset
    append_us: int
    received_ns: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    payload_crc: int
    digest: bytes

    @property
    def next_offset(self) -> Offset:
        """Return the first offset after this entry."""
        return Offset(self.base_offset + self.record_count)

    @property
    def last_offset(self) -> Offset:
        """Return the last offset owned (base_offset - 1 for entries that own none)."""
        return Offset(self.base_offset + self.record_count - 1)

    def encode(self) -> bytes:
        """Return the 80 bytes."""
        return STREAM_HEADER.pack(
            self.type,
            0,
            self.entry_region,
            self.record_count,
            self.epoch,
            self.base_offset,
            self.append_us,
            self.received_ns,
            self.max_timestamp_ms,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.payload_crc,
            self.digest,
            0,
        )

    @classmethod
    def decode(cls, raw: bytes | bytearray | memoryview, position: int = 0) -> StreamHeader:
        """Decode the 80 bytes at `position`.

        Raises:
            ValueError: too short, an unknown type, or a count that does not fit the type.
        """
        if len(raw) - position < STREAM_HEADER_BYTES:
            raise ValueError(f"stream header needs {STREAM_HEADER_BYTES} bytes, {len(raw) - position} are left")
        fields = STREAM_HEADER.unpack_from(raw, position)
        kind = EntryType(fields[0])  # ValueError for an unknown number
        count = fields[3]
        if (kind is EntryType.DATA and count < 1) or (kind is EntryType.TXN_MARKER and count != 1):
            raise ValueError(f"record count {count} does not fit a {kind.name} entry")
        if kind not in OWNS_OFFSETS and count != 0:
            raise ValueError(f"a {kind.name} entry owns no offset, but its record count is {count}")
        return cls(
            type=kind,
            entry_region=fields[2],
            record_count=count,
            epoch=Epoch(fields[4]),
            base_offset=Offset(fields[5]),
            append_us=fields[6],
            received_ns=fields[7],
            max_timestamp_ms=fields[8],
            producer_id=fields[9],
            producer_epoch=fields[10],
            base_sequence=fields[11],
            payload_crc=fields[12],
            digest=fields[13],
        )


def first_digest(key: StreamKey) -> bytes:
    """Return digest_0 of a stream: BLAKE2b-128(topic id, origin u16, partition u32)."""
    seed = key.topic_id + struct.pack(">HI", key.origin, key.partition)
    return hashlib.blake2b(seed, digest_size=DIGEST_BYTES).digest()


def next_digest(
    previous: bytes, *, epoch: Epoch, first: Offset, last: Offset, batch: bytes | bytearray | memoryview
) -> bytes:
    """Return digest_i: covers digest_{i-1}, epoch, first, last and the batch bytes from byte 21."""
    chain = hashlib.blake2b(previous, digest_size=DIGEST_BYTES)
    chain.update(struct.pack(">Iqq", epoch, first, last))
    chain.update(memoryview(batch)[BATCH_DIGEST_FROM:])
    return chain.digest()
