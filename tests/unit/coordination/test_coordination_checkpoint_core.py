"""A checkpoint is read as it was written, whole or not at all."""

from __future__ import annotations

import pytest

from georelay.ids import Epoch
from region.coordination.checkpoint_core import (
    PIECE_BYTES_MAX,
    PIECES_MAX,
    Checkpoint,
    CheckpointReader,
    encode_checkpoint,
)
from region.coordination.part import Part

SMALL = Checkpoint(epoch=Epoch(4), parts={Part.GROUPS: b"groups", Part.QUEUES: b""})
LARGE = Checkpoint(epoch=Epoch(5), parts={Part.GROUPS: b"g" * (2 * PIECE_BYTES_MAX + 1), Part.TRANSACTIONS: b"t"})


def read(values: list[bytes]) -> list[Checkpoint]:
    reader = CheckpointReader()
    found = [reader.take(value) for value in values]
    return [checkpoint for checkpoint in found if checkpoint is not None]


def test_the_bytes_of_a_checkpoint_never_change() -> None:
    assert [value.hex() for value in encode_checkpoint(SMALL)] == [
        "0101000000040000000000000002" + b"groups".hex(),
        "0103000000040000000100000002",
    ]


@pytest.mark.parametrize("checkpoint", [SMALL, LARGE])
def test_what_is_written_is_read_back(checkpoint: Checkpoint) -> None:
    assert read(encode_checkpoint(checkpoint)) == [checkpoint]


def test_a_run_without_its_beginning_says_nothing() -> None:
    values = encode_checkpoint(LARGE)
    assert read(values[1:]) == []
    assert read(values[1:] + encode_checkpoint(SMALL)) == [SMALL]


def test_a_run_with_a_gap_says_nothing() -> None:
    values = encode_checkpoint(LARGE)
    assert read(values[:1] + values[2:]) == []


def test_a_run_that_begins_again_is_read_from_there() -> None:
    assert read([*encode_checkpoint(LARGE)[:2], *encode_checkpoint(LARGE)]) == [LARGE]


def test_a_reader_goes_on_from_the_pieces_of_another_one() -> None:
    values = encode_checkpoint(LARGE)
    first = CheckpointReader()
    for value in values[:2]:
        first.take(value)
    second = CheckpointReader(first.pieces)
    assert [second.take(value) for value in values[2:]][-1] == LARGE


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\x02" + encode_checkpoint(SMALL)[0][1:],
        b"\x01\x09" + encode_checkpoint(SMALL)[0][2:],
        encode_checkpoint(SMALL)[0][:6] + (7).to_bytes(4, "big") + (7).to_bytes(4, "big"),
        encode_checkpoint(SMALL)[0][:6] + bytes(4) + (PIECES_MAX + 1).to_bytes(4, "big"),
        encode_checkpoint(SMALL)[0] + bytes(PIECE_BYTES_MAX),
    ],
)
def test_other_bytes_are_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        CheckpointReader().take(wrong)
