"""The bytes of a stream's state, of START and of SKIP: on disk for ever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from georelay.ids import Epoch, Offset, RaftIndex
from region.topics.log_end_core import LogEnd
from region.topics.log_start_core import LogStart, decode_start, encode_start
from region.topics.newest_timestamp_core import NewestTimestamp
from region.topics.producer_table_core import AppendedBatch, ProducerState
from region.topics.skip_core import SkippedTo, decode_skip, encode_shipped_producers, encode_skip
from region.topics.stream_state import StreamState
from region.topics.transaction_table_core import AbortedTransaction, Ended, Ongoing, TransactionRows

GOLDEN = Path(__file__).parent / "stream_state.hex"
START = LogStart(first_index=RaftIndex(90), offset=Offset(4703), boundary=Offset(4700), digest=b"s" * 16)
PRODUCERS = (
    (
        (2 << 48) | 5,
        ProducerState.of(0, (AppendedBatch(7, 9, Offset(4711), RaftIndex(99), 1_700_000_000_000_000, Epoch(3)),)),
    ),
    (
        8,
        ProducerState.of(
            32_767,
            (
                AppendedBatch(2**31 - 1, 0, Offset(4714), RaftIndex(100), 1_700_000_000_000_001, Epoch(3)),
                AppendedBatch(1, 1, Offset(4716), RaftIndex(101), 1_700_000_000_000_002, Epoch(4)),
            ),
        ),
    ),
)
STATE = StreamState(
    end=LogEnd(next_offset=Offset(4717), digest=b"e" * 16, append_us=1_700_000_000_000_002, epoch=Epoch(4)),
    start=START,
    skipped_records=12,
    newest=NewestTimestamp(timestamp_ms=1_700_000_000_123, offset=Offset(4711), unseen_below=Offset(4705)),
    epochs=((2, Epoch(1), Offset(0)), (80, Epoch(4), Offset(4716))),
    producers=PRODUCERS,
)
TRANSACTIONAL = replace(
    STATE,
    transactions=TransactionRows(
        ongoing=(
            (8, Ongoing(32_767, Offset(4714), 1_700_000_000_000_001)),
            ((2 << 48) | 5, Ongoing(0, Offset(4716), 1)),
        ),
        aborted=(AbortedTransaction(7, 3, Offset(4690), Offset(4710), Offset(4705)),),
        ended=((7, Ended(3, 2**31 - 1, 1_700_000_000_000_000)), (9, Ended(0, 1, 1_700_000_000_000_001))),
    ),
)
EPOCHS = ((Epoch(1), Offset(0)), (Epoch(4), Offset(4716)))
ROWS = {
    "state": STATE.encode(),
    "state2": TRANSACTIONAL.encode(),
    "start": encode_start(START),
    "skip": encode_skip(epochs=EPOCHS, producers=encode_shipped_producers(PRODUCERS)),
}


def golden() -> dict[str, bytes]:
    rows = [line.split() for line in GOLDEN.read_text().splitlines()]
    return {name: bytes.fromhex(raw) for name, raw in rows}


def test_the_bytes_are_those_of_version_1(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        GOLDEN.write_text("".join(f"{name} {raw.hex()}\n" for name, raw in ROWS.items()))
    assert golden() == ROWS


def test_the_bytes_of_version_1_decode_to_the_same_values() -> None:
    stored = golden()
    assert StreamState.decode(stored["state"]) == STATE
    assert decode_start(stored["start"]) == START


def test_the_bytes_of_version_2_decode_to_the_same_values() -> None:
    assert StreamState.decode(golden()["state2"]) == TRANSACTIONAL


def test_a_stream_without_transactions_has_the_bytes_that_brokers_of_before_them_read() -> None:
    assert (golden()["state"][0], golden()["state2"][0]) == (1, 2)


@pytest.mark.parametrize("size", range(len(ROWS["state2"])))
def test_a_state_of_version_2_that_ends_too_early_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        StreamState.decode(ROWS["state2"][:size])


def test_producers_that_were_shipped_get_the_index_of_the_entry_that_brings_them() -> None:
    skipped = decode_skip(golden()["skip"], index=RaftIndex(55))
    assert skipped.epochs == EPOCHS
    assert {batch.index for _, state in skipped.producers for batch in state.batches} == {55}
    again = encode_skip(epochs=skipped.epochs, producers=encode_shipped_producers(skipped.producers))
    assert again == ROWS["skip"]
    assert isinstance(skipped, SkippedTo)


@pytest.mark.parametrize("size", range(len(ROWS["state"])))
def test_a_state_that_ends_too_early_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        StreamState.decode(ROWS["state"][:size])


@pytest.mark.parametrize("size", range(len(ROWS["skip"])))
def test_a_skip_that_ends_too_early_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_skip(ROWS["skip"][:size], index=RaftIndex(1))


@pytest.mark.parametrize("raw", [ROWS["state"] + b"\0", b"\3" + ROWS["state"][1:]], ids=["longer", "another version"])
def test_another_state_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"follow|version"):
        StreamState.decode(raw)
