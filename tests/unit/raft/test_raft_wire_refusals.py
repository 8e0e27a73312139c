"""Frames that a broken or hostile peer may send: each is refused for the reason that applies."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from georelay.ids import BrokerId, Epoch, GroupId, Offset, RaftIndex, Term
from georelay.limits import PEER_FRAME_BYTES_MAX
from mesh.replication.stream_header import EntryType
from region.log.entry import FIRST_CHAIN, Entry, EntryDraft, control_header, seal_entry
from region.raft.core import Append, Heartbeat, Membership, Message, Snapshot, TimeoutNow, VoteRequest
from region.raft.wire import (
    NUMBER_MAX,
    SNAPSHOT_DATA_BYTES_MAX,
    PeerWireError,
    decode_message,
    encode_message,
    message_bytes,
)

A, B, TERM = BrokerId(1001), BrokerId(1002), Term(7)
HEAD_BYTES = 21


def noop(index: int, term: int) -> Entry:
    header = control_header(EntryType.NOOP, next_offset=Offset(5), epoch=Epoch(1), append_us=9, digest=bytes(16))
    draft = EntryDraft(header=header, payload=b"")
    return seal_entry(draft, term=Term(term), index=RaftIndex(index), previous_chain=FIRST_CHAIN)


def append(*entries: Entry, prev: tuple[int, int] = (3, 6), quiet: bool = False) -> Append[Entry]:
    return Append(
        from_=A,
        to=B,
        term=TERM,
        prev_index=prev[0],
        prev_term=Term(prev[1]),
        commit=0,
        entries=list(entries),
        quiet=quiet,
    )


def snapshot(index: int = 5, term: int = 6, membership: Membership | None = None) -> Snapshot:
    return Snapshot(
        from_=A,
        to=B,
        term=TERM,
        index=index,
        snapshot_term=Term(term),
        membership=membership or Membership(voters=(A, B)),
        data=b"state",
    )


def body(message: Message[Entry]) -> bytes:
    return b"".join(encode_message(GroupId(1), message))[4:]


def patched(message: Message[Entry], position: int, layout: str, value: int) -> bytes:
    """Return the body with one field after the head replaced."""
    raw = bytearray(body(message))
    struct.pack_into(layout, raw, HEAD_BYTES + position, value)
    return bytes(raw)


def refused(raw: bytes, text: str) -> None:
    with pytest.raises(PeerWireError, match=text):
        decode_message(raw)


@pytest.mark.parametrize(
    ("from_", "to", "term", "text"),
    [
        (0, 2, 1, "from broker 0"),
        (1, 0, 1, "to broker 0"),
        (2, 2, 1, "from broker 2 to broker 2"),
        (1, 2, 0, "of term 0"),
        (1, 2, NUMBER_MAX + 1, "of term"),
    ],
)
def test_an_envelope_names_two_brokers_and_a_term(from_: int, to: int, term: int, text: str) -> None:
    refused(struct.pack(">BIIIQ", 7, 1, from_, to, term), text)


def test_the_largest_numbers_are_taken_and_the_next_are_refused() -> None:
    beat = Heartbeat(from_=A, to=B, term=Term(NUMBER_MAX), commit=NUMBER_MAX)
    assert decode_message(body(beat)) == (GroupId(1), beat)
    refused(patched(beat, 0, ">Q", NUMBER_MAX + 1), "commit 9223372036854775808 is over")
    request = VoteRequest(from_=A, to=B, term=TERM, last_index=1, last_term=Term(1))
    refused(patched(request, 0, ">Q", NUMBER_MAX + 1), "last_index")
    refused(patched(request, 8, ">Q", NUMBER_MAX + 1), "last_term")


def test_a_flag_of_a_later_version_is_refused() -> None:
    request = VoteRequest(from_=A, to=B, term=TERM, last_index=1, last_term=Term(1), pre=True, force=True)
    assert decode_message(body(request)) == (GroupId(1), request)
    refused(patched(request, 16, ">B", 4), "flags 0x04 are not all known")


def test_frames_have_the_length_of_their_kind() -> None:
    whole = body(TimeoutNow(from_=A, to=B, term=TERM))
    refused(whole[:-1], "outside 21..")
    refused(whole + b"\0", "takes 21 bytes, not 22")
    refused(whole + bytes(PEER_FRAME_BYTES_MAX), "outside 21..")
    refused(bytes([11]) + whole[1:], "unknown kind 11")
    refused(body(append())[:-1], "an Append takes at least 49 bytes, not 48")
    refused(body(snapshot())[: HEAD_BYTES + 23], "a Snapshot takes at least 45 bytes, not 44")


def test_an_append_holds_exactly_the_entries_it_counts() -> None:
    two = append(noop(4, 6), noop(5, 7))
    assert body(decode_message(body(two))[1]) == body(two)
    assert message_bytes(two) == len(body(two)) + 4
    refused(patched(two, 24, ">I", 3), "3 entries cannot be in 256 bytes")
    refused(patched(two, 24, ">I", 1), "128 bytes follow the last entry")
    refused(patched(two, 24, ">I", 1 << 31 | 2), "of 2 entries must be answered")
    refused(body(two)[:-1] + b"\xff", "checksum")


def test_an_append_without_entries_may_go_unanswered() -> None:
    quiet = append(quiet=True)
    assert decode_message(body(quiet)) == (GroupId(1), quiet)


@pytest.mark.parametrize("prev", [(3, 8), (0, 1), (3, 0)], ids=["later term", "term of nothing", "no term"])
def test_an_append_follows_an_entry_that_can_be(prev: tuple[int, int]) -> None:
    refused(body(append(prev=prev)), f"after entry {prev[0]} of term {prev[1]}")


def test_an_append_may_follow_nothing_or_an_entry_of_its_own_term() -> None:
    for prev in ((0, 0), (3, 7)):
        assert decode_message(body(append(prev=prev))) == (GroupId(1), append(prev=prev))


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([noop(5, 6)], "entry 5 of term 6 where 4 of 6..7"),
        ([noop(4, 5)], "entry 4 of term 5 where 4 of 6..7"),
        ([noop(4, 8)], "entry 4 of term 8 where 4 of 6..7"),
        ([noop(4, 7), noop(5, 6)], "entry 5 of term 6 where 5 of 7..7"),
        ([noop(4, 7), noop(4, 7)], "entry 4 of term 7 where 5 of 7..7"),
    ],
)
def test_entries_of_an_append_follow_each_other(entries: list[Entry], text: str) -> None:
    refused(body(append(*entries)), text)


def test_an_entry_of_no_term_is_refused_even_after_nothing() -> None:
    refused(body(append(noop(1, 0), prev=(0, 0))), "entry 1 of term 0")


def test_a_snapshot_names_an_entry_that_can_be_and_voters() -> None:
    assert decode_message(body(snapshot())) == (GroupId(1), snapshot())
    of_this_term = snapshot(index=1, term=7)
    assert decode_message(body(of_this_term)) == (GroupId(1), of_this_term)
    for wrong in (snapshot(index=0), snapshot(term=0), snapshot(term=8)):
        refused(body(wrong), f"after entry {wrong.index} of term {wrong.snapshot_term}")
    refused(patched(snapshot(), 0, ">Q", NUMBER_MAX + 1), "index")
    refused(body(snapshot(membership=Membership(voters=()))), "without voters")


def test_the_lengths_in_a_snapshot_add_up_to_its_frame() -> None:
    refused(patched(snapshot(), 20, ">I", 6), "16 and 6 bytes are not the 21")
    refused(body(snapshot()) + b"\0", "16 and 5 bytes are not the 22")
    wrong_split = bytearray(body(snapshot()))
    struct.pack_into(">II", wrong_split, HEAD_BYTES + 16, 15, 6)
    refused(bytes(wrong_split), "a membership of 2 ids takes 16 bytes, not 15")


def test_more_state_than_a_frame_takes_is_not_encoded() -> None:
    largest = replace(snapshot(), data=bytes(SNAPSHOT_DATA_BYTES_MAX))
    assert message_bytes(largest) <= PEER_FRAME_BYTES_MAX
    with pytest.raises(ValueError, match="is over"):
        encode_message(GroupId(1), replace(largest, data=bytes(SNAPSHOT_DATA_BYTES_MAX + 1)))
