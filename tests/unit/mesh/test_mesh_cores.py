"""The sender's window, the receiver's verdicts, forward lanes and their guard, and the stream header."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from georelay.errors import Busy, GeorelayError, NotHome, NotLeader, OutcomeUnknown
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from georelay.wire.crc import crc32c
from mesh.replication.faults import from_fault, to_fault
from mesh.replication.forwarding_core import GUARD_REMEMBERS, Failed, Failure, LaneCore, LaneGuard, LaneState, Refusal
from mesh.replication.frames import Fault
from mesh.replication.link_state import PeerProtocolError
from mesh.replication.receiver_core import (
    ApplyViolation,
    MirrorEnd,
    Verdict,
    epoch_at,
    following_row,
    judge,
    judge_skip,
    recheck_at_apply,
    table_fault,
)
from mesh.replication.sender_core import Refusal as HelloRefusal
from mesh.replication.sender_core import SenderCore, refuse_hello
from mesh.replication.stream_header import (
    STREAM_HEADER_BYTES,
    EntryType,
    StreamHeader,
    first_digest,
    next_digest,
)

KEY = StreamKey(b"k" * 16, RegionNumber(0), 0)
TABLE = ((Epoch(1), Offset(0)), (Epoch(2), Offset(10)))
PAYLOAD = b"a record batch of more than twenty-one bytes"


def header(first: int, records: int = 2, *, epoch: int = 1, previous: bytes | None = None) -> StreamHeader:
    digest = next_digest(
        previous if previous is not None else first_digest(KEY),
        epoch=Epoch(epoch),
        first=Offset(first),
        last=Offset(first + records - 1),
        batch=PAYLOAD,
    )
    return StreamHeader(
        type=EntryType.DATA,
        entry_region=3,
        record_count=records,
        epoch=Epoch(epoch),
        base_offset=Offset(first),
        append_us=1_700_000_000_000_000,
        received_ns=1_700_000_000_000_000_001,
        max_timestamp_ms=1_700_000_000_000,
        producer_id=(3 << 48) | 5,
        producer_epoch=1,
        base_sequence=17,
        payload_crc=crc32c(PAYLOAD),
        digest=digest,
    )


def verdict(one: StreamHeader, *, at: int = 0, epoch: int = 1, session: int = 1, payload: bytes = PAYLOAD) -> Verdict:
    end = MirrorEnd(epoch=Epoch(epoch), next_offset=Offset(at), digest=first_digest(KEY))
    return judge(end, session_epoch=Epoch(session), table=TABLE, header=one, payload=payload)


# --- receiver -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "fields", "expected"),
    [
        (header(0), {}, Verdict.ACCEPT),
        (header(2), {}, Verdict.GAP),
        (header(0), {"at": 2}, Verdict.ALREADY_THERE),
        (header(0), {"at": 3}, Verdict.ALREADY_THERE),
        (header(0), {"at": 1}, Verdict.DIVERGED),  # boundaries differ
        (header(0), {"epoch": 2, "session": 1}, Verdict.FENCED),
        (header(0), {"epoch": 1, "session": 2}, Verdict.EPOCH_AHEAD),
        (header(0), {"epoch": 2, "session": 2}, Verdict.ACCEPT),  # an old batch in a new session
        (header(9, 2), {"at": 9}, Verdict.WRONG_EPOCH),  # reaches into the following epoch
        (header(8, 2), {"at": 10}, Verdict.ALREADY_THERE),  # ends where the following epoch begins
        (header(10, epoch=1), {"at": 10}, Verdict.WRONG_EPOCH),
        (header(10, epoch=2), {"at": 10}, Verdict.WRONG_EPOCH),  # the mirror is still in epoch 1
        (header(0, previous=b"x" * 16), {}, Verdict.DIVERGED),
        (header(0), {"payload": PAYLOAD[:-1] + b"?"}, Verdict.DAMAGED),
        (dataclasses.replace(header(0), type=EntryType.NOOP, record_count=0), {}, Verdict.WRONG_EPOCH),
        (dataclasses.replace(header(0), type=EntryType.NOOP), {}, Verdict.WRONG_EPOCH),
        (dataclasses.replace(header(0), base_offset=Offset(-1)), {}, Verdict.WRONG_EPOCH),
    ],
)
def test_the_receiver_rule_clause_by_clause(batch: StreamHeader, fields: dict[str, Any], expected: Verdict) -> None:
    assert verdict(batch, **fields) is expected


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ([], "the epoch table is empty"),
        ([(1, 0)], ""),
        ([(1, 5), (2, 5)], ""),  # an epoch without records
        ([(1, 5), (3, 9)], ""),
        ([(1, 5), (1, 9)], "epoch 1 at 9 does not follow epoch 1 at 5"),
        ([(2, 5), (3, 4)], "epoch 3 at 4 does not follow epoch 2 at 5"),
        ([(0, 0)], "the first epoch is 0 at 0"),
        ([(1, -1)], "the first epoch is 1 at -1"),
    ],
)
def test_an_epoch_table_that_cannot_be_is_named(table: list[tuple[Epoch, Offset]], text: str) -> None:
    assert table_fault(table) == text


def test_a_batch_that_no_row_of_the_table_covers_has_no_epoch() -> None:
    table = [(Epoch(3), Offset(10)), (Epoch(5), Offset(20))]
    assert [epoch_at(table, Offset(at)) for at in (9, 10, 19, 20)] == [None, 3, 3, 5]
    assert [following_row(table, Epoch(epoch)) for epoch in (2, 3, 4, 5)] == [table[0], table[1], table[1], None]


def test_a_batch_of_an_epoch_that_the_table_denies_is_not_applied() -> None:
    def recheck(epoch: int, committed_epoch: int) -> None:
        recheck_at_apply(
            kind=EntryType.DATA,
            epoch=Epoch(epoch),
            base_offset=Offset(5),
            committed_epoch=Epoch(committed_epoch),
            committed_next=Offset(5),
            epoch_table=[(Epoch(1), Offset(0)), (Epoch(2), Offset(5))],
        )

    recheck(2, 2)
    with pytest.raises(ApplyViolation, match="offset 5 was sequenced in epoch 1, which the table does not say"):
        recheck(1, 2)
    with pytest.raises(ApplyViolation, match="offset 5 was sequenced in epoch 2"):
        recheck(2, 1)


def test_what_is_broken_at_apply_is_named() -> None:
    def broken(kind: EntryType, epoch: int, base: int) -> str:
        with pytest.raises(ApplyViolation) as caught:
            recheck_at_apply(
                kind=kind,
                epoch=Epoch(epoch),
                base_offset=Offset(base),
                committed_epoch=Epoch(1),
                committed_next=Offset(5),
                epoch_table=[(Epoch(1), Offset(0))],
            )
        return str(caught.value)

    assert broken(EntryType.EPOCH, 1, 5) == "epoch 1 does not rise above 1"
    assert broken(EntryType.EPOCH, 2, 6) == "epoch 2 starts at 6, but 5 is next"
    assert broken(EntryType.SKIP, 0, 6) == "a SKIP of epoch 0 is applied in epoch 1"
    assert broken(EntryType.SKIP, 1, 5) == "a SKIP to 5 gives up records before 5"
    assert broken(EntryType.DATA, 1, 6) == "an entry starts at 6, but 5 is next"


@pytest.mark.parametrize(
    ("kind", "epoch", "base", "fine"),
    [
        (EntryType.DATA, 1, 5, True),
        (EntryType.DATA, 1, 6, False),
        (EntryType.DATA, 1, 4, False),
        (EntryType.DATA, 2, 5, False),
        (EntryType.EPOCH, 2, 5, True),
        (EntryType.EPOCH, 2, 3, True),
        (EntryType.EPOCH, 2, 6, False),
        (EntryType.EPOCH, 1, 5, False),
        (EntryType.NOOP, 1, 99, True),
        (EntryType.SKIP, 1, 6, True),
        (EntryType.SKIP, 2, 6, True),
        (EntryType.SKIP, 1, 5, False),
        (EntryType.SKIP, 0, 6, False),
    ],
)
def test_fencing_and_contiguity_are_checked_again_at_apply(kind: EntryType, epoch: int, base: int, fine: bool) -> None:
    def recheck() -> None:
        recheck_at_apply(
            kind=kind,
            epoch=Epoch(epoch),
            base_offset=Offset(base),
            committed_epoch=Epoch(1),
            committed_next=Offset(5),
            epoch_table=[(Epoch(1), Offset(0))],
        )

    if fine:
        recheck()
    else:
        with pytest.raises(ApplyViolation):
            recheck()


@pytest.mark.parametrize(
    ("last", "session", "table", "expected"),
    [
        (5, 2, TABLE[:1], Verdict.WRONG_EPOCH),  # its newest epoch is behind ours
        (12, 2, TABLE, Verdict.ACCEPT),
        (11, 2, TABLE, Verdict.ALREADY_THERE),
        (9, 2, TABLE, Verdict.ALREADY_THERE),
        (8, 2, TABLE, Verdict.WRONG_EPOCH),  # an epoch that begins above what follows
        (12, 1, TABLE, Verdict.FENCED),
        (12, 3, TABLE, Verdict.EPOCH_AHEAD),
        (12, 2, (), Verdict.WRONG_EPOCH),
        (12, 2, ((Epoch(1), Offset(5)),), Verdict.WRONG_EPOCH),  # behind our epoch, whatever its start
        (12, 2, TABLE[::-1], Verdict.WRONG_EPOCH),
    ],
)
def test_the_skip_rule_clause_by_clause(
    last: int, session: int, table: tuple[tuple[Epoch, Offset], ...], expected: Verdict
) -> None:
    end = MirrorEnd(epoch=Epoch(2), next_offset=Offset(12), digest=bytes(16))
    assert judge_skip(end, session_epoch=Epoch(session), table=table, last=Offset(last)) is expected


# --- sender -------------------------------------------------------------------------------------------


def test_the_window_closes_and_opens_with_acknowledgements() -> None:
    core = SenderCore(next_offset=Offset(0), window_bytes_max=100)
    core.sent(following=Offset(1), size_bytes=100, append_us=7)
    assert core.wants(Offset(5)) == 0
    assert core.oldest_append_us == 7
    core.acknowledged(Offset(1))
    assert core.wants(Offset(5)) == 100


def test_a_batch_larger_than_the_window_still_travels_alone() -> None:
    core = SenderCore(next_offset=Offset(0), window_bytes_max=10)
    core.sent(following=Offset(1), size_bytes=500, append_us=0)
    assert core.wants(Offset(2)) == 0
    core.acknowledged(Offset(1))
    assert core.wants(Offset(2)) > 0


def test_nothing_beyond_the_following_epochs_start_is_wanted() -> None:
    core = SenderCore(next_offset=Offset(3), stop_at=Offset(5))
    assert core.takes(Offset(5))
    assert not core.takes(Offset(6))
    core.sent(following=Offset(5), size_bytes=1, append_us=0)
    assert core.wants(Offset(9)) == 0


def test_a_gap_rewinds_the_position_and_frees_the_window() -> None:
    core = SenderCore(next_offset=Offset(0))
    for following in (1, 2, 3):
        core.sent(following=Offset(following), size_bytes=10, append_us=0)
    core.rewind(Offset(1))
    assert (core.next_offset, core.in_flight_bytes) == (1, 10)


@pytest.mark.parametrize("offset", [0, 4])
def test_a_gap_outside_of_what_was_sent_is_the_peers_fault(offset: int) -> None:
    core = SenderCore(next_offset=Offset(1))
    core.sent(following=Offset(3), size_bytes=1, append_us=0)
    with pytest.raises(PeerProtocolError):
        core.rewind(Offset(offset))


def test_acknowledging_what_was_never_sent_is_the_peers_fault() -> None:
    with pytest.raises(PeerProtocolError):
        SenderCore(next_offset=Offset(1)).acknowledged(Offset(2))


@pytest.mark.parametrize(
    ("epoch", "following", "expected"),
    [
        (2, 15, None),
        (1, 5, None),
        (1, 30, None),  # an orphan branch: the epoch entry cuts it
        (0, 0, HelloRefusal.NO_POSITION),
        (3, 15, HelloRefusal.FENCED),
        (2, 2, None),  # whether that is still stored is the answer's question
        (2, 21, HelloRefusal.AHEAD),
    ],
)
def test_a_hello_without_a_position_is_refused(epoch: int, following: int, expected: HelloRefusal | None) -> None:
    refusal = refuse_hello(
        epoch=Epoch(epoch),
        next_offset=Offset(following),
        table=TABLE,
        high_watermark=Offset(20),
    )
    assert (refusal and refusal[0]) == expected


# --- forward lanes ------------------------------------------------------------------------------------


def flying(count: int) -> LaneCore:
    lane = LaneCore()
    for batch in range(count):
        lane.submit(batch)
    assert lane.take() == list(range(count))
    return lane


def test_a_moved_leader_sends_the_refused_batches_again_in_order() -> None:
    lane = flying(3)
    assert lane.refused(1, Refusal.LANE_RESET) == []
    assert lane.refused(0, Refusal.LEADER_MOVED) == []
    lane.submit(3)
    assert lane.take() == []  # an answer is still awaited
    lane.refused(2, Refusal.LANE_RESET)
    assert (lane.generation, lane.take()) == (2, [0, 1, 2, 3])


def test_a_failed_batch_fails_everything_behind_it_before_new_ones_are_sent() -> None:
    lane = flying(3)
    lane.submit(3)
    told = lane.refused(0, Refusal.FAILED)
    assert told == [Failed(0, Failure.OWN), Failed(3, Failure.BEHIND)]
    lane.submit(4)
    assert lane.take() == []
    assert lane.refused(1, Refusal.LANE_RESET) == [Failed(1, Failure.BEHIND)]
    assert lane.refused(2, Refusal.LANE_RESET) == [Failed(2, Failure.BEHIND)]
    assert (lane.take(), lane.generation) == ([4], 2)


def test_a_wrong_batch_does_not_disturb_the_others() -> None:
    lane = flying(2)
    assert lane.refused(0, Refusal.REJECTED) == [Failed(0, Failure.OWN)]
    lane.submit(2)
    assert (lane.take(), lane.state) == ([2], LaneState.FLOWING)


def test_an_ambiguous_failure_leaves_what_was_sent_unknown_and_sends_nothing_again() -> None:
    lane = flying(2)
    lane.refused(0, Refusal.LEADER_MOVED)
    lane.submit(2)
    assert lane.lost() == [Failed(0, Failure.BEHIND), Failed(1, Failure.UNKNOWN), Failed(2, Failure.BEHIND)]
    assert lane.is_idle


def test_a_lane_that_never_sent_says_so() -> None:
    lane = LaneCore()
    lane.submit(0)
    assert lane.lost() == [Failed(0, Failure.NOT_SENT)]


def test_a_late_failure_behind_a_moved_leader_fails_what_was_to_be_retried() -> None:
    lane = flying(2)
    lane.refused(1, Refusal.LEADER_MOVED)
    assert lane.refused(0, Refusal.FAILED) == [Failed(0, Failure.OWN), Failed(1, Failure.BEHIND)]
    assert lane.is_idle


def test_the_guard_refuses_the_rest_of_a_failed_generation_only() -> None:
    guard = LaneGuard()
    assert guard.admits(1, 1)
    guard.failed(1, 1)
    assert not guard.admits(1, 1)
    assert guard.admits(2, 1)
    assert guard.admits(1, 2)


def test_the_guard_forgets_once_nothing_of_the_generation_can_be_in_flight() -> None:
    guard = LaneGuard()
    guard.failed(1, 1)
    for _ in range(GUARD_REMEMBERS):
        guard.admits(2, 1)
    assert guard._failed
    guard.admits(2, 1)
    assert not guard._failed


# --- faults -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        Busy("full"),
        NotLeader("elsewhere", leader=7),
        NotHome("elsewhere", epoch=3, home=2),
        NotHome("?", epoch=-1, home=-1),
    ],
)
def test_an_error_arrives_as_the_same_class_with_its_text(error: GeorelayError) -> None:
    arrived = from_fault(to_fault(error))
    assert (type(arrived), str(arrived)) == (type(error), str(error))
    assert getattr(arrived, "leader", None) == getattr(error, "leader", None)


def test_an_unknown_code_never_claims_that_nothing_was_stored() -> None:
    assert isinstance(from_fault(Fault("OF_THE_FUTURE", "x")), OutcomeUnknown)


# --- stream header ------------------------------------------------------------------------------------


def test_the_stream_header_round_trips_in_eighty_bytes() -> None:
    one = header(4)
    assert len(one.encode()) == STREAM_HEADER_BYTES
    assert StreamHeader.decode(b"x" + one.encode() + b"x", 1) == one
    assert (one.next_offset, one.last_offset) == (6, 5)


def test_the_stream_header_begins_with_type_region_count_and_epoch() -> None:
    assert header(4).encode()[:20].hex() == "0100000300000002000000010000000000000004"


@pytest.mark.parametrize(
    ("position", "value"), [(0, 0), (0, 99), (7, 0)], ids=["type 0", "type 99", "a batch without records"]
)
def test_a_stream_header_that_makes_no_sense_is_refused(position: int, value: int) -> None:
    raw = bytearray(header(0).encode())
    raw[position] = value
    with pytest.raises(ValueError, match=r"type|count|EntryType"):
        StreamHeader.decode(raw)


def test_a_short_stream_header_is_refused() -> None:
    with pytest.raises(ValueError, match="79 are left"):
        StreamHeader.decode(header(0).encode()[:79])


def test_the_digest_chain_covers_place_epoch_and_bytes_from_21_on() -> None:
    def digest(batch: bytes = PAYLOAD, *, epoch: int = 1, first: int = 0, last: int = 1) -> bytes:
        return next_digest(bytes(16), epoch=Epoch(epoch), first=Offset(first), last=Offset(last), batch=batch)

    changed = [digest(epoch=2), digest(first=1), digest(last=2), digest(PAYLOAD[:21] + b"?" + PAYLOAD[22:])]
    assert digest() not in changed
    assert digest(b"?" * 21 + PAYLOAD[21:]) == digest()
    assert first_digest(KEY) != first_digest(dataclasses.replace(KEY, partition=1))


def test_a_refusal_of_a_batch_that_is_not_in_flight_changes_nothing() -> None:
    lane = LaneCore()
    lane.submit(1)
    assert lane.refused(1, Refusal.FAILED) == [] and lane.take() == [1]
    lane.stored(1)
    assert lane.refused(1, Refusal.FAILED) == [] and lane.state is LaneState.FLOWING


def test_a_failure_of_an_older_generation_does_not_let_the_newer_one_in_again() -> None:
    guard = LaneGuard()
    guard.failed(7, 3)
    guard.failed(7, 2)
    guard.failed(7, 3)
    assert [guard.admits(7, generation) for generation in (2, 3, 4)] == [False, False, True]
