"""The codec: any message comes back as it was, and no bytes give anything but a message or PeerWireError."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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
from region.raft.membership import decode_membership, encode_membership
from region.raft.wire import PeerWireError, decode_message, encode_message, message_bytes

NUMBER = st.integers(0, 2**63 - 1)
TERM = st.integers(1, 2**63 - 1).map(Term)
WHO = st.tuples(st.integers(1, 2**31), st.integers(2**31 + 1, 2**32 - 1)).map(lambda pair: tuple(map(BrokerId, pair)))


IDS = st.lists(st.integers(1, 2**32 - 1).map(BrokerId), max_size=6, unique=True)


@st.composite
def memberships(draw: st.DrawFn, *, voters_min: int = 0) -> Membership:
    ids = draw(st.lists(st.integers(1, 2**32 - 1).map(BrokerId), min_size=voters_min, max_size=12, unique=True))
    split = draw(st.integers(voters_min, len(ids)))
    outgoing = draw(IDS) if split else []
    return Membership(voters=tuple(ids[:split]), learners=tuple(ids[split:]), outgoing=tuple(outgoing))


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    from_, to = draw(WHO)
    snapshot_term = draw(TERM)
    return Snapshot(
        from_=from_,
        to=to,
        term=Term(draw(st.integers(snapshot_term, 2**63 - 1))),
        index=draw(st.integers(1, 2**63 - 1)),
        snapshot_term=snapshot_term,
        membership=draw(memberships(voters_min=1)),
        data=draw(st.binary(max_size=300)),
    )


@st.composite
def appends(draw: st.DrawFn) -> Append[Entry]:
    from_, to = draw(WHO)
    prev_index = draw(st.integers(0, 2**40))
    terms = sorted(draw(st.lists(st.integers(1, 2**40), max_size=5)))
    prev_term = draw(st.integers(1, terms[0] if terms else 2**40)) if prev_index else 0
    entries = []
    for position, term in enumerate(terms, 1):
        payload = draw(st.binary(max_size=200))
        header = control_header(
            EntryType.NOOP, next_offset=Offset(1), epoch=Epoch(1), append_us=0, digest=bytes(16), payload=payload
        )
        draft = EntryDraft(header=header, payload=payload)
        index = RaftIndex(prev_index + position)
        entries.append(seal_entry(draft, term=Term(term), index=index, previous_chain=draw(st.integers(0, 2**32 - 1))))
    term = draw(st.integers(max(prev_term, 1, *terms), 2**63 - 1))
    return Append(
        from_=from_,
        to=to,
        term=Term(term),
        prev_index=prev_index,
        prev_term=Term(prev_term),
        commit=draw(NUMBER),
        entries=entries,
    )


@st.composite
def messages(draw: st.DrawFn) -> Message[Entry]:
    from_, to = draw(WHO)
    term = draw(TERM)
    flag = st.booleans()
    made: Message[Entry] = draw(
        st.one_of(
            appends(),
            snapshots(),
            st.builds(ReadIndexCheck, from_=st.just(from_), to=st.just(to), term=st.just(term), context=NUMBER),
            st.builds(ReadIndexAnswer, from_=st.just(from_), to=st.just(to), term=st.just(term), context=NUMBER),
            st.builds(
                VoteRequest,
                from_=st.just(from_),
                to=st.just(to),
                term=st.just(term),
                last_index=NUMBER,
                last_term=NUMBER.map(Term),
                pre=flag,
                force=flag,
            ),
            st.builds(VoteResponse, from_=st.just(from_), to=st.just(to), term=st.just(term), granted=flag, pre=flag),
            st.builds(
                AppendResponse,
                from_=st.just(from_),
                to=st.just(to),
                term=st.just(term),
                index=NUMBER,
                rejected=flag,
                hint_index=NUMBER,
                hint_term=NUMBER.map(Term),
                repairing=flag,
            ),
            st.builds(Heartbeat, from_=st.just(from_), to=st.just(to), term=st.just(term), commit=NUMBER),
            st.builds(HeartbeatResponse, from_=st.just(from_), to=st.just(to), term=st.just(term)),
            st.builds(TimeoutNow, from_=st.just(from_), to=st.just(to), term=st.just(term)),
        )
    )
    return made


@given(group=st.integers(0, 2**32 - 1).map(GroupId), message=messages())
def test_a_message_comes_back_as_it_was(group: GroupId, message: Message[Entry]) -> None:
    frame = b"".join(encode_message(group, message))
    assert len(frame) == message_bytes(message) == 4 + int.from_bytes(frame[:4], "big")
    found_group, found = decode_message(memoryview(frame)[4:])
    assert found_group == group and type(found) is type(message)
    assert b"".join(encode_message(found_group, found)) == frame


@given(message=messages(), position=st.integers(0), flip=st.integers(1, 255))
def test_a_flipped_byte_gives_a_message_or_the_protocol_error(
    message: Message[Entry], position: int, flip: int
) -> None:
    body = bytearray(b"".join(encode_message(GroupId(1), message))[4:])
    body[position % len(body)] ^= flip
    try:
        decode_message(bytes(body))
    except PeerWireError:
        return


@given(body=st.binary(max_size=300))
def test_garbage_gives_a_message_or_the_protocol_error(body: bytes) -> None:
    try:
        decode_message(body)
    except PeerWireError:
        return


@given(membership=memberships())
def test_a_membership_comes_back_as_it_was(membership: Membership) -> None:
    assert decode_membership(encode_membership(membership)) == membership


@given(membership=memberships(), position=st.integers(0), flip=st.integers(1, 255), cut=st.integers(0, 3))
def test_damaged_memberships_give_another_one_or_the_one_error(
    membership: Membership, position: int, flip: int, cut: int
) -> None:
    raw = bytearray(encode_membership(membership))
    raw[position % len(raw)] ^= flip
    try:
        decode_membership(raw[: len(raw) - cut])
    except ValueError:
        return


@given(raw=st.binary(max_size=100))
def test_garbage_gives_a_membership_or_the_one_error(raw: bytes) -> None:
    try:
        decode_membership(b"\x01\0" + raw)
    except ValueError:
        return


@given(raw=st.binary(max_size=200), kind=st.sampled_from([8, 9, 10]))
def test_garbage_of_a_rare_kind_gives_a_message_or_the_protocol_error(raw: bytes, kind: int) -> None:
    try:
        decode_message(bytes([kind]) + bytes(7) + b"\x01" + bytes(3) + b"\x02" + bytes(7) + b"\x09" + raw)
    except PeerWireError:
        return
