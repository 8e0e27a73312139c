"""What memberlist asks of the layer above it. All calls are synchronous, from within a call of Memberlist."""

from __future__ import annotations

from typing import Protocol

from mesh.gossip.member import Member


class Delegate(Protocol):
    """The layer above (Serf). A GossipFault raised by it is counted and the bytes are dropped."""

    def ack_payload(self) -> bytes:
        """Return what goes with every ack: our coordinate, at most 1024 bytes."""
        ...

    def ping_completed(self, member: Member, rtt_s: float, payload: bytes) -> None:
        """Hear of a direct answer within the probe timeout, with what its ack carried."""
        ...

    def user_packet(self, body: bytes) -> None:
        """Take a message of the layer above, over UDP or TCP."""
        ...

    def has_broadcasts(self) -> bool:
        """Return whether there are rumours of the layer above."""
        ...

    def user_broadcasts(self, *, overhead_bytes: int, limit_bytes: int) -> list[bytes]:
        """Return rumours of the layer above that fit: each costs `overhead_bytes` beside its bytes."""
        ...

    def local_state(self, *, join: bool) -> bytes:
        """Return what goes with a push/pull state."""
        ...

    def merge_remote_state(self, raw: bytes, *, join: bool) -> None:
        """Take what came with a push/pull state; rows of members are merged already."""
        ...


class SilentDelegate:
    """A layer above that wants nothing."""

    def ack_payload(self) -> bytes:
        """Return nothing."""
        return b""

    def ping_completed(self, member: Member, rtt_s: float, payload: bytes) -> None:
        """Ignore it."""

    def user_packet(self, body: bytes) -> None:
        """Ignore it."""

    def has_broadcasts(self) -> bool:
        """Return that there are none."""
        return False

    def user_broadcasts(self, *, overhead_bytes: int, limit_bytes: int) -> list[bytes]:
        """Return nothing."""
        return []

    def local_state(self, *, join: bool) -> bytes:
        """Return nothing."""
        return b""

    def merge_remote_state(self, raw: bytes, *, join: bool) -> None:
        """Ignore it."""
