"""Messages of the Serf layer: a type byte, then a msgpack map (serf-wire 2.7). They travel as user messages.

Rule 1: everything read is bounded; what is wrong is a CodecError, nothing else.
Rule 2: unknown fields are passed over (newer writers), unknown types are told apart by `decode` (CodecError).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from mesh.gossip.dialect import FieldMap, pack, read_map, read_maps
from mesh.gossip.faults import CodecError
from mesh.gossip.lamport_core import LTIME_MAX
from mesh.gossip.member import Address, address_raw, address_text

NAME_CHARS_MAX: Final = 128
PAYLOAD_BYTES_MAX: Final = 9 * 1024  # Serf's own ceiling of a user event
STATE_MEMBERS_MAX: Final = 65_536
STATE_SLOTS_MAX: Final = 4_096
EVENTS_PER_SLOT_MAX: Final = 256
FILTERS_MAX: Final = 64
FILTER_BYTES_MAX: Final = 1_024
KEYS_MAX: Final = 256
KEY_TEXT_CHARS_MAX: Final = 64
TEXT_CHARS_MAX: Final = 1_024


class SerfType(enum.IntEnum):
    """First byte of a message."""

    LEAVE = 0
    JOIN = 1
    USER_STATE = 2
    USER_EVENT = 3
    QUERY = 4
    QUERY_RESPONSE = 5
    CONFLICT_RESPONSE = 6
    KEY_REQUEST = 7
    KEY_RESPONSE = 8
    RELAY = 9


class QueryFlag(enum.IntFlag):
    """Flags of a query."""

    ACK = 1
    NO_REBROADCAST = 2


RESPONSE_IS_ACK: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveIntent:
    """A member leaves, or is said to have left; `prune`: forget it at once."""

    ltime: int
    name: str
    prune: bool = False

    def encode(self) -> bytes:
        """Return the bytes."""
        return _message(SerfType.LEAVE, {"LTime": self.ltime, "Node": self.name, "Prune": self.prune})


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinIntent:
    """A member has joined."""

    ltime: int
    name: str

    def encode(self) -> bytes:
        """Return the bytes."""
        return _message(SerfType.JOIN, {"LTime": self.ltime, "Node": self.name})


@dataclass(frozen=True, slots=True, kw_only=True)
class UserEvent:
    """Something an application tells everybody; `coalesce`: only the newest of a name matters."""

    ltime: int
    name: str
    payload: bytes
    coalesce: bool = False

    def encode(self) -> bytes:
        """Return the bytes."""
        return _message(
            SerfType.USER_EVENT,
            {"LTime": self.ltime, "Name": self.name, "Payload": self.payload, "CC": self.coalesce},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UserState:
    """What two members exchange beside the member list. `statuses`: logical time of every member's status."""

    ltime: int
    statuses: Mapping[str, int]
    left: Sequence[str]
    event_ltime: int
    events: Sequence[tuple[int, Sequence[tuple[str, bytes]]]]
    query_ltime: int

    def encode(self) -> bytes:
        """Return the bytes."""
        events = [
            {"LTime": ltime, "Events": [{"Name": name, "Payload": payload} for name, payload in rows]}
            for ltime, rows in self.events
        ]
        return _message(
            SerfType.USER_STATE,
            {
                "LTime": self.ltime,
                "StatusLTimes": dict(self.statuses),
                "LeftMembers": list(self.left),
                "EventLTime": self.event_ltime,
                "Events": events,
                "QueryLTime": self.query_ltime,
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A question to members; answers go straight to `address`. `timeout_ns` is how long the asker listens."""

    ltime: int
    query_id: int
    address: Address
    source: str
    filters: Sequence[bytes]
    flags: int
    relay_factor: int
    timeout_ns: int
    name: str
    payload: bytes

    def encode(self) -> bytes:
        """Return the bytes."""
        return _message(
            SerfType.QUERY,
            {
                "LTime": self.ltime,
                "ID": self.query_id,
                "Addr": address_raw(self.address[0]),
                "Port": self.address[1],
                "SourceNode": self.source,
                "Filters": list(self.filters),
                "Flags": self.flags,
                "RelayFactor": self.relay_factor,
                "Timeout": self.timeout_ns,
                "Name": self.name,
                "Payload": self.payload,
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResponse:
    """An acknowledgement of a query, or an answer to it."""

    ltime: int
    query_id: int
    sender: str
    is_ack: bool
    payload: bytes = field(repr=False, default=b"")

    def encode(self) -> bytes:
        """Return the bytes."""
        return _message(
            SerfType.QUERY_RESPONSE,
            {
                "LTime": self.ltime,
                "ID": self.query_id,
                "From": self.sender,
                "Flags": RESPONSE_IS_ACK if self.is_ack else 0,
                "Payload": self.payload,
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """A message to pass on to `address`; `body` is what is passed on."""

    address: Address
    name: str
    body: bytes

    def encode(self) -> bytes:
        """Return the bytes."""
        destination = {"IP": address_raw(self.address[0]), "Port": self.address[1], "Zone": ""}
        return _message(SerfType.RELAY, {"DestAddr": destination, "DestName": self.name}) + self.body


SerfMessage: TypeAlias = LeaveIntent | JoinIntent | UserEvent | UserState | Query | QueryResponse | Relay


def decode(body: bytes) -> SerfMessage:
    """Return the message in `body`, one that travels by itself (the others are payloads of query answers).

    Raises:
        CodecError: not one, or over a bound.
    """
    if not body:
        raise CodecError("an empty message")
    reader = _READERS.get(body[0])
    if reader is None:
        raise CodecError(f"message type {body[0]} is not known")
    return reader(body)


def _message(kind: SerfType, fields: Mapping[str, object]) -> bytes:
    return bytes((kind,)) + pack(fields)


def ltime_of(fields: FieldMap, name: str = "LTime") -> int:
    """Return a logical time (CodecError: over LTIME_MAX)."""
    value = fields.uint(name, bits=64, default=0)
    if value > LTIME_MAX:
        raise CodecError(f"{name} {value} is over {LTIME_MAX}")
    return value


def _read_leave(body: bytes) -> LeaveIntent:
    fields = read_map(body[1:])
    return LeaveIntent(
        ltime=ltime_of(fields),
        name=fields.text("Node", limit=NAME_CHARS_MAX),
        prune=fields.flag("Prune", default=False),
    )


def _read_join(body: bytes) -> JoinIntent:
    fields = read_map(body[1:])
    return JoinIntent(ltime=ltime_of(fields), name=fields.text("Node", limit=NAME_CHARS_MAX))


def _read_event(body: bytes) -> UserEvent:
    fields = read_map(body[1:])
    return UserEvent(
        ltime=ltime_of(fields),
        name=fields.text("Name", limit=PAYLOAD_BYTES_MAX),
        payload=fields.raw("Payload", limit=PAYLOAD_BYTES_MAX, default=b""),
        coalesce=fields.flag("CC", default=False),
    )


def _read_state(body: bytes) -> UserState:
    fields = read_map(body[1:], array_max=STATE_MEMBERS_MAX, map_max=STATE_MEMBERS_MAX)
    return UserState(
        ltime=ltime_of(fields),
        statuses=fields.text_uints("StatusLTimes", limit=STATE_MEMBERS_MAX),
        left=fields.texts("LeftMembers", limit=STATE_MEMBERS_MAX, each_limit=NAME_CHARS_MAX),
        event_ltime=ltime_of(fields, "EventLTime"),
        events=[
            (
                ltime_of(slot),
                [
                    (
                        row.text("Name", limit=PAYLOAD_BYTES_MAX),
                        row.raw("Payload", limit=PAYLOAD_BYTES_MAX, default=b""),
                    )
                    for row in slot.maps("Events", limit=EVENTS_PER_SLOT_MAX)
                    if row is not None
                ],
            )
            for slot in fields.maps("Events", limit=STATE_SLOTS_MAX)
            if slot is not None
        ],
        query_ltime=ltime_of(fields, "QueryLTime"),
    )


def _read_query(body: bytes) -> Query:
    fields = read_map(body[1:], array_max=FILTERS_MAX)
    return Query(
        ltime=ltime_of(fields),
        query_id=fields.uint("ID"),
        address=(address_text(fields.raw("Addr", limit=16)), fields.uint("Port", bits=16)),
        source=fields.text("SourceNode", limit=NAME_CHARS_MAX, default=""),
        filters=fields.raws("Filters", limit=FILTERS_MAX, each_limit=FILTER_BYTES_MAX),
        flags=fields.uint("Flags", default=0),
        relay_factor=fields.uint("RelayFactor", bits=8, default=0),
        timeout_ns=max(0, fields.integer("Timeout", default=0)),
        name=fields.text("Name", limit=NAME_CHARS_MAX),
        payload=fields.raw("Payload", limit=PAYLOAD_BYTES_MAX, default=b""),
    )


def _read_response(body: bytes) -> QueryResponse:
    fields = read_map(body[1:])
    return QueryResponse(
        ltime=ltime_of(fields),
        query_id=fields.uint("ID"),
        sender=fields.text("From", limit=NAME_CHARS_MAX),
        is_ack=bool(fields.uint("Flags", default=0) & RESPONSE_IS_ACK),
        payload=fields.raw("Payload", limit=PAYLOAD_BYTES_MAX, default=b""),
    )


def _read_relay(body: bytes) -> Relay:
    (fields,), behind = read_maps(body, 1, offset=1)
    destination = fields.inner("DestAddr")
    return Relay(
        address=(address_text(destination.raw("IP", limit=16)), destination.uint("Port", bits=16)),
        name=fields.text("DestName", limit=NAME_CHARS_MAX, default=""),
        body=body[behind:],
    )


_READERS: Final[dict[int, Callable[[bytes], SerfMessage]]] = {
    SerfType.LEAVE: _read_leave,
    SerfType.JOIN: _read_join,
    SerfType.USER_STATE: _read_state,
    SerfType.USER_EVENT: _read_event,
    SerfType.QUERY: _read_query,
    SerfType.QUERY_RESPONSE: _read_response,
    SerfType.RELAY: _read_relay,
}
