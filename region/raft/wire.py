"""Frames of Raft messages between the brokers of a region.

Layout of version 1 (big-endian; it never changes):

    u32 length of what follows | u8 kind | u32 group | u32 from | u32 to | u64 term | fields of the kind

    kind  message             fields
      1   VOTE_REQUEST        last_index u64 | last_term u64 | flags u8 (1 pre, 2 force)
      2   VOTE_RESPONSE       flags u8 (1 pre, 2 granted)
      3   APPEND              prev_index u64 | prev_term u64 | commit u64 | count u32 | count entries
      4   APPEND_RESPONSE     index u64 | hint_index u64 | hint_term u64 | flags u8 (1 rejected, 2 repairing)
      5   HEARTBEAT           commit u64
      6   HEARTBEAT_RESPONSE  -
      7   TIMEOUT_NOW         -
      8   SNAPSHOT            index u64 | snapshot_term u64 | membership_bytes u32 | data_bytes u32 | membership | data
      9   READ_INDEX_CHECK    context u64
     10   READ_INDEX_ANSWER   context u64
    The top bit of an Append's count means that no answer is wanted; the count itself is 0 then. The membership is
    that of region.raft.membership, the data of a snapshot is the host's.
      11 is kept free; 64 and above belong to the peer transport.

Rule 1: an entry travels as the bytes that lie on disk; encoding copies none of them.
Rule 2: whatever is decoded is bounded and checked: the frame, every count, the checksums of every entry, and that
the entries follow each other. Only the chain over the whole log is left to the host, which knows its end.
Rule 3: PeerWireError is the only error of `decode_message`; the connection that sent it is closed.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from georelay.ids import BrokerId, GroupId, Term
from georelay.limits import PEER_FRAME_BYTES_MAX
from region.log.entry import ENTRY_HEADER_BYTES, Entry, EntryError, decode_entry
from region.raft.core.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    ReadIndexAnswer,
    ReadIndexCheck,
    Snapshot,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from region.raft.membership import MEMBERSHIP_BYTES_MAX, decode_membership, encode_membership

LENGTH_BYTES: Final = 4
NUMBER_MAX: Final = 2**63 - 1  # of a term or an index: leaves room to count on
_HEAD: Final = struct.Struct(">BIIIQ")
_ANY: Final = struct.Struct(">IBIIIQ")  # the length and the head
_VOTE_REQUEST: Final = struct.Struct(">IBIIIQQQB")
_FLAGS: Final = struct.Struct(">IBIIIQB")
_QUIET: Final = 0x8000_0000  # flag in the count of an Append without entries: no answer wanted
_APPEND: Final = struct.Struct(">IBIIIQQQQI")
_APPEND_RESPONSE: Final = struct.Struct(">IBIIIQQQQB")
_HEARTBEAT: Final = struct.Struct(">IBIIIQQ")
_CONTEXT: Final = _HEARTBEAT  # of both read-index kinds
_SNAPSHOT: Final = struct.Struct(">IBIIIQQQII")
_VOTE_REQUEST_FIELDS: Final = struct.Struct(">QQB")
_APPEND_FIELDS: Final = struct.Struct(">QQQI")
_APPEND_RESPONSE_FIELDS: Final = struct.Struct(">QQQB")
_U64: Final = struct.Struct(">Q")
_SNAPSHOT_FIELDS: Final = struct.Struct(">QQII")
SNAPSHOT_DATA_BYTES_MAX: Final = PEER_FRAME_BYTES_MAX - _SNAPSHOT.size - MEMBERSHIP_BYTES_MAX

Body: TypeAlias = bytes | bytearray | memoryview
Envelope: TypeAlias = tuple[BrokerId, BrokerId, Term]  # from, to, term


class PeerWireError(ValueError):
    """Bytes that are not a message of this version."""


class Kind(enum.IntEnum):
    """Numbers on the wire: never renumbered, never reused."""

    VOTE_REQUEST = 1
    VOTE_RESPONSE = 2
    APPEND = 3
    APPEND_RESPONSE = 4
    HEARTBEAT = 5
    HEARTBEAT_RESPONSE = 6
    TIMEOUT_NOW = 7
    SNAPSHOT = 8
    READ_INDEX_CHECK = 9
    READ_INDEX_ANSWER = 10


# Encoding


def message_bytes(message: Message[Entry]) -> int:
    """Return the bytes of the frame, its length prefix included."""
    if isinstance(message, Append):
        return _APPEND.size + sum([len(entry.frame) for entry in message.entries])
    if isinstance(message, Snapshot):
        return sum(map(len, _encode_snapshot(GroupId(0), message)))
    return len(_encode_head(GroupId(0), message))


def encode_message(group: GroupId, message: Message[Entry]) -> Sequence[bytes | bytearray]:
    """Return the frame as buffers to be written one after the other: a head, then each entry as it is stored.

    Raises:
        ValueError: a snapshot whose data are over SNAPSHOT_DATA_BYTES_MAX.
    """
    if isinstance(message, Snapshot):
        return _encode_snapshot(group, message)
    if not isinstance(message, Append):
        return [_encode_head(group, message)]
    frames = [entry.frame for entry in message.entries]
    head = _APPEND.pack(
        _APPEND.size - LENGTH_BYTES + sum(map(len, frames)),
        Kind.APPEND,
        group,
        message.from_,
        message.to,
        message.term,
        message.prev_index,
        message.prev_term,
        message.commit,
        len(frames) | _QUIET if message.quiet else len(frames),
    )
    return [head, *frames]


def _encode_snapshot(group: GroupId, message: Snapshot) -> list[bytes]:
    if len(message.data) > SNAPSHOT_DATA_BYTES_MAX:
        raise ValueError(f"a snapshot of {len(message.data)} bytes is over {SNAPSHOT_DATA_BYTES_MAX}")
    membership = encode_membership(message.membership)
    head = _SNAPSHOT.pack(
        _SNAPSHOT.size - LENGTH_BYTES + len(membership) + len(message.data),
        Kind.SNAPSHOT,
        group,
        message.from_,
        message.to,
        message.term,
        message.index,
        message.snapshot_term,
        len(membership),
        len(message.data),
    )
    return [head, membership, message.data]


def _encode_head(group: GroupId, message: Message[Entry]) -> bytes:
    """Encode every kind but APPEND and SNAPSHOT, as one buffer."""
    who = (group, message.from_, message.to, message.term)
    if isinstance(message, AppendResponse):
        state = message.rejected | message.repairing << 1
        fields = (message.index, message.hint_index, message.hint_term, state)
        return _APPEND_RESPONSE.pack(_APPEND_RESPONSE.size - LENGTH_BYTES, Kind.APPEND_RESPONSE, *who, *fields)
    if isinstance(message, Heartbeat):
        return _HEARTBEAT.pack(_HEARTBEAT.size - LENGTH_BYTES, Kind.HEARTBEAT, *who, message.commit)
    if isinstance(message, HeartbeatResponse):
        return _ANY.pack(_ANY.size - LENGTH_BYTES, Kind.HEARTBEAT_RESPONSE, *who)
    if isinstance(message, VoteRequest):
        flags = message.pre | message.force << 1
        last = (message.last_index, message.last_term)
        return _VOTE_REQUEST.pack(_VOTE_REQUEST.size - LENGTH_BYTES, Kind.VOTE_REQUEST, *who, *last, flags)
    if isinstance(message, VoteResponse):
        flags = message.pre | message.granted << 1
        return _FLAGS.pack(_FLAGS.size - LENGTH_BYTES, Kind.VOTE_RESPONSE, *who, flags)
    if isinstance(message, ReadIndexCheck | ReadIndexAnswer):
        kind = Kind.READ_INDEX_CHECK if isinstance(message, ReadIndexCheck) else Kind.READ_INDEX_ANSWER
        return _CONTEXT.pack(_CONTEXT.size - LENGTH_BYTES, kind, *who, message.context)
    return _ANY.pack(_ANY.size - LENGTH_BYTES, Kind.TIMEOUT_NOW, *who)


# Decoding


def decode_message(body: Body) -> tuple[GroupId, Message[Entry]]:
    """Decode what follows the length prefix of one frame.

    Raises:
        PeerWireError: not exactly one well-formed message; the text says what is wrong.
    """
    if not _HEAD.size <= len(body) <= PEER_FRAME_BYTES_MAX:
        raise PeerWireError(f"a Raft frame of {len(body)} bytes is outside {_HEAD.size}..{PEER_FRAME_BYTES_MAX}")
    kind, group, from_, to, term = _HEAD.unpack_from(body)
    if not from_ or not to or from_ == to:
        raise PeerWireError(f"a Raft message from broker {from_} to broker {to}")
    if not 0 < term <= NUMBER_MAX:
        raise PeerWireError(f"a Raft message of term {term}")
    decode = _DECODERS.get(kind)
    if decode is None:
        raise PeerWireError(f"unknown kind {kind} of Raft message")
    return GroupId(group), decode(body, (from_, to, term))


def _fields(layout: struct.Struct, body: Body) -> tuple[int, ...]:
    """Unpack the fields of a kind, which must fill the body."""
    if len(body) != _HEAD.size + layout.size:
        raise PeerWireError(f"kind {body[0]} takes {_HEAD.size + layout.size} bytes, not {len(body)}")
    return layout.unpack_from(body, _HEAD.size)


def _checked(name: str, number: int) -> int:
    if number > NUMBER_MAX:
        raise PeerWireError(f"{name} {number} is over {NUMBER_MAX}")
    return number


def _flags(value: int, used: int) -> int:
    if value & ~used:
        raise PeerWireError(f"flags {value:#04x} are not all known")
    return value


def _vote_request(body: Body, who: Envelope) -> VoteRequest:
    last_index, last_term, raw_flags = _fields(_VOTE_REQUEST_FIELDS, body)
    flags = _flags(raw_flags, 3)
    return VoteRequest(
        from_=who[0],
        to=who[1],
        term=who[2],
        last_index=_checked("last_index", last_index),
        last_term=Term(_checked("last_term", last_term)),
        pre=bool(flags & 1),
        force=bool(flags & 2),
    )


def _vote_response(body: Body, who: Envelope) -> VoteResponse:
    flags = _flags(_fields(_ONE_FLAG, body)[0], 3)
    return VoteResponse(from_=who[0], to=who[1], term=who[2], granted=bool(flags & 2), pre=bool(flags & 1))


def _append(body: Body, who: Envelope) -> Append[Entry]:
    position = _HEAD.size + _APPEND_FIELDS.size
    if len(body) < position:
        raise PeerWireError(f"an Append takes at least {position} bytes, not {len(body)}")
    prev_index, prev_term, commit, count = _APPEND_FIELDS.unpack_from(body, _HEAD.size)
    quiet = bool(count & _QUIET)
    count &= ~_QUIET
    if count and quiet:
        raise PeerWireError(f"an Append of {count} entries must be answered")
    if count * ENTRY_HEADER_BYTES > len(body) - position:
        raise PeerWireError(f"{count} entries cannot be in {len(body) - position} bytes")
    _checked("prev_index", prev_index)
    if prev_term > who[2] or (prev_term == 0) != (prev_index == 0):
        raise PeerWireError(f"an Append of term {who[2]} after entry {prev_index} of term {prev_term}")
    return Append(
        from_=who[0],
        to=who[1],
        term=who[2],
        prev_index=prev_index,
        prev_term=Term(prev_term),
        commit=_checked("commit", commit),
        entries=_entries(body, position, count, prev_index, prev_term, who[2]),
        quiet=quiet,
    )


def _entries(body: Body, position: int, count: int, index: int, term: int, term_max: int) -> list[Entry]:
    """Decode `count` entries that follow (index, term) and fill the body."""
    entries: list[Entry] = []
    for _ in range(count):
        try:
            entry = decode_entry(body, position)
        except EntryError as error:
            raise PeerWireError(str(error)) from error
        index += 1
        if entry.index != index or not term <= entry.term <= term_max or entry.term == 0:
            raise PeerWireError(f"entry {entry.index} of term {entry.term} where {index} of {term}..{term_max} belongs")
        term = entry.term
        position += entry.size
        entries.append(entry)
    if position != len(body):
        raise PeerWireError(f"{len(body) - position} bytes follow the last entry of an Append")
    return entries


def _append_response(body: Body, who: Envelope) -> AppendResponse:
    index, hint_index, hint_term, raw_flags = _fields(_APPEND_RESPONSE_FIELDS, body)
    flags = _flags(raw_flags, 3)
    return AppendResponse(
        from_=who[0],
        to=who[1],
        term=who[2],
        index=_checked("index", index),
        rejected=bool(flags & 1),
        repairing=bool(flags & 2),
        hint_index=_checked("hint_index", hint_index),
        hint_term=Term(_checked("hint_term", hint_term)),
    )


def _heartbeat(body: Body, who: Envelope) -> Heartbeat:
    (commit,) = _fields(_U64, body)
    return Heartbeat(from_=who[0], to=who[1], term=who[2], commit=_checked("commit", commit))


def _heartbeat_response(body: Body, who: Envelope) -> HeartbeatResponse:
    _fields(_NOTHING, body)
    return HeartbeatResponse(from_=who[0], to=who[1], term=who[2])


def _timeout_now(body: Body, who: Envelope) -> TimeoutNow:
    _fields(_NOTHING, body)
    return TimeoutNow(from_=who[0], to=who[1], term=who[2])


def _snapshot(body: Body, who: Envelope) -> Snapshot:
    start = _HEAD.size + _SNAPSHOT_FIELDS.size
    if len(body) < start:
        raise PeerWireError(f"a Snapshot takes at least {start} bytes, not {len(body)}")
    index, snapshot_term, membership_bytes, data_bytes = _SNAPSHOT_FIELDS.unpack_from(body, _HEAD.size)
    if membership_bytes + data_bytes != len(body) - start:
        raise PeerWireError(f"{membership_bytes} and {data_bytes} bytes are not the {len(body) - start} of a Snapshot")
    if not _checked("index", index) > 0 or not 0 < snapshot_term <= who[2]:
        raise PeerWireError(f"a Snapshot of term {who[2]} after entry {index} of term {snapshot_term}")
    try:
        membership = decode_membership(memoryview(body)[start : start + membership_bytes])
    except ValueError as error:
        raise PeerWireError(str(error)) from error
    if not membership.voters:
        raise PeerWireError("a Snapshot of a group without voters")
    return Snapshot(
        from_=who[0],
        to=who[1],
        term=who[2],
        index=index,
        snapshot_term=Term(snapshot_term),
        membership=membership,
        data=bytes(memoryview(body)[start + membership_bytes :]),
    )


def _context(body: Body) -> int:
    return _checked("context", _fields(_U64, body)[0])


def _read_index_check(body: Body, who: Envelope) -> ReadIndexCheck:
    return ReadIndexCheck(from_=who[0], to=who[1], term=who[2], context=_context(body))


def _read_index_answer(body: Body, who: Envelope) -> ReadIndexAnswer:
    return ReadIndexAnswer(from_=who[0], to=who[1], term=who[2], context=_context(body))


_ONE_FLAG: Final = struct.Struct(">B")
_NOTHING: Final = struct.Struct(">")
_DECODERS: Final[Mapping[int, Callable[[Body, Envelope], Message[Entry]]]] = {
    Kind.VOTE_REQUEST: _vote_request,
    Kind.VOTE_RESPONSE: _vote_response,
    Kind.APPEND: _append,
    Kind.APPEND_RESPONSE: _append_response,
    Kind.HEARTBEAT: _heartbeat,
    Kind.HEARTBEAT_RESPONSE: _heartbeat_response,
    Kind.TIMEOUT_NOW: _timeout_now,
    Kind.SNAPSHOT: _snapshot,
    Kind.READ_INDEX_CHECK: _read_index_check,
    Kind.READ_INDEX_ANSWER: _read_index_answer,
}
