"""The bytes of every kind of message, for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from georelay.ids import BrokerId, Epoch, GroupId, Offset, RaftIndex, Term
from mesh.replication.stream_header import EntryType
from region.log.entry import Entry, EntryDraft, control_header, seal_entry
from region.raft.core import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Membership,
    Message,
    ReadIndexAnswer,
    ReadIndexCheck,
    Snapshot,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from region.raft.membership import MEMBERS_MAX, decode_membership, encode_membership
from region.raft.wire import SNAPSHOT_DATA_BYTES_MAX, Kind, PeerWireError, decode_message, encode_message, message_bytes
from tests.tiers import in_one_test

GROUP = GroupId(0x01020304)
FROM, TO, TERM = BrokerId(1001), BrokerId(1002), Term(7)


def noop(index: int, term: int) -> Entry:
    header = control_header(EntryType.NOOP, next_offset=Offset(5), epoch=Epoch(1), append_us=9, digest=bytes(16))
    draft = EntryDraft(header=header, payload=b"")
    return seal_entry(draft, term=Term(term), index=RaftIndex(index), previous_chain=0)


MEMBERSHIPS = {
    "membership_three": Membership(voters=(FROM, TO, BrokerId(1003))),
    "membership_joint": Membership(
        voters=(FROM, BrokerId(1004)), learners=(BrokerId(1005), TO), outgoing=(FROM, TO, BrokerId(1003))
    ),
    "membership_unknown": Membership(voters=()),
}

MESSAGES: dict[str, Message[Entry]] = {
    "vote_request": VoteRequest(from_=FROM, to=TO, term=TERM, last_index=300, last_term=Term(6)),
    "vote_request_pre": VoteRequest(from_=FROM, to=TO, term=TERM, last_index=300, last_term=Term(6), pre=True),
    "vote_request_force": VoteRequest(from_=FROM, to=TO, term=TERM, last_index=300, last_term=Term(6), force=True),
    "vote_response": VoteResponse(from_=FROM, to=TO, term=TERM, granted=True),
    "vote_response_pre_refused": VoteResponse(from_=FROM, to=TO, term=TERM, granted=False, pre=True),
    "append_empty": Append(from_=FROM, to=TO, term=TERM, prev_index=300, prev_term=Term(6), commit=299),
    "append_quiet": Append(from_=FROM, to=TO, term=TERM, prev_index=300, prev_term=Term(6), commit=299, quiet=True),
    "append_two": Append(
        from_=FROM,
        to=TO,
        term=TERM,
        prev_index=300,
        prev_term=Term(6),
        commit=299,
        entries=[noop(301, 6), noop(302, 7)],
    ),
    "append_response": AppendResponse(from_=FROM, to=TO, term=TERM, index=300),
    "append_response_rejected": AppendResponse(
        from_=FROM, to=TO, term=TERM, index=300, rejected=True, hint_index=200, hint_term=Term(5)
    ),
    "append_response_repairing": AppendResponse(from_=FROM, to=TO, term=TERM, index=300, repairing=True),
    "append_response_lost": AppendResponse(
        from_=FROM, to=TO, term=TERM, index=300, rejected=True, hint_index=200, hint_term=Term(5), repairing=True
    ),
    "snapshot": Snapshot(
        from_=FROM,
        to=TO,
        term=TERM,
        index=300,
        snapshot_term=Term(6),
        membership=MEMBERSHIPS["membership_joint"],
        data=b"the state after entry 300",
    ),
    "snapshot_empty": Snapshot(
        from_=FROM,
        to=TO,
        term=TERM,
        index=1,
        snapshot_term=TERM,
        membership=MEMBERSHIPS["membership_three"],
        data=b"",
    ),
    "read_index_check": ReadIndexCheck(from_=FROM, to=TO, term=TERM, context=5),
    "read_index_answer": ReadIndexAnswer(from_=FROM, to=TO, term=TERM, context=5),
    "heartbeat": Heartbeat(from_=FROM, to=TO, term=TERM, commit=299),
    "heartbeat_response": HeartbeatResponse(from_=FROM, to=TO, term=TERM),
    "timeout_now": TimeoutNow(from_=FROM, to=TO, term=TERM),
}


def shown(message: Message[Entry]) -> object:
    """A form that can be compared: entries as their bytes."""
    if not isinstance(message, Append):
        return message
    bare: Append[Entry] = Append(
        from_=message.from_,
        to=message.to,
        term=message.term,
        prev_index=message.prev_index,
        prev_term=message.prev_term,
        commit=message.commit,
    )
    bare.entries = ()
    return bare, [entry.frame for entry in message.entries]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_is_these_bytes(name: str, request: pytest.FixtureRequest) -> None:
    frame = b"".join(encode_message(GROUP, MESSAGES[name]))
    path = Path(__file__).parent / f"{name}.hex"
    if request.config.getoption("--rewrite"):
        path.write_text("\n".join(frame[i : i + 32].hex(" ") for i in range(0, len(frame), 32)) + "\n")
    golden = bytes.fromhex(path.read_text())
    assert frame == golden
    assert int.from_bytes(golden[:4], "big") == len(golden) - 4 and message_bytes(MESSAGES[name]) == len(golden)
    group, message = decode_message(golden[4:])
    assert group == GROUP and type(message) is type(MESSAGES[name]) and shown(message) == shown(MESSAGES[name])


def test_every_kind_has_golden_bytes() -> None:
    assert {encode_message(GROUP, message)[0][4] for message in MESSAGES.values()} == set(Kind)


@in_one_test("name", MESSAGES)
def test_a_frame_cut_anywhere_or_followed_by_a_byte_is_refused(name: str) -> None:
    body = b"".join(encode_message(GROUP, MESSAGES[name]))[4:]
    for end in range(len(body)):
        with pytest.raises(PeerWireError):
            decode_message(body[:end])
    with pytest.raises(PeerWireError):
        decode_message(body + b"\0")


def test_entry_bytes_are_not_copied_by_encoding() -> None:
    append = MESSAGES["append_two"]
    assert isinstance(append, Append)
    buffers = encode_message(GROUP, append)
    assert [buffer is entry.frame for buffer, entry in zip(buffers[1:], append.entries, strict=True)] == [True, True]


@in_one_test(
    ("name", "position", "value", "reason"),
    [
        ("heartbeat", 0, b"\x0b", "unknown kind 11"),
        ("heartbeat", 0, b"\x08", "at least 45 bytes, not 29"),
        ("read_index_check", 21, b"\xff" * 8, "context"),
        ("snapshot", 21, bytes(8), "after entry 0"),
        ("snapshot", 21, b"\xff" * 8, "index"),
        ("snapshot", 29, bytes(8), "of term 0"),
        ("snapshot", 29, bytes(7) + b"\x08", "of term 8"),
        ("snapshot", 37, b"\xff" * 4, "bytes are not the"),
        ("snapshot", 41, b"\xff" * 4, "bytes are not the"),
        ("snapshot", 45, b"\x02", "version 2.0"),
        ("snapshot", 46, b"\x01", "version 1.1"),
        ("snapshot", 47, b"\xff\xff", "over 1000"),
        ("snapshot", 47, b"\0\x03", "takes"),
        ("snapshot", 53, bytes(4), "broker 0"),
        ("snapshot_empty", 47, b"\0\0\0\x03", "without voters"),
        ("heartbeat", 5, bytes(4), "from broker 0"),
        ("heartbeat", 9, b"\0\0\x03\xe9", "from broker 1001 to broker 1001"),
        ("heartbeat", 13, bytes(8), "of term 0"),
        ("heartbeat", 13, b"\xff" * 8, "of term"),
        ("heartbeat", 21, b"\xff" * 8, "commit"),
        ("append_response", 21, b"\xff" * 8, "index"),
        ("append_response", 45, b"\x04", "flags"),
        ("vote_request", 37, b"\x04", "flags"),
        ("append_two", 45, b"\x7f\xff\xff\xff", "entries cannot be in"),
        ("append_two", 45, b"\x80\0\0\x02", "must be answered"),
        ("append_two", 45, b"\0\0\0\x01", "follow the last entry"),
        ("append_two", 21, bytes(7) + b"\x01", "belongs"),
        ("append_two", 29, bytes(7) + b"\x07", "belongs"),
        ("append_two", 29, bytes(8), "after entry 300 of term 0"),
        ("append_two", 29, bytes(7) + b"\x08", "of term 8"),
        ("append_two", 49 + 20, b"\0", "no entry|checksum"),
        ("append_two", 49, b"XX", "magic"),
    ],
)
def test_one_wrong_field_is_refused_by_name(name: str, position: int, value: bytes, reason: str) -> None:
    body = bytearray(b"".join(encode_message(GROUP, MESSAGES[name]))[4:])
    body[position : position + len(value)] = value
    if position == 49 + 20:
        body[49 + 20] ^= 0xFF
    with pytest.raises(PeerWireError, match=reason):
        decode_message(body)


@pytest.mark.parametrize("name", MEMBERSHIPS)
def test_a_membership_is_these_bytes(name: str, request: pytest.FixtureRequest) -> None:
    raw = encode_membership(MEMBERSHIPS[name])
    path = Path(__file__).parent / f"{name}.hex"
    if request.config.getoption("--rewrite"):
        path.write_text("\n".join(raw[i : i + 32].hex(" ") for i in range(0, len(raw), 32)) + "\n")
    golden = bytes.fromhex(path.read_text())
    assert raw == golden and decode_membership(memoryview(golden)) == MEMBERSHIPS[name]
    for wrong in (*(golden[:end] for end in range(len(golden))), golden + b"\0"):
        with pytest.raises(ValueError, match="membership"):
            decode_membership(wrong)


def test_a_membership_has_a_bound_on_its_members() -> None:
    most = tuple(map(BrokerId, range(1, MEMBERS_MAX + 1)))
    assert decode_membership(encode_membership(Membership(voters=most))).voters == most
    with pytest.raises(ValueError, match="over 1000"):
        encode_membership(Membership(voters=(*most, BrokerId(MEMBERS_MAX + 1))))


def test_a_snapshot_over_a_frame_is_refused_before_it_is_sent() -> None:
    snapshot = MESSAGES["snapshot_empty"]
    assert isinstance(snapshot, Snapshot)
    snapshot.data = bytes(SNAPSHOT_DATA_BYTES_MAX)
    body = b"".join(encode_message(GROUP, snapshot))[4:]
    assert isinstance(decode_message(body)[1], Snapshot)
    snapshot.data += b"\0"
    with pytest.raises(ValueError, match="is over"):
        encode_message(GROUP, snapshot)
    snapshot.data = b""
