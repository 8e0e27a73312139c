"""Messages of memberlist as values: one type byte, then one struct (dialect.py). Decoders raise CodecError only.

    type  struct                                                                             carried by
      0   Ping          SeqNo u32, Node, SourceAddr?, SourcePort?, SourceNode?               UDP, TCP
      1   IndirectPing  SeqNo, Target ip, Port u16, Node, Nack, SourceAddr?, SourcePort?, SourceNode?   UDP
      2   Ack           SeqNo, Payload or nil                                                UDP, TCP
      3   Suspect       Incarnation u32, Node, From                                          UDP
      4   Alive         Incarnation, Node, Addr ip, Port u16, Meta, Vsn (six bytes)          UDP
      5   Dead          Incarnation, Node, From                                              UDP
      6   PushPull      header, rows, bytes of the layer above                               TCP
      7   compound      compound.py                                                          UDP
      8   user          UDP: the rest; TCP: {UserMsgLen}, then so many bytes                 UDP, TCP
      9   Compress      Algo (0 = LZW), Buf                                                  UDP, TCP
     10   encrypted     packet.py, stream_reader.py                                          TCP
     11   Nack          SeqNo                                                                UDP
     12   checksum      packet.py                                                            UDP
     13   ErrorReply    Error                                                                TCP

Keys are written in alphabetical order, as Go writes them. Fields with ? are left out when empty.
A row of a push/pull state that cannot be read is left out and counted: one bad row must not cost the others.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mesh.gossip.coordinate_core import DIMENSIONS, Coordinate
from mesh.gossip.dialect import FieldMap, pack, read_map, read_maps
from mesh.gossip.faults import CodecError
from mesh.gossip.member import META_BYTES_MAX, Address, MemberState, Versions, address_raw, address_text, is_name

PAYLOAD_BYTES_MAX: Final = 1024  # of an ack; a coordinate has 130
ERROR_BYTES_MAX: Final = 1024
ROWS_MAX: Final = 16_384
STREAM_BYTES_MAX: Final = 20 * 1024 * 1024
COORDINATE_VERSION: Final = 1


class MessageType(enum.IntEnum):
    """First byte of a message."""

    PING = 0
    INDIRECT_PING = 1
    ACK = 2
    SUSPECT = 3
    ALIVE = 4
    DEAD = 5
    PUSH_PULL = 6
    COMPOUND = 7
    USER = 8
    COMPRESS = 9
    ENCRYPTED = 10
    NACK = 11
    CHECKSUM = 12
    ERROR = 13
    LABEL = 244


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Asks the member `name` for an ack, at `source` if given, else at where the packet came from."""

    seq_no: int
    name: str
    source: Address | None = None
    source_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndirectPing:
    """Asks the receiver to ping `name` at `target`, and for a nack if that does not answer."""

    seq_no: int
    target: Address
    name: str
    wants_nack: bool
    source: Address | None = None
    source_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Answers a ping; the payload belongs to the layer above (a coordinate)."""

    seq_no: int
    payload: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nack:
    """Tells that the target of an indirect ping did not answer, so the path to the helper is well."""

    seq_no: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """`accuser` got no answer from `name`."""

    incarnation: int
    name: str
    accuser: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """`name` lives, with this address and these tags."""

    incarnation: int
    name: str
    address: Address
    meta: bytes
    versions: Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """`name` is dead; has left, where it says so itself."""

    incarnation: int
    name: str
    accuser: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compress:
    """Another message, compressed."""

    buffer: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply:
    """Why a TCP request was refused."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    """One member in a push/pull state."""

    name: str
    address: Address
    meta: bytes
    incarnation: int
    state: MemberState
    versions: Versions


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPull:
    """Everything one member knows; `bad_rows` counts rows that could not be read."""

    is_join: bool
    rows: tuple[MemberRow, ...]
    user_state: bytes
    bad_rows: int = 0


Message = Ping | IndirectPing | Ack | Nack | Suspect | Alive | Dead | Compress | ErrorReply


def encode(message: Message) -> bytes:
    """Return type byte and struct."""
    kind, fields = _ENCODERS[type(message)](message)
    return bytes((kind,)) + pack(fields)


def decode(raw: bytes) -> Message:
    """Read one message that is a single struct.

    Raises:
        CodecError: an unknown type, a missing or wrong field, a value beyond a limit, bytes behind the struct.
    """
    if not raw:
        raise CodecError("an empty message")
    decoder = _DECODERS.get(raw[0])
    if decoder is None:
        raise CodecError(f"message type {raw[0]} is unknown here")
    return decoder(read_map(memoryview(raw)[1:]))


def user_message(body: bytes) -> bytes:
    """Return a message of the layer above for UDP."""
    return b"\x08" + body


def stream_user_message(body: bytes) -> bytes:
    """Return a message of the layer above for TCP."""
    return b"\x08" + pack({"UserMsgLen": len(body)}) + body


def read_stream_user(blob: bytes) -> bytes:
    """Return the body of a user message that came over TCP."""
    (header,), at = read_maps(blob, 1, offset=1)
    body = blob[at:]
    if header.uint("UserMsgLen") != len(body):
        raise CodecError("a user message of another length than it says")
    return body


def error_reply(text: str) -> bytes:
    """Return the refusal of a TCP request."""
    return encode(ErrorReply(text=text[:ERROR_BYTES_MAX]))


def read_error(blob: bytes) -> str:
    """Return the text of a refusal."""
    return read_map(memoryview(blob)[1:]).text("Error", limit=ERROR_BYTES_MAX)


def encode_push_pull(state: PushPull) -> bytes:
    """Return header, rows and the bytes of the layer above, plain."""
    header = {"Join": state.is_join, "Nodes": len(state.rows), "UserStateLen": len(state.user_state)}
    return b"".join((b"\x06", pack(header), *(_pack_row(row) for row in state.rows), state.user_state))


def decode_push_pull(blob: bytes) -> PushPull:
    """Read a whole push/pull state.

    Raises:
        CodecError: not one, or beyond STREAM_BYTES_MAX or ROWS_MAX.
    """
    if len(blob) > STREAM_BYTES_MAX or blob[:1] != b"\x06":
        raise CodecError("no push/pull state")
    (header,), at = read_maps(blob, 1, offset=1)
    wanted, user_bytes, is_join = push_pull_lengths(header)
    rows, at = read_maps(blob, wanted, offset=at)
    if len(blob) - at != user_bytes:
        raise CodecError(f"{len(blob) - at} bytes of user state instead of {user_bytes}")
    read = [row for row in map(_row_or_none, rows) if row is not None]
    return PushPull(is_join=is_join, rows=tuple(read), user_state=blob[at:], bad_rows=wanted - len(read))


def push_pull_lengths(header: FieldMap) -> tuple[int, int, bool]:
    """Return rows, bytes of user state and the join flag of a push/pull header."""
    rows, user_bytes = header.uint("Nodes"), header.uint("UserStateLen", default=0)
    if rows > ROWS_MAX or user_bytes > STREAM_BYTES_MAX:
        raise CodecError(f"a push/pull state of {rows} rows and {user_bytes} bytes is too large")
    return rows, user_bytes, header.flag("Join", default=False)


def encode_coordinate(coordinate: Coordinate) -> bytes:
    """Return the payload of an ack: version byte and struct."""
    fields = {
        "Adjustment": coordinate.adjustment,
        "Error": coordinate.error,
        "Height": coordinate.height,
        "Vec": list(coordinate.vec),
    }
    return bytes((COORDINATE_VERSION,)) + pack(fields)


def decode_coordinate(raw: bytes) -> Coordinate:
    """Read the payload of an ack.

    Raises:
        CodecError: another version, another dimension, a number that is not finite.
    """
    if raw[:1] != bytes((COORDINATE_VERSION,)) or len(raw) > PAYLOAD_BYTES_MAX:
        raise CodecError("no coordinate of version 1")
    fields = read_map(memoryview(raw)[1:], array_max=DIMENSIONS)
    return Coordinate(
        vec=fields.reals("Vec", count=DIMENSIONS),
        error=fields.real("Error"),
        adjustment=fields.real("Adjustment"),
        height=fields.real("Height"),
    )


def _name(fields: FieldMap, field: str) -> str:
    name = fields.text(field)
    if not is_name(name):
        raise CodecError(f"field {field} is no name of a member")
    return name


def _port(fields: FieldMap, field: str) -> int:
    port = fields.uint(field, bits=16)
    if port == 0:
        raise CodecError(f"field {field} is port 0")
    return port


def _address(fields: FieldMap, host_field: str, port_field: str) -> Address:
    return address_text(fields.raw(host_field, limit=16)), _port(fields, port_field)


def _source(fields: FieldMap) -> Address | None:
    if not fields.raw("SourceAddr", limit=16, default=b""):
        return None
    return _address(fields, "SourceAddr", "SourcePort")


def _source_fields(source: Address | None, source_name: str) -> dict[str, object]:
    fields: dict[str, object] = {}
    if source is not None:
        fields["SourceAddr"] = address_raw(source[0])
    if source_name:
        fields["SourceNode"] = source_name
    if source is not None:
        fields["SourcePort"] = source[1]
    return fields


def _encode_ping(m: Ping) -> tuple[MessageType, Mapping[str, object]]:
    return MessageType.PING, {"Node": m.name, "SeqNo": m.seq_no, **_source_fields(m.source, m.source_name)}


def _decode_ping(f: FieldMap) -> Ping:
    # An old member may leave the name empty: it pings whoever listens there.
    name = f.text("Node", default="")
    return Ping(seq_no=f.uint("SeqNo"), name=name, source=_source(f), source_name=f.text("SourceNode", default=""))


def _encode_indirect(m: IndirectPing) -> tuple[MessageType, Mapping[str, object]]:
    fields = {
        "Nack": m.wants_nack,
        "Node": m.name,
        "Port": m.target[1],
        "SeqNo": m.seq_no,
        **_source_fields(m.source, m.source_name),
        "Target": address_raw(m.target[0]),
    }
    return MessageType.INDIRECT_PING, fields


def _decode_indirect(f: FieldMap) -> IndirectPing:
    return IndirectPing(
        seq_no=f.uint("SeqNo"),
        target=_address(f, "Target", "Port"),
        name=_name(f, "Node"),
        wants_nack=f.flag("Nack", default=False),
        source=_source(f),
        source_name=f.text("SourceNode", default=""),
    )


def _encode_ack(m: Ack) -> tuple[MessageType, Mapping[str, object]]:
    return MessageType.ACK, {"Payload": m.payload or None, "SeqNo": m.seq_no}


def _decode_ack(f: FieldMap) -> Ack:
    return Ack(seq_no=f.uint("SeqNo"), payload=f.raw("Payload", limit=PAYLOAD_BYTES_MAX, default=b""))


def _encode_accusation(m: Suspect | Dead) -> tuple[MessageType, Mapping[str, object]]:
    kind = MessageType.SUSPECT if isinstance(m, Suspect) else MessageType.DEAD
    return kind, {"From": m.accuser, "Incarnation": m.incarnation, "Node": m.name}


def _decode_suspect(f: FieldMap) -> Suspect:
    return Suspect(incarnation=f.uint("Incarnation"), name=_name(f, "Node"), accuser=_name(f, "From"))


def _decode_dead(f: FieldMap) -> Dead:
    return Dead(incarnation=f.uint("Incarnation"), name=_name(f, "Node"), accuser=_name(f, "From"))


def _encode_alive(m: Alive) -> tuple[MessageType, Mapping[str, object]]:
    fields = {
        "Addr": address_raw(m.address[0]),
        "Incarnation": m.incarnation,
        "Meta": m.meta,
        "Node": m.name,
        "Port": m.address[1],
        "Vsn": m.versions.raw(),
    }
    return MessageType.ALIVE, fields


def _decode_alive(f: FieldMap) -> Alive:
    return Alive(
        incarnation=f.uint("Incarnation"),
        name=_name(f, "Node"),
        address=_address(f, "Addr", "Port"),
        meta=f.raw("Meta", limit=META_BYTES_MAX, default=b""),
        versions=Versions.parse(f.raw("Vsn", limit=6)),
    )


def _pack_row(row: MemberRow) -> bytes:
    return pack(
        {
            "Addr": address_raw(row.address[0]),
            "Incarnation": row.incarnation,
            "Meta": row.meta,
            "Name": row.name,
            "Port": row.address[1],
            "State": int(row.state),
            "Vsn": row.versions.raw(),
        }
    )


def _row_or_none(f: FieldMap) -> MemberRow | None:
    try:
        return MemberRow(
            name=_name(f, "Name"),
            address=_address(f, "Addr", "Port"),
            meta=f.raw("Meta", limit=META_BYTES_MAX, default=b""),
            incarnation=f.uint("Incarnation"),
            state=_state(f.uint("State", default=0)),
            versions=Versions.parse(f.raw("Vsn", limit=6)),
        )
    except CodecError:
        return None  # counted by the caller: wanted rows minus read ones


def _state(number: int) -> MemberState:
    if number > MemberState.LEFT:
        raise CodecError(f"state {number} is unknown")
    return MemberState(number)


def _encode_compress(m: Compress) -> tuple[MessageType, Mapping[str, object]]:
    return MessageType.COMPRESS, {"Algo": 0, "Buf": m.buffer}


def _decode_compress(f: FieldMap) -> Compress:
    if f.integer("Algo", default=0) != 0:
        raise CodecError("compressed by something else than LZW")
    return Compress(buffer=f.raw("Buf", limit=STREAM_BYTES_MAX))


_ENCODERS: Final[Mapping[type, Callable[..., tuple[MessageType, Mapping[str, object]]]]] = {
    Ping: _encode_ping,
    IndirectPing: _encode_indirect,
    Ack: _encode_ack,
    Nack: lambda m: (MessageType.NACK, {"SeqNo": m.seq_no}),
    Suspect: _encode_accusation,
    Alive: _encode_alive,
    Dead: _encode_accusation,
    Compress: _encode_compress,
    ErrorReply: lambda m: (MessageType.ERROR, {"Error": m.text}),
}
_DECODERS: Final[Mapping[int, Callable[[FieldMap], Message]]] = {
    MessageType.PING: _decode_ping,
    MessageType.INDIRECT_PING: _decode_indirect,
    MessageType.ACK: _decode_ack,
    MessageType.SUSPECT: _decode_suspect,
    MessageType.ALIVE: _decode_alive,
    MessageType.DEAD: _decode_dead,
    MessageType.COMPRESS: _decode_compress,
    MessageType.NACK: lambda f: Nack(seq_no=f.uint("SeqNo")),
    MessageType.ERROR: lambda f: ErrorReply(text=f.text("Error", limit=ERROR_BYTES_MAX)),
}
