"""What memberlist wants done by its shell, in order, and what it tells the layer above."""

from __future__ import annotations

from dataclasses import dataclass

from mesh.gossip.member import Address, Member


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPacket:
    """Seal `messages` and send them by UDP."""

    address: Address
    messages: bytes
    with_crc: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPull:
    """Dial, send `stream_state(join)`, read the reply, hand it to `merge_stream_state`. `name` is "" if unknown."""

    address: Address
    name: str
    join: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPing:
    """Dial, send `blob`, hand the reply to `stream_ping_answered`; after `deadline` nobody listens any more."""

    address: Address
    name: str
    seq_no: int
    blob: bytes
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoined:
    """A member is there, new or again."""

    member: Member


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeft:
    """A member is gone: its state says whether it died (DEAD) or left (LEFT)."""

    member: Member


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberUpdated:
    """A member's tags changed."""

    member: Member


@dataclass(frozen=True, slots=True, kw_only=True)
class NameConflict:
    """Somebody at `address` uses the name of `member`, who is known at another one."""

    member: Member
    address: Address
    meta: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastSent:
    """The newest rumour about ourselves was told often enough, or there is nobody to tell."""

    name: str


Effect = SendPacket | PushPull | StreamPing | MemberJoined | MemberLeft | MemberUpdated | NameConflict | BroadcastSent
