"""Beats say differences; both ends hold the same set, and garbage is refused."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from georelay.ids import GroupId, RaftIndex, Term
from georelay.limits import GROUPS_PER_BROKER_MAX
from region.multiraft.heartbeat import (
    UNANSWERED_MAX,
    Beat,
    BeatReceiver,
    BeatSender,
    HeartbeatError,
    decode_ack,
    decode_beat,
    encode_ack,
    encode_beat,
)

Row = tuple[GroupId, Term, RaftIndex]


def row(group: int, term: int = 1, commit: int = 0) -> Row:
    return GroupId(group), Term(term), RaftIndex(commit)


rows = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=20)
groups = st.lists(st.integers(0, 2**32 - 1), max_size=20)


def test_the_bytes_of_a_beat_never_change() -> None:
    beat = Beat(1, [row(2, 3, 4)], [GroupId(5)])
    assert encode_beat(beat).hex() == ("000000010000000100000001000000020000000000000003000000000000000400000005")
    assert encode_ack(9, [GroupId(7)]).hex() == "000000090000000100000007"


@given(sequence=st.integers(0, 2**32 - 1), changed=rows, removed=groups)
def test_a_beat_comes_back_as_it_went(sequence: int, changed: list[Row], removed: list[GroupId]) -> None:
    beat = Beat(sequence, changed, removed)
    assert decode_beat(memoryview(encode_beat(beat))) == beat


@given(sequence=st.integers(0, 2**32 - 1), exceptions=groups)
def test_an_answer_comes_back_as_it_went(sequence: int, exceptions: list[GroupId]) -> None:
    assert decode_ack(memoryview(encode_ack(sequence, exceptions))) == (sequence, exceptions)


@given(raw=st.binary(max_size=200))
def test_any_bytes_are_a_beat_or_a_heartbeat_error(raw: bytes) -> None:
    for decode in (decode_beat, decode_ack):
        try:
            decode(raw)
        except HeartbeatError:
            continue


@pytest.mark.parametrize("cut", [1, 4, 20])
def test_a_beat_that_is_too_short_or_too_long_is_refused(cut: int) -> None:
    raw = encode_beat(Beat(1, [row(1)], [GroupId(2)]))
    for wrong in (raw[:-cut], raw + bytes(cut)):
        with pytest.raises(HeartbeatError):
            decode_beat(wrong)


def test_counts_over_the_limit_are_refused_before_anything_is_made() -> None:
    for counts in ((GROUPS_PER_BROKER_MAX + 1, 0), (0, GROUPS_PER_BROKER_MAX + 1)):
        with pytest.raises(HeartbeatError, match="limit"):
            decode_beat(struct.pack(">III", 1, *counts))
    with pytest.raises(HeartbeatError):
        decode_ack(struct.pack(">II", 1, GROUPS_PER_BROKER_MAX + 1))


def test_a_receiver_refuses_to_remember_more_groups_than_a_broker_can_have() -> None:
    receiver = BeatReceiver()
    receiver.follow(Beat(1, [row(group) for group in range(GROUPS_PER_BROKER_MAX)], []))
    with pytest.raises(HeartbeatError):
        receiver.follow(Beat(2, [row(GROUPS_PER_BROKER_MAX)], []))


states = st.lists(st.dictionaries(st.integers(0, 6), st.tuples(st.integers(1, 3), st.integers(0, 2))), max_size=12)


@given(states=states)
def test_the_receiver_always_holds_what_the_sender_told(
    states: list[dict[GroupId, tuple[Term, RaftIndex]]],
) -> None:
    sender, receiver = BeatSender(), BeatReceiver()
    for state in states:
        beat = sender.next_beat([(group, term, commit) for group, (term, commit) in state.items()])
        receiver.follow(decode_beat(encode_beat(beat)))
        assert receiver.told == sender.told == state


def test_a_beat_with_no_news_names_no_group() -> None:
    sender = BeatSender()
    sender.next_beat([row(1), row(2)])
    again = sender.next_beat([row(1), row(2)])
    assert (again.changed, again.removed) == ([], [])


def test_an_answer_speaks_of_the_groups_of_its_own_beat() -> None:
    sender = BeatSender(10)
    first = sender.next_beat([row(1)])
    sender.next_beat([row(1), row(2)])
    assert sender.answered(first.sequence).keys() == {1}


def test_an_answer_counts_once_and_later_than_a_newer_one_not_at_all() -> None:
    sender = BeatSender()
    beats = [sender.next_beat([row(1)]) for _ in range(3)]
    assert sender.answered(beats[1].sequence)
    assert not sender.answered(beats[1].sequence)
    assert not sender.answered(beats[0].sequence)
    assert sender.answered(beats[2].sequence)


def test_an_answer_to_another_connection_or_far_too_late_is_ignored() -> None:
    sender = BeatSender(2**32 - 1)
    oldest = sender.next_beat([row(1)])
    assert oldest.sequence == 0
    for _ in range(UNANSWERED_MAX):
        sender.next_beat([row(1)])
    assert not sender.answered(oldest.sequence)
    assert not sender.answered(123_456)


def test_looking_at_what_changed_tells_the_same_as_looking_at_everything() -> None:
    rng = random.Random(1)
    rows = {GroupId(group): (Term(1), RaftIndex(0)) for group in range(6)}
    whole, partial = BeatSender(), BeatSender()
    partial.next_beat([(group, *row) for group, row in rows.items()], list(rows))
    whole.next_beat([(group, *row) for group, row in rows.items()])
    for turn in range(200):
        touched = {GroupId(rng.randrange(8)) for _ in range(rng.randrange(4))}
        for group in touched:
            if rng.random() < 0.3:
                rows.pop(group, None)
            elif rng.random() < 0.8:  # else it was looked at for nothing
                rows[group] = (Term(1), RaftIndex(turn))
        seen = whole.next_beat([(group, *row) for group, row in rows.items()])
        told = partial.next_beat([(group, *rows[group]) for group in touched if group in rows], touched)
        assert (told.sequence, sorted(told.changed), sorted(told.removed)) == (
            seen.sequence,
            sorted(seen.changed),
            sorted(seen.removed),
        )
        assert partial.answered(told.sequence) == whole.answered(seen.sequence) == rows
