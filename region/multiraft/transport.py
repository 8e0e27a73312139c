"""What the host needs of the connections with the other brokers of its region.

Rule 1: sending never blocks and never raises; what cannot be sent is dropped, and Raft repairs it.
Rule 2: frames of one lane arrive in the order they were sent, or not at all.
Rule 3: a frame of CONTROL is never delayed by what APPEND and BULK carry.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from georelay.ids import BrokerId
from mesh.listening.addresses_core import Source
from mesh.replication.link_framed import ACCEPTED_KIND, LINK_KIND

Address: TypeAlias = tuple[str, int]
Part: TypeAlias = bytes | bytearray | memoryview


class FrameKind(enum.IntEnum):
    """Kinds of peer frames: never renumbered, never reused."""

    HELLO = 0
    RAFT = 1
    BEAT = 2
    BEAT_ACK = 3
    HINTS = 4
    BULK = 5
    CHALLENGE = 6
    PROOF = 7
    ACCEPTED = ACCEPTED_KIND
    LINK = LINK_KIND  # 10 is BEGIN of links between regions


class Lane(enum.IntEnum):
    """The connections of one broker pair."""

    CONTROL = 0
    APPEND = 1
    BULK = 2  # opened when it is first used
    LINK = 3  # both ways; one connection for each link that is dialled


class PeerReceiver(Protocol):
    """What the host does with frames."""

    def frame_received(self, peer: BrokerId, kind: FrameKind, body: memoryview, connection: object) -> None:
        """Handle one frame; `body` is valid during the call only. Raises ValueError (PeerProtocolError) on garbage."""

    def peer_connected(self, peer: BrokerId, lane: Lane) -> None:
        """The outgoing connection is up."""

    def peer_lost(self, peer: BrokerId, lane: Lane) -> None:
        """The outgoing connection is gone (reset, refused or closed)."""

    def connection_closed(self, connection: object) -> None:
        """An incoming connection is gone."""


class Transport(Protocol):
    """All connections of this broker inside its region."""

    @property
    def peers(self) -> Mapping[BrokerId, Address]:
        """Return the brokers it speaks with, never this one."""

    async def start(self) -> None:
        """Listen and dial. Raises OSError when the address is taken."""

    async def stop(self) -> None:
        """Close every connection; returns when all are gone."""

    def send(
        self, peer: BrokerId, lane: Lane, kind: FrameKind, parts: Sequence[Part], *, can_wait: bool = False
    ) -> bool:
        """Queue one frame; False when it was dropped: stranger, no connection, or its buffer is full."""

    def add_peer(self, broker: BrokerId, address: Address, source: Source) -> None:
        """Speak with this broker too; another address of a known one is dialled when what is dialled now fails."""

    def remove_peer(self, broker: BrokerId) -> None:
        """Close every connection with this broker and hear it no more."""

    def check_disks(self) -> None:
        """Look at the open connections again: more is known about the disks now."""

    def disconnect(self, peer: BrokerId, lane: Lane) -> None:
        """Drop the outgoing connection; it is dialled again at once."""

    def pause_appends(self) -> None:
        """Read nothing from APPEND lanes, present and future ones, until `resume_appends`."""

    def resume_appends(self) -> None:
        """Read the APPEND lanes again."""

    def dropped_frames(self) -> int:
        """Return how many frames were dropped because a buffer was full."""
