"""Producer states as bytes: in the state of a stream and in SKIP entries.

    u32 producers, each: i64 producer id | i16 producer epoch | u8 batches (1..5), each:
        i32 first sequence | i32 last sequence | i64 base offset | u64 index | i64 append_us | u32 home epoch
        in the second layout also: i64 checksum of the batch, -1 where it is not known

What holds the rows says which layout they have. In the first one, which brokers of before CHECKSUM_LEVEL read, nothing
is known of checksums. Producers stand in the order of their last append, oldest first: that is the order in which they
are evicted.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from georelay.limits import PRODUCER_BATCHES_REMEMBERED, PRODUCERS_PER_STREAM_MAX
from region.topics.producer_table_core import BATCH_LAYOUT, NO_CHECKSUM, ProducerState, Row

_COUNT: Final = struct.Struct(">I")
_PRODUCER: Final = struct.Struct(">qhB")
_BATCH_BYTES: Final = BATCH_LAYOUT.size
_CHECKSUM: Final = struct.Struct(">q")  # the last field of a batch
_FIRST_BYTES: Final = _BATCH_BYTES - _CHECKSUM.size  # of a batch in the first layout
_UNKNOWN: Final = _CHECKSUM.pack(NO_CHECKSUM)
CHECKSUM_LEVEL: Final = 6  # feature level from which the second layout is understood
SKIP_CHECKSUM_LEVEL: Final = 7  # the same for SKIP entries
PRODUCER_ROWS_BYTES_MAX: Final = _COUNT.size + PRODUCERS_PER_STREAM_MAX * (
    _PRODUCER.size + PRODUCER_BATCHES_REMEMBERED * _BATCH_BYTES
)


def encode_producers(rows: Sequence[Row], *, checksums: bool = False) -> bytes:
    """Return the rows as bytes, in the order given, in the second layout where `checksums` are wanted."""
    parts = [_COUNT.pack(len(rows))]
    for producer_id, state in rows:
        packed = state.packed if checksums else _without_checksums(state.packed)
        parts += (_PRODUCER.pack(producer_id, state.epoch, len(state.packed) // _BATCH_BYTES), packed)
    return b"".join(parts)


def _without_checksums(packed: bytes) -> bytes:
    return b"".join(packed[at : at + _FIRST_BYTES] for at in range(0, len(packed), _BATCH_BYTES))


def _with_unknown_checksums(packed: bytes) -> bytes:
    return b"".join(packed[at : at + _FIRST_BYTES] + _UNKNOWN for at in range(0, len(packed), _FIRST_BYTES))


def decode_producers(raw: bytes | memoryview, *, checksums: bool = False) -> list[Row]:
    """Decode rows that fill `raw` to its end; `checksums` says that they have the second layout.

    Raises:
        ValueError: lengths, counts or values that cannot be.
    """
    try:
        (count,) = _COUNT.unpack_from(raw)
        if count > PRODUCERS_PER_STREAM_MAX:
            raise ValueError(f"{count} producers are over {PRODUCERS_PER_STREAM_MAX}")
        rows: dict[int, ProducerState] = {}
        position, batch_bytes = _COUNT.size, _BATCH_BYTES if checksums else _FIRST_BYTES
        for _ in range(count):
            producer_id, epoch, batches = _PRODUCER.unpack_from(raw, position)
            start = position + _PRODUCER.size
            position = start + batches * batch_bytes
            if not 1 <= batches <= PRODUCER_BATCHES_REMEMBERED or producer_id in rows or producer_id < 0:
                raise ValueError(f"producer {producer_id} with {batches} batches cannot be")
            packed = bytes(raw[start:position])
            if not checksums:
                packed = b"".join(
                    packed[at : at + _FIRST_BYTES] + _UNKNOWN for at in range(0, len(packed), _FIRST_BYTES)
                )
            rows[producer_id] = ProducerState(epoch, packed)
    except struct.error as error:
        raise ValueError(f"producer states end too early: {error}") from error
    if position != len(raw):
        raise ValueError(f"producer states need {position} bytes, there are {len(raw)}: some are missing or follow")
    return list(rows.items())
