"""Producer states as bytes: in the state of a stream and in SKIP entries.

    u32 producers, each: i64 producer id | i16 producer epoch | u8 batches (1..5), each:
        i32 first sequence | i32 last sequence | i64 base offset | u64 index | i64 append_us | u32 home epoch

Producers stand in the order of their last append, oldest first: that is the order in which they are evicted.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from georelay.limits import PRODUCER_BATCHES_REMEMBERED, PRODUCERS_PER_STREAM_MAX
from region.topics.producer_table_core import BATCH_LAYOUT, ProducerState, Row

_COUNT: Final = struct.Struct(">I")
_PRODUCER: Final = struct.Struct(">qhB")
_BATCH_BYTES: Final = BATCH_LAYOUT.size
PRODUCER_ROWS_BYTES_MAX: Final = _COUNT.size + PRODUCERS_PER_STREAM_MAX * (
    _PRODUCER.size + PRODUCER_BATCHES_REMEMBERED * _BATCH_BYTES
)


def encode_producers(rows: Sequence[Row]) -> bytes:
    """Return the rows as bytes, in the order given."""
    parts = [_COUNT.pack(len(rows))]
    for producer_id, state in rows:
        parts += (_PRODUCER.pack(producer_id, state.epoch, len(state.packed) // _BATCH_BYTES), state.packed)
    return b"".join(parts)


def decode_producers(raw: bytes | memoryview) -> list[Row]:
    """Decode rows that fill `raw` to its end.

    Raises:
        ValueError: lengths, counts or values that cannot be.
    """
    try:
        (count,) = _COUNT.unpack_from(raw)
        if count > PRODUCERS_PER_STREAM_MAX:
            raise ValueError(f"{count} producers are over {PRODUCERS_PER_STREAM_MAX}")
        rows: dict[int, ProducerState] = {}
        position = _COUNT.size
        for _ in range(count):
            producer_id, epoch, batches = _PRODUCER.unpack_from(raw, position)
            start = position + _PRODUCER.size
            position = start + batches * _BATCH_BYTES
            if not 1 <= batches <= PRODUCER_BATCHES_REMEMBERED or producer_id in rows or producer_id < 0:
                raise ValueError(f"producer {producer_id} with {batches} batches cannot be")
            rows[producer_id] = ProducerState(epoch, bytes(raw[start:position]))
    except struct.error as error:
        raise ValueError(f"producer states end too early: {error}") from error
    if position != len(raw):
        raise ValueError(f"producer states need {position} bytes, there are {len(raw)}: some are missing or follow")
    return list(rows.items())
