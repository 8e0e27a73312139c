"""What a SKIP entry says, and which of its bytes are refused."""

from __future__ import annotations

import struct

import pytest

from georelay.ids import Epoch, Offset, RaftIndex
from mesh.replication.frames import EPOCH_ROWS_MAX
from region.topics.producer_table_core import AppendedBatch, ProducerState
from region.topics.skip_core import decode_skip, encode_shipped_producers, encode_skip, producers_before

NOBODY = encode_shipped_producers([])


def batch(sequence: int, *, base: int) -> AppendedBatch:
    return AppendedBatch(
        base_sequence=sequence,
        last_sequence=sequence,
        base_offset=Offset(base),
        index=RaftIndex(0),
        append_us=0,
        home_epoch=Epoch(1),
    )


def test_a_mirror_gets_only_the_batches_it_will_not_receive() -> None:
    rows = [
        (1, ProducerState.of(0, (batch(0, base=40), batch(1, base=50)))),
        (2, ProducerState.of(0, (batch(0, base=10),))),
        (3, ProducerState.of(0, (batch(0, base=50),))),
    ]
    kept = producers_before(rows, Offset(50))
    assert [(producer, [batch.base_offset for batch in state.batches]) for producer, state in kept] == [
        (2, [10]),
        (1, [40]),
    ]


def test_as_many_epochs_as_the_limit_are_taken_and_one_more_is_refused() -> None:
    rows = [(Epoch(n + 1), Offset(n)) for n in range(EPOCH_ROWS_MAX)]
    assert decode_skip(encode_skip(epochs=rows, producers=NOBODY), index=RaftIndex(1)).epochs == tuple(rows)
    rows.append((Epoch(EPOCH_ROWS_MAX + 1), Offset(EPOCH_ROWS_MAX)))
    with pytest.raises(ValueError, match=f"{EPOCH_ROWS_MAX + 1} epochs are over {EPOCH_ROWS_MAX}"):
        decode_skip(encode_skip(epochs=rows, producers=NOBODY), index=RaftIndex(1))


def test_a_skip_of_another_version_is_refused() -> None:
    raw = struct.pack(">BH", 3, 0) + NOBODY
    with pytest.raises(ValueError, match="SKIP entry version 3 is unknown, this broker reads up to 2"):
        decode_skip(raw, index=RaftIndex(1))


def test_a_skip_that_ends_inside_its_epochs_is_refused() -> None:
    with pytest.raises(ValueError, match="ends too early"):
        decode_skip(struct.pack(">BH", 1, 1) + NOBODY, index=RaftIndex(1))
