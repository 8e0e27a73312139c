"""Random long schedules with epoch bumps: whatever arrives, a mirror holds a prefix of its epoch's history."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from georelay.wire.crc import crc32c
from mesh.replication.receiver_core import (
    ApplyViolation,
    MirrorEnd,
    Verdict,
    epoch_at,
    following_row,
    judge,
    recheck_at_apply,
    table_fault,
)
from mesh.replication.stream_header import EntryType, StreamHeader, first_digest, next_digest

KEY = StreamKey(b"p" * 16, RegionNumber(0), 0)
Entry = tuple[StreamHeader, bytes]
Row = tuple[Epoch, Offset]


def extend(history: list[Entry], epoch: Epoch, sizes: list[int]) -> list[Entry]:
    result = list(history)
    for records in sizes:
        first = result[-1][0].next_offset if result else Offset(0)
        digest = result[-1][0].digest if result else first_digest(KEY)
        payload = f"{epoch}/{first}".encode() * 10
        last = Offset(first + records - 1)
        header = StreamHeader(
            type=EntryType.DATA, entry_region=1, record_count=records, epoch=epoch, base_offset=first, append_us=0,
            received_ns=0, max_timestamp_ms=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
            payload_crc=crc32c(payload), digest=next_digest(digest, epoch=epoch, first=first, last=last, batch=payload),
        )  # fmt: skip
        result.append((header, payload))
    return result


@st.composite
def epochs(draw: st.DrawFn) -> list[tuple[Epoch, tuple[Row, ...], list[Entry]]]:
    """Return the history and table of each home: every new one keeps a prefix of the one before."""
    sizes = st.lists(st.integers(1, 4), min_size=1, max_size=5)
    table: tuple[Row, ...] = ((Epoch(1), Offset(0)),)
    history = extend([], Epoch(1), draw(sizes))
    homes = [(Epoch(1), table, history)]
    for number in range(2, draw(st.integers(1, 3)) + 1):
        # What is below the start of the newest epoch is agreed on for ever.
        agreed = sum(1 for header, _ in history if header.base_offset < table[-1][1])
        kept = history[: draw(st.integers(agreed, len(history)))]
        start = kept[-1][0].next_offset if kept else Offset(0)
        table = (*table, (Epoch(number), start))
        history = extend(kept, Epoch(number), draw(sizes))
        homes.append((Epoch(number), table, history))
    return homes


@given(homes=epochs(), data=st.data())
def test_a_mirror_is_always_a_prefix_of_its_epochs_history(
    homes: list[tuple[Epoch, tuple[Row, ...], list[Entry]]], data: st.DataObject
) -> None:
    epoch, log = Epoch(1), list[Entry]()
    for _ in range(data.draw(st.integers(1, 60))):
        if data.draw(st.integers(0, 9)) == 0 and log:  # the leader restarts and loses its tail
            log = log[: data.draw(st.integers(0, len(log)))]
            floor = homes[epoch - 1][1][-1][1]
            kept = [row for row in homes[epoch - 1][2] if row[0].base_offset < floor]
            log = log if len(log) >= len(kept) else kept  # an EPOCH entry is committed, and so all before it
        home_epoch, table, history = data.draw(st.sampled_from(homes))
        session = Epoch(data.draw(st.integers(1, home_epoch)))
        following = log[-1][0].next_offset if log else Offset(0)
        header, payload = data.draw(st.sampled_from(history))
        if data.draw(st.booleans()):  # mostly what is next, or the test would stay at the start
            header, payload = next((row for row in history if row[0].base_offset == following), (header, payload))
        end = MirrorEnd(epoch=epoch, next_offset=following, digest=log[-1][0].digest if log else first_digest(KEY))
        if judge(end, session_epoch=session, table=table, header=header, payload=payload) is Verdict.ACCEPT:
            log.append((header, payload))
        raised = following_row(table, epoch)
        if raised is not None and log and log[-1][0].next_offset >= raised[1]:
            epoch, log = raised[0], [row for row in log if row[0].next_offset <= raised[1]]
        expected = homes[epoch - 1][2]
        # A later home of the same epoch number does not exist, so its history is the only one.
        assert log == expected[: len(log)]


@given(homes=epochs())
def test_what_a_home_committed_passes_the_check_at_apply(
    homes: list[tuple[Epoch, tuple[Row, ...], list[Entry]]],
) -> None:
    epoch, table, history = homes[-1]
    following = Offset(0)
    for header, _ in history:
        recheck_at_apply(
            kind=header.type, epoch=header.epoch, base_offset=header.base_offset, committed_epoch=epoch,
            committed_next=following, epoch_table=table,
        )  # fmt: skip
        assert epoch_at(table, header.base_offset) == header.epoch
        following = header.next_offset


@given(homes=epochs(), data=st.data())
def test_a_hole_or_a_repeat_at_apply_is_a_violation(
    homes: list[tuple[Epoch, tuple[Row, ...], list[Entry]]], data: st.DataObject
) -> None:
    epoch, table, history = homes[-1]
    header, _ = data.draw(st.sampled_from(history))
    wrong = Offset(header.base_offset + data.draw(st.integers(-3, 3).filter(bool)))
    try:
        recheck_at_apply(
            kind=header.type, epoch=header.epoch, base_offset=header.base_offset, committed_epoch=epoch,
            committed_next=wrong, epoch_table=table,
        )  # fmt: skip
    except ApplyViolation:
        return
    raise AssertionError(f"{header.base_offset} was applied when {wrong} was next")


@given(homes=epochs())
def test_tables_of_homes_are_sound_and_a_swapped_row_is_not(
    homes: list[tuple[Epoch, tuple[Row, ...], list[Entry]]],
) -> None:
    table = homes[-1][1]
    assert table_fault(table) == ""
    if len(table) > 1:
        assert table_fault(table[::-1]) != ""
    assert table_fault(()) != ""
