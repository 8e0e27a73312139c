"""The transactions of a stream as bytes: part of the stream's state from version 2 on.

    u32 open, each: i64 producer id | i16 producer epoch | i64 first offset | i64 append_us
    u32 aborted, each: i64 producer id | i16 producer epoch | i64 first offset | i64 last offset | i64 stable offset
    u32 ended, each: i64 producer id | i16 producer epoch | i32 number | i64 append_us

Open ones stand in the order of their first offsets, aborted ones in that of their markers, ended ones in that of the
newest marker of each producer.
"""

from __future__ import annotations

import itertools
import struct
from typing import Final

from georelay.ids import Offset
from georelay.limits import PRODUCERS_PER_STREAM_MAX
from region.topics.transaction_table_core import ABORTED_MAX, AbortedTransaction, Ended, Ongoing, TransactionRows

_COUNT: Final = struct.Struct(">I")
_ONGOING: Final = struct.Struct(">qhqq")
_ABORTED: Final = struct.Struct(">qhqqq")
_ENDED: Final = struct.Struct(">qhiq")
ABORTED_READ_MAX: Final = 2 * ABORTED_MAX  # a mirror moves its log start later than the home that counted
TRANSACTION_ROWS_BYTES_MAX: Final = (
    3 * _COUNT.size + ABORTED_READ_MAX * (_ONGOING.size + _ABORTED.size) + PRODUCERS_PER_STREAM_MAX * _ENDED.size
)


def encode_transactions(rows: TransactionRows) -> bytes:
    """Return the rows as bytes."""
    parts = [_COUNT.pack(len(rows.ongoing))]
    parts += (_ONGOING.pack(producer_id, *row) for producer_id, row in rows.ongoing)
    parts.append(_COUNT.pack(len(rows.aborted)))
    parts += (_ABORTED.pack(*row) for row in rows.aborted)
    parts.append(_COUNT.pack(len(rows.ended)))
    parts += (
        _ENDED.pack(producer_id, row.producer_epoch, row.number, row.append_us) for producer_id, row in rows.ended
    )
    return b"".join(parts)


def decode_transactions(raw: bytes | memoryview, position: int) -> tuple[TransactionRows, int]:
    """Decode the rows at `position`; return them and where they end.

    Raises:
        ValueError: lengths, counts or values that cannot be.
    """
    ongoing, position = _rows(raw, position, _ONGOING, ABORTED_READ_MAX)
    aborted, position = _rows(raw, position, _ABORTED, ABORTED_READ_MAX)
    ended, position = _rows(raw, position, _ENDED, PRODUCERS_PER_STREAM_MAX)
    rows = TransactionRows(
        ongoing=tuple((row[0], Ongoing(row[1], Offset(row[2]), row[3])) for row in ongoing),
        aborted=tuple(
            AbortedTransaction(row[0], row[1], Offset(row[2]), Offset(row[3]), Offset(row[4])) for row in aborted
        ),
        ended=tuple((row[0], Ended(row[1], row[2], row[3])) for row in ended),
    )
    _check(rows)
    return rows, position


def _rows(
    raw: bytes | memoryview, position: int, layout: struct.Struct, count_max: int
) -> tuple[list[tuple[int, ...]], int]:
    try:
        (count,) = _COUNT.unpack_from(raw, position)
    except struct.error as error:
        raise ValueError(f"transactions end too early: {error}") from error
    start = position + _COUNT.size
    end = start + count * layout.size
    if count > count_max or end > len(raw):
        raise ValueError(f"{count} transactions are over {count_max} or do not fit what is there")
    return list(layout.iter_unpack(memoryview(raw)[start:end])), end


def _check(rows: TransactionRows) -> None:
    firsts = [row.first_offset for _, row in rows.ongoing]
    lasts = [row.last_offset for row in rows.aborted]
    for offsets in (firsts, lasts):
        if any(following <= before for before, following in itertools.pairwise(offsets)):
            raise ValueError("transactions are out of order")
    for producers in (rows.ongoing, rows.ended):
        if len({producer_id for producer_id, _ in producers}) != len(producers):
            raise ValueError("a producer stands twice")
