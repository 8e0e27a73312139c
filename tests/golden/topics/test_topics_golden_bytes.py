"""The bytes of a stream's state, of START and of SKIP: on disk for ever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from georelay.ids import Epoch, Offset, RaftIndex
from region.topics.epoch_entry_core import EpochBegun, EpochCut, StatesBelow, decode_epoch, encode_epoch
from region.topics.fence_core import Fence, FenceState, decode_promise, decode_seal, encode_promise, encode_seal
from region.topics.log_end_core import LogEnd
from region.topics.log_start_core import LogStart, decode_dropped, decode_start, encode_start
from region.topics.newest_timestamp_core import NewestTimestamp
from region.topics.orphan_core import OrphanBranch
from region.topics.producer_rows import CHECKSUM_LEVEL, decode_producers
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
MOVED = replace(
    TRANSACTIONAL,
    fences=FenceState(
        promise=Fence(new_epoch=Epoch(7), index=RaftIndex(97), end=Offset(4715), digest=b"p" * 16),
        seal=Fence(new_epoch=Epoch(6), index=RaftIndex(96), end=Offset(4714), digest=b"q" * 16, move_id="move-1"),
    ),
    orphans=(
        OrphanBranch(
            epoch=Epoch(4),
            first=Offset(4716),
            following=Offset(4720),
            first_index=RaftIndex(70),
            cut_index=RaftIndex(80),
            cut_us=1_700_000_000_000_001,
            epochs=((Epoch(1), Offset(4716)), (Epoch(3), Offset(4718))),
        ),
    ),
)
BEGUN = EpochBegun(
    control_index=77,
    cut=EpochCut(
        first_index=RaftIndex(70),
        states=StatesBelow(producers=PRODUCERS, transactions=TRANSACTIONAL.transactions._replace(aborted=())),
    ),
)
EPOCHS = ((Epoch(1), Offset(0)), (Epoch(4), Offset(4716)))
CHECKED_PRODUCERS = tuple(
    (
        producer_id,
        ProducerState.of(row.epoch, (replace(batch, checksum=2**32 - 1 - at) for at, batch in enumerate(row.batches))),
    )
    for producer_id, row in PRODUCERS
)
CHECKED = replace(MOVED, producers=CHECKED_PRODUCERS)
BEGUN_CHECKED = EpochBegun(
    control_index=77,
    cut=EpochCut(
        first_index=RaftIndex(70),
        states=StatesBelow(producers=CHECKED_PRODUCERS, transactions=TRANSACTIONAL.transactions._replace(aborted=())),
    ),
)
ROWS = {
    "state": STATE.encode(),
    "state2": TRANSACTIONAL.encode(),
    "start": encode_start(START),
    "state3": MOVED.encode(),
    "start2": encode_start(START, dropped_below=RaftIndex(81)),
    "epoch": encode_epoch(EpochBegun(control_index=77)),
    "epoch2": encode_epoch(BEGUN),
    "epoch2-without": encode_epoch(EpochBegun(control_index=77, cut=EpochCut(first_index=RaftIndex(70), states=None))),
    "promise": encode_promise(Epoch(7)),
    "seal": encode_seal(Epoch(6), "move-1"),
    "state4": CHECKED.encode(feature_level=CHECKSUM_LEVEL),
    "epoch3": encode_epoch(BEGUN_CHECKED, checksums=True),
    "skip": encode_skip(epochs=EPOCHS, producers=encode_shipped_producers(PRODUCERS)),
    "skip2": encode_skip(
        epochs=EPOCHS, producers=encode_shipped_producers(CHECKED_PRODUCERS, checksums=True), checksums=True
    ),
    "shipped": encode_shipped_producers(PRODUCERS),
    "shipped2": encode_shipped_producers(CHECKED_PRODUCERS, checksums=True),
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


def test_the_bytes_of_version_3_decode_to_the_same_values() -> None:
    assert StreamState.decode(golden()["state3"]) == MOVED


def test_the_bytes_of_version_4_decode_to_the_same_values_with_checksums() -> None:
    stored = golden()
    assert StreamState.decode(stored["state4"]) == CHECKED
    assert decode_epoch(stored["epoch3"]) == BEGUN_CHECKED
    assert stored["state4"][0] == 4


def test_below_its_feature_level_a_checksum_is_left_out_and_brokers_of_before_read_the_rest() -> None:
    assert CHECKED.encode(feature_level=CHECKSUM_LEVEL - 1) == golden()["state3"]
    assert encode_epoch(BEGUN_CHECKED) == golden()["epoch2"]
    assert encode_skip(epochs=EPOCHS, producers=encode_shipped_producers(CHECKED_PRODUCERS)) == golden()["skip"]


def test_a_stream_without_producers_has_the_bytes_of_before_at_every_level() -> None:
    nobody = replace(STATE, producers=())
    assert nobody.encode(feature_level=CHECKSUM_LEVEL) == nobody.encode()


def test_a_state_of_version_4_that_ends_too_early_is_refused() -> None:
    for size in range(len(ROWS["state4"])):
        with pytest.raises(ValueError, match=r"."):
            StreamState.decode(ROWS["state4"][:size])


def test_the_payloads_of_entries_of_homes_that_move_decode_to_the_same_values() -> None:
    stored = golden()
    assert decode_promise(stored["promise"]) == 7
    assert decode_seal(stored["seal"]) == (6, "move-1")
    assert decode_epoch(stored["epoch"]) == EpochBegun(control_index=77)
    assert decode_epoch(stored["epoch2"]) == BEGUN
    assert decode_start(stored["start2"]) == START
    assert (decode_dropped(stored["start2"]), decode_dropped(stored["start"])) == (81, 0)


def test_a_stream_whose_home_never_moved_has_the_bytes_that_brokers_of_before_read() -> None:
    assert replace(MOVED, fences=FenceState(), orphans=()).encode() == golden()["state2"]
    assert golden()["state3"][0] == 3


def test_a_state_of_version_3_that_ends_too_early_is_refused() -> None:
    for size in range(len(ROWS["state3"])):
        with pytest.raises(ValueError, match=r"."):
            StreamState.decode(ROWS["state3"][:size])


@pytest.mark.parametrize(
    ("decode", "name"),
    [(decode_promise, "promise"), (decode_seal, "seal"), (decode_epoch, "epoch3"), (decode_start, "start2")],
)
def test_an_entry_that_ends_too_early_or_is_of_another_version_is_refused(decode: Any, name: str) -> None:
    raw = golden()[name]
    for size in range(len(raw)):
        if size not in (8, 41):  # whole entries of the first versions
            with pytest.raises(ValueError, match=r"."):
                decode(raw[:size])
    position = 8 if name == "epoch3" else 0
    with pytest.raises(ValueError, match=r"version"):
        decode(raw[:position] + bytes([raw[position] + 1]) + raw[position + 1 :])


def test_a_move_id_is_bounded() -> None:
    with pytest.raises(ValueError, match="64"):
        encode_seal(Epoch(2), "m" * 65)


def test_states_that_are_over_the_size_of_an_entry_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region.topics.epoch_entry_core.RECORD_BATCH_BYTES_MAX", 4_000)
    many = tuple((number, Ongoing(0, Offset(number), 1)) for number in range(400))
    states = StatesBelow(producers=(), transactions=TransactionRows(ongoing=many))
    begun = decode_epoch(encode_epoch(replace(BEGUN, cut=EpochCut(first_index=RaftIndex(5), states=states))))
    assert begun.cut == EpochCut(first_index=RaftIndex(5), states=None)


def test_a_stream_without_transactions_has_the_bytes_that_brokers_of_before_them_read() -> None:
    assert (golden()["state"][0], golden()["state2"][0]) == (1, 2)


def test_a_state_of_version_2_that_ends_too_early_is_refused() -> None:
    for size in range(len(ROWS["state2"])):
        with pytest.raises(ValueError, match=r"."):
            StreamState.decode(ROWS["state2"][:size])


def test_producers_that_were_shipped_get_the_index_of_the_entry_that_brings_them() -> None:
    skipped = decode_skip(golden()["skip"], index=RaftIndex(55))
    assert skipped.epochs == EPOCHS
    assert {batch.index for _, state in skipped.producers for batch in state.batches} == {55}
    again = encode_skip(epochs=skipped.epochs, producers=encode_shipped_producers(skipped.producers))
    assert again == ROWS["skip"]
    assert isinstance(skipped, SkippedTo)


def test_producers_that_were_shipped_with_checksums_have_them_where_the_region_reads_them() -> None:
    skipped = decode_skip(golden()["skip2"], index=RaftIndex(55))
    checksums = [batch.checksum for _, state in skipped.producers for batch in state.batches]
    assert checksums == [batch.checksum for _, state in CHECKED_PRODUCERS for batch in state.batches]
    older = encode_skip(epochs=EPOCHS, producers=golden()["shipped2"])
    assert older == golden()["skip"]
    with pytest.raises(ValueError, match="producers are over"):  # as brokers of before read it
        decode_producers(golden()["shipped2"])


def test_a_state_that_ends_too_early_is_refused() -> None:
    for size in range(len(ROWS["state"])):
        with pytest.raises(ValueError, match=r"."):
            StreamState.decode(ROWS["state"][:size])


def test_a_skip_that_ends_too_early_is_refused() -> None:
    for name in ("skip", "skip2"):
        for size in range(len(ROWS[name])):
            with pytest.raises(ValueError, match=r"."):
                decode_skip(ROWS[name][:size], index=RaftIndex(1))


@pytest.mark.parametrize("raw", [ROWS["state"] + b"\0", b"\5" + ROWS["state"][1:]], ids=["longer", "another version"])
def test_another_state_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"follow|version"):
        StreamState.decode(raw)
