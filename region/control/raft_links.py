"""The transport of control's Raft group: frames over the links that brokers have anyway.

It implements region.multiraft.transport.Transport; its brokers are replica numbers, and a table says on which broker a
replica is.

Rule 1: a direction is "connected" from the moment that its receiver's session is known until the link is lost or the
        receiver begins anew; beats begin from nothing each time.
Rule 2: a frame for a session that is not this one's is dropped, and answered with a HELLO.
Rule 3: what a peer can make us hold is one frame per replica, of FRAME_BYTES_MAX.
Links have one lane and an order of their own, so lanes mean nothing here; a link's own bounds say when frames are lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from georelay.ids import BrokerId
from georelay.limits import PEER_FRAME_BYTES_MAX
from mesh.listening.addresses_core import Source
from region.control.raft_wire import PIECE_BYTES, RaftFrame, RaftFrameError, encode
from region.multiraft.transport import Address, FrameKind, Lane, Part, PeerReceiver

log = structlog.get_logger()

FRAME_BYTES_MAX: Final = PEER_FRAME_BYTES_MAX
LOSS_TOLD_WITHIN_S: Final = 0.5
NOWHERE: Final[Address] = ("", 0)  # addresses are the links' business


@dataclass(slots=True)
class _Wire:
    """One other replica."""

    broker: BrokerId
    mine: int  # session of what we send
    theirs: int = 0  # session of what it sends, 0 while unknown
    connected: bool = False
    life: int = 0  # of the link that carried what was sent since then, 0: none was open
    lost_at_s: float | None = None  # when its loss will be told, while its link is closed
    heard: object = None  # the incoming direction, as the host knows it
    pieces: list[memoryview | bytes] = field(default_factory=list)
    pieces_bytes: int = 0


class RaftLinks:
    """Implements Transport.

    Args:
        me: own replica number. now_s: monotonic seconds. post: sends one frame to a broker, False when it was dropped.
        link_life: which life of the link to a broker this is, 0 while none is open. Frames of another life are lost,
            however short the time between the two was.
    """

    def __init__(
        self,
        *,
        me: int,
        control_id: str,
        generation: int,
        receiver: PeerReceiver,
        post: Callable[[BrokerId, bytes], bool],
        link_life: Callable[[BrokerId], int],
        rng: random.Random,
        now_s: Callable[[], float],
    ) -> None:
        self._me = me
        self._control_id = control_id
        self._generation = generation
        self._receiver = receiver
        self._post = post
        self._link_life = link_life
        self._rng = rng
        self._now_s = now_s
        self._wires: dict[BrokerId, _Wire] = {}
        self._dropped = 0
        self._running = False

    @property
    def peers(self) -> Mapping[BrokerId, Address]:
        """Return the other replicas."""
        return dict.fromkeys(self._wires, NOWHERE)

    async def start(self) -> None:
        """Greet who is known."""
        self._running = True
        self.look()

    async def stop(self) -> None:
        """Send nothing more."""
        self._running = False

    def know(self, replicas: Mapping[int, BrokerId]) -> None:
        """Follow which replicas there are, this one left out, and on which broker each is."""
        for replica in [known for known in self._wires if known not in replicas]:
            self._disconnect(self._wires.pop(replica), replica)
        for number, broker in replicas.items():
            replica = BrokerId(number)
            if number != self._me and replica not in self._wires:
                self._wires[replica] = _Wire(broker, mine=self._new_session())

    def look(self) -> bool:
        """Notice links that came and went; greet replicas whose session is not known. Call it about every tick.

        Returns:
            whether every replica is connected.
        """
        if not self._running:
            return True
        for replica, wire in self._wires.items():
            if wire.connected:
                self._look_at(replica, wire)
            if not wire.connected:
                self._greet(replica, wire)
        return all(wire.connected for wire in self._wires.values())

    def send(
        self, peer: BrokerId, lane: Lane, kind: FrameKind, parts: Sequence[Part], *, can_wait: bool = False
    ) -> bool:
        """Send one frame in pieces; False when nothing was sent."""
        del lane, can_wait
        wire = self._wires.get(peer)
        if wire is None or not wire.connected or not self._running:
            return False
        body = b"".join(bytes(part) for part in parts)
        pieces = range(0, max(len(body), 1), PIECE_BYTES)
        for start in pieces:
            sent = self._send_piece(peer, wire, kind, body[start : start + PIECE_BYTES], start != pieces[-1])
            if not sent:
                self._dropped += 1
                return False
        return True

    def frame_received(self, frame: RaftFrame) -> None:
        """Take one frame of this control. Raises RaftFrameError on garbage."""
        replica = BrokerId(frame.from_replica)
        wire = self._wires.get(replica)
        if wire is None or not self._running:
            return  # a replica that this one has not heard of yet, or that is none any more
        if frame.kind == FrameKind.HELLO:
            self._greeted(replica, wire, frame)
        elif frame.to_session != wire.mine or frame.from_session != wire.theirs:
            self._greet(replica, wire)
        else:
            self._piece_received(replica, wire, frame)

    def is_from(self, frame: RaftFrame, broker: BrokerId) -> bool:
        """Return whether a frame came from the broker on which its replica is; True for replicas not known yet."""
        wire = self._wires.get(BrokerId(frame.from_replica))
        return wire is None or wire.broker == broker

    # --- Transport, the rest ------------------------------------------------------------------------------------------

    def add_peer(self, broker: BrokerId, address: Address, source: Source) -> None:
        """Do nothing: `know` says who the peers are."""

    def remove_peer(self, broker: BrokerId) -> None:
        """Do nothing: `know` says who the peers are."""

    def check_disks(self) -> None:
        """Do nothing: a replica number stands for one disk."""

    def disconnect(self, peer: BrokerId, lane: Lane) -> None:
        """Begin anew with a peer."""
        wire = self._wires.get(peer)
        if wire is not None:
            self._disconnect(wire, peer)
            wire.theirs, wire.mine = 0, self._new_session()

    def pause_appends(self) -> None:
        """Do nothing: control's log is small, and links are shared."""

    def resume_appends(self) -> None:
        """Do nothing; see `pause_appends`."""

    def dropped_frames(self) -> int:
        """Return how many frames were dropped."""
        return self._dropped

    def _look_at(self, replica: BrokerId, wire: _Wire) -> None:
        """Tell the loss of a link, some time after it or when the link is back: what was on its way is lost.

        Links of one region die at one moment for all others. If all stood for election at that moment, over round
        trips of 100 ms and more nobody would win; so each hears of it at another time.
        """
        life, now_s = self._link_life(wire.broker), self._now_s()
        if life and life == wire.life:
            return
        if not life and wire.lost_at_s is None:
            wire.lost_at_s = now_s + LOSS_TOLD_WITHIN_S * self._rng.random()
        elif life or (wire.lost_at_s is not None and now_s >= wire.lost_at_s):
            self._disconnect(wire, replica)
            wire.theirs, wire.mine = 0, self._new_session()

    # --- parts --------------------------------------------------------------------------------------------------------

    def _greet(self, replica: BrokerId, wire: _Wire) -> None:
        self._send_piece(replica, wire, FrameKind.HELLO, b"", False)

    def _greeted(self, replica: BrokerId, wire: _Wire, frame: RaftFrame) -> None:
        if frame.from_session != wire.theirs:
            self._disconnect(wire, replica)
            wire.theirs = frame.from_session
        if not wire.connected and wire.theirs:
            wire.connected, wire.life = True, self._link_life(wire.broker)
            for lane in (Lane.CONTROL, Lane.APPEND):
                self._receiver.peer_connected(replica, lane)
        if frame.to_session != wire.mine:
            self._greet(replica, wire)

    def _piece_received(self, replica: BrokerId, wire: _Wire, frame: RaftFrame) -> None:
        wire.pieces.append(frame.payload)
        wire.pieces_bytes += len(frame.payload)
        if wire.pieces_bytes > FRAME_BYTES_MAX:
            raise RaftFrameError(f"a frame of replica {replica} is over {FRAME_BYTES_MAX} bytes")
        if frame.has_more:
            return
        whole = b"".join(bytes(piece) for piece in wire.pieces) if len(wire.pieces) > 1 else wire.pieces[0]
        wire.pieces, wire.pieces_bytes = [], 0
        connection = (replica, frame.from_session, frame.to_session)
        if wire.heard not in (None, connection):
            self._receiver.connection_closed(wire.heard)
        wire.heard = connection
        try:
            kind = FrameKind(frame.kind)
        except ValueError as error:
            raise RaftFrameError(f"kind {frame.kind} of a RAFT part is unknown") from error
        self._receiver.frame_received(replica, kind, memoryview(whole), connection)

    def _send_piece(self, replica: BrokerId, wire: _Wire, kind: FrameKind, piece: bytes, has_more: bool) -> bool:
        frame = RaftFrame(
            control_id=self._control_id,
            generation=self._generation,
            from_replica=self._me,
            to_replica=replica,
            from_session=wire.mine,
            to_session=wire.theirs,
            kind=kind,
            has_more=has_more,
            payload=piece,
        )
        return self._post(wire.broker, encode(frame))

    def _disconnect(self, wire: _Wire, replica: BrokerId) -> None:
        wire.lost_at_s = None
        wire.pieces, wire.pieces_bytes = [], 0
        if wire.heard is not None:
            self._receiver.connection_closed(wire.heard)
            wire.heard = None
        if wire.connected:
            wire.connected = False
            for lane in (Lane.CONTROL, Lane.APPEND):
                self._receiver.peer_lost(replica, lane)

    def _new_session(self) -> int:
        return self._rng.getrandbits(63) + 1
