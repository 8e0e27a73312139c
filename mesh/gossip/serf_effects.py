"""What the Serf layer wants done or told, beside the effects of the member list below it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from mesh.gossip.effects import PushPull, SendPacket, StreamPing
from mesh.gossip.member import Address
from mesh.gossip.serf_messages import Query
from mesh.gossip.view import MemberChange, MemberView


@dataclass(frozen=True, slots=True)
class MemberChanged:
    """Tell the application."""

    change: MemberChange
    member: MemberView


@dataclass(frozen=True, slots=True)
class EventHeard:
    """A user event, ours included; told once."""

    name: str
    payload: bytes
    ltime: int
    coalesce: bool


@dataclass(frozen=True, slots=True)
class QueryHeard:
    """A question for the application; `Serf.respond(query, payload, now)` answers it once, before `deadline`."""

    query: Query
    deadline: float


@dataclass(frozen=True, slots=True)
class QueryAnswered:
    """An answer, or an acknowledgement, to our question."""

    query_id: int
    sender: str
    is_ack: bool
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class QueryOver:
    """Our question is closed."""

    query_id: int


@dataclass(frozen=True, slots=True)
class KeysChanged:
    """The keyring is another one: write it down."""


@dataclass(frozen=True, slots=True)
class NameLost:
    """Most members know another one by our name: this member must end."""

    address: Address


SerfEffect: TypeAlias = (
    SendPacket
    | PushPull
    | StreamPing
    | MemberChanged
    | EventHeard
    | QueryHeard
    | QueryAnswered
    | QueryOver
    | KeysChanged
    | NameLost
)
