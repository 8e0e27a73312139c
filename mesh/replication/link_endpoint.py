"""One end of a link: handshake, parts coalesced into frames, signs of life.

Rule 1: nothing but OPEN, and the proof of the mesh's secret where there is one (link_proof_core), is sent or understood
        before both sides know each other; another mesh id or a protocol version that is too old is refused with a
        reason. The reason tells a stranger nothing that it did not say itself. Who dials and may not read what the mesh
        writes is refused after that proof, with code LEVEL.
Rule 2: parts are pushed on the next turn of the loop unless a frame left less than the carrier's gather_ms ago: an
        idle link adds no delay, a busy one over gRPC sends at most 500 frames per second, each of up to FLUSH_BYTES. A
        frame costs that carrier about 0.2 ms of CPU at either end however little it holds. The carrier inside a region
        gathers what comes in one turn.
Rule 3: what belongs to no session (signs of life, frames of mesh control, clocks) goes before records, and waits for no
        cap on the bytes of the link. It never leaves before OPEN, nor does a row of a HEARTBEAT before the WELCOME of
        its session (outbox_core).
Rule 4: a link that was silent for dead_after_ms is closed; `tick` says when. While its carrier hears the other broker
        by other means, that is the sign of life, and none is sent here. Before both sides know each other it has the
        time of a dial instead (dial_patience_core).
Rule 5: both sides speak the lower of their two protocol versions (`peer_version`): the acceptor answers with it. A
        broker of version 1 refuses every other offer with code VERSION, so its dialler offers version 1 next.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Protocol

import structlog

from georelay.clock import Clock
from georelay.ids import BrokerId, Offset, RegionNumber
from mesh.listening.dial_patience_core import DIAL_MS_MAX, DialPatience
from mesh.listening.mesh_secret import NONCE_BYTES
from mesh.replication.frame_packing import FramePacker, unpack_frame
from mesh.replication.frames import (
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    Challenge,
    ClockAnswer,
    ClockAsk,
    FrameError,
    Heartbeat,
    LinkRefused,
    Open,
    Part,
    Proof,
    Raft,
    Welcome,
    decode_frame,
    encode_frame,
    encode_part,
    join_frame,
)
from mesh.replication.link import Link
from mesh.replication.link_counters import LinkCounters
from mesh.replication.link_proof_core import LinkProof
from mesh.replication.link_state import PeerProtocolError
from mesh.replication.outbox_core import Outbox
from mesh.replication.pace_core import Pace
from mesh.replication.settings import (
    BULK_BYTES_MAX,
    CAPPED_OUTBOX_BYTES_MIN,
    CAPPED_OUTBOX_S,
    FLUSH_BYTES,
    OUTBOX_BYTES_MAX,
    LinkSettings,
    MeshIdentity,
)

log = structlog.get_logger()
_NS_PER_MS = 1_000_000
VERSION_REFUSED = "VERSION"  # codes of LINK_REFUSED
SECRET_REFUSED = "SECRET"  # noqa: S105 - a code
LEVEL_REFUSED = "LEVEL"
URGENT = (Heartbeat, Raft, ClockAsk, ClockAnswer)  # of no session's order: they overtake records
RegionNames = Callable[[RegionNumber], str]  # "" for a number that is unknown here


def unknown_region(_number: RegionNumber) -> str:
    """Return "": no region is known by name."""
    return ""


class Conversation(Protocol):
    """What happens on an open link."""

    def check_peer(self, broker: BrokerId) -> str:
        """Return why this broker is refused, "" to talk to it."""

    def too_old(self, peer: Open) -> str:
        """Return why this version of a broker is refused, "" to talk to it."""

    def link_opened(self, peer: Open) -> None:
        """Both sides know each other."""

    def part_received(self, part: Part) -> None:
        """Handle one part. Raises PeerProtocolError to close the link."""

    def link_drained(self) -> None:
        """There is room again."""

    def link_lost(self, reason: str) -> None:
        """The link is gone; called once, opened or not."""


def refuse_peer(own: MeshIdentity, peer: Open, region_name: RegionNames = unknown_region) -> tuple[str, str] | None:
    """Return (code, reason) when `peer` must not talk to us."""
    if peer.protocol_version < PROTOCOL_VERSION_MIN:
        spoken = f"{PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION}"
        return VERSION_REFUSED, f"link protocol {peer.protocol_version}, this broker speaks {spoken}"
    if peer.mesh_id != own.mesh_id:
        return "MESH_ID", f"broker {peer.broker_id} is of mesh '{peer.mesh_id[:64]}', this one of another"
    if peer.broker_id == own.broker_id:
        return "BROKER_ID", f"broker {peer.broker_id} is our own id"
    if peer.broker_id // 1000 != peer.region_number:
        return "BROKER_ID", f"broker {peer.broker_id} cannot be of region {peer.region_number}"
    known = region_name(peer.region_number)
    if known and peer.region != known:
        says = f"broker {peer.broker_id} says that region {peer.region_number} is '{peer.region[:40]}'"
        return "REGION", f"{says}, here it is '{known}'"
    return None


class LinkEndpoint:
    """Frames and signs of life of one link; what the parts mean is the conversation's."""

    def __init__(
        self,
        link: Link,
        *,
        identity: MeshIdentity,
        conversation: Conversation,
        clock: Clock,
        settings: LinkSettings,
        dials: DialPatience | None,
        offer: int = PROTOCOL_VERSION,
        counters: LinkCounters | None = None,
        region_name: RegionNames = unknown_region,
    ) -> None:
        """Speak over `link`.

        Args:
            dials: how long this side, which dials, waits for an answer; None: it accepts.
            offer: the protocol version that a dialling side introduces itself with.
        """
        self.peer: Open | None = None
        self.refused_code = ""  # of the LINK_REFUSED that ended it
        self._offer = offer
        self._link = link
        self._gather_ns = link.gather_ms * _NS_PER_MS
        self._identity = identity
        self._proof = LinkProof(identity.secret, me=identity.broker_id, nonce=secrets.token_bytes(NONCE_BYTES))
        self._challenged: Open | None = None  # what the peer says it is, while its proof is awaited
        self._conversation = conversation
        self._clock = clock
        self._dials = dials is not None
        self._patience = dials or DialPatience(DIAL_MS_MAX)  # who accepts waits as long as anybody who dials
        self._keepalive_ns = settings.keepalive_ms * _NS_PER_MS
        self._dead_after_ns = settings.dead_after_ms * _NS_PER_MS
        self._counters = LinkCounters() if counters is None else counters
        self._region_name = region_name
        self._bytes_per_s = settings.bytes_per_s
        self._packer = FramePacker(clock, is_on=settings.compression)
        self._cap(0)
        self._outbox = Outbox(frame_bytes=FLUSH_BYTES)
        self._flush: asyncio.Handle | None = None
        self._was_full = False
        self._closed = False
        self._received_at_ns = self._sent_at_ns = clock.monotonic_ns()
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Begin; the dialling side introduces itself first."""
        self._link.start(self)
        if self._dials:
            self._introduce()

    @property
    def is_open(self) -> bool:
        """Return whether parts may be posted."""
        return self.peer is not None and not self._closed

    @property
    def peer_version(self) -> int:
        """Return the protocol version that both sides speak; 0 before OPEN."""
        return 0 if self.peer is None else min(self._offer, self.peer.protocol_version)

    @property
    def has_room(self) -> bool:
        """Return whether parts of sessions should be posted now; `link_drained` says when again."""
        return self._has_room_below(self._outbox_bytes_max)

    @property
    def has_bulk_room(self) -> bool:
        """Return the same for sessions that are behind: what they leave is for those at the tail."""
        return self._has_room_below(self._bulk_bytes_max)

    def _has_room_below(self, bytes_max: int) -> bool:
        if self._outbox.size_bytes >= bytes_max:
            self._was_full = True
            return False
        return True

    def post(self, part: Part) -> None:
        """Send one part, in order; what belongs to no session goes first."""
        if self._closed:
            return
        if isinstance(part, Heartbeat):
            part = self._without_held(part)
        encoded = encode_part(part)
        if isinstance(part, URGENT):
            self._hurry(encoded)
            return
        self.post_buffers(encoded)
        if isinstance(part, Welcome):
            self._outbox.hold(part.session)

    def _hurry(self, encoded: bytes) -> None:
        self._outbox.hurry(encoded)
        if self._pace.is_capped and self._flush is not None:
            self._flush.cancel()  # a sign of life does not wait for the pace
            self._flush = None
        self._schedule_flush()

    def _without_held(self, heartbeat: Heartbeat) -> Heartbeat:
        """Return a heartbeat without the rows of sessions that are not open at the other end; they go in order."""
        held: list[tuple[int, Offset, int]] = []
        free: list[tuple[int, Offset, int]] = []
        for row in heartbeat.rows:
            (held if self._outbox.is_held(row[0]) else free).append(row)
        if not held:
            return heartbeat
        self.post_buffers(encode_part(heartbeat._replace(rows=tuple(held))))
        for number, *_ in held:
            self._outbox.hold(number)  # a later row about it does not overtake this one
        return heartbeat._replace(rows=tuple(free))

    def post_buffers(self, *buffers: bytes) -> None:
        """Send one encoded part given as buffers; they are copied only into the frame."""
        if self._closed:
            return
        self._outbox.queue(*buffers)
        self._schedule_flush()

    def tick(self, heartbeat: Heartbeat | None = None) -> None:
        """Send a sign of life when it is due; close a link without one.

        Args:
            heartbeat: sent at once when given.
        """
        now_ns = self._clock.monotonic_ns()
        quiet_ns, beaten_ns = now_ns - self._received_at_ns, self._link.quiet_ns() if self.is_open else None
        if beaten_ns is not None:
            quiet_ns = min(quiet_ns, beaten_ns)
        if quiet_ns > (self._patience.ms * _NS_PER_MS if self.peer is None else self._dead_after_ns):
            if self.peer is None:
                self._patience.used_up()
            self.close(f"no sign of life for {quiet_ns // _NS_PER_MS} ms")
        elif heartbeat is not None:
            self.post(heartbeat)
        elif self.is_open and beaten_ns is None and now_ns - self._sent_at_ns >= self._keepalive_ns // 2:
            self.post(Heartbeat(self._clock.wall_ns() // 1000))

    def close(self, reason: str) -> None:
        """Close the link; the conversation hears `link_lost`."""
        self._link.close(reason)

    # --- LinkReceiver -----------------------------------------------------------------------------

    def frame_received(self, frame: bytes) -> None:
        """Handle one frame; whatever is wrong with it closes the link and nothing else."""
        if self._closed:
            return
        self._received_at_ns = self._clock.monotonic_ns()
        if self.peer is not None:
            self._counters.frame_received(self.peer.region_number, len(frame))
        try:
            for part in decode_frame(frame if self.peer is None else unpack_frame(frame)):
                if self.peer is None:
                    self._meet(part)
                elif not isinstance(part, Heartbeat) or part.rows:
                    self._conversation.part_received(part)
        except (FrameError, PeerProtocolError) as error:
            log.warning("link.peer_misbehaved", peer=self._link.peer, reason=str(error))
            self.close(str(error))

    def link_writable(self) -> None:
        """Send what has come meanwhile."""
        self._packer.carried()
        if self._outbox.size_bytes:
            self._schedule_flush()
        if self._was_full and self._outbox.size_bytes < self._bulk_bytes_max:
            self._was_full = False
            self._conversation.link_drained()

    def link_closed(self, reason: str) -> None:
        """Drop what was not sent and tell the conversation."""
        self._closed = True
        self._outbox.clear()
        self._conversation.link_lost(reason)

    # --- details ----------------------------------------------------------------------------------

    def _cap(self, bytes_per_s: int) -> None:
        self._pace = Pace(bytes_per_s)
        self._outbox_bytes_max = self._pace.within(
            OUTBOX_BYTES_MAX, seconds=CAPPED_OUTBOX_S, bytes_min=CAPPED_OUTBOX_BYTES_MIN
        )
        self._bulk_bytes_max = min(BULK_BYTES_MAX, self._outbox_bytes_max // 2)

    def _introduce(self, *before: Part) -> None:
        own = self._identity
        opening = Open(self._offer, own.mesh_id, own.region, own.region_number, own.broker_id)
        self._say_first(*before, opening)

    def _say_first(self, *parts: Part) -> None:
        self._outbox.introduce(b"".join(map(encode_part, parts)))
        self._schedule_flush()

    def _meet(self, part: Part) -> None:
        if isinstance(part, LinkRefused) and self._dials:
            self.refused_code = part.code
            raise PeerProtocolError(f"refused: {part.code}: {part.reason}")
        if isinstance(part, Challenge) and self._dials:
            if reason := self._conversation.check_peer(part.broker_id):
                self._refuse("BROKER_ID", reason)
            else:
                self._say_first(self._proof.answer(part))
        elif isinstance(part, Proof):
            self._judge(part)
        elif not isinstance(part, Open) or self._challenged is not None:
            raise PeerProtocolError(f"{type(part).__name__} before OPEN")
        else:
            self._meet_open(part)

    def _meet_open(self, peer: Open) -> None:
        refusal = refuse_peer(self._identity, peer, self._region_name)
        reason = self._conversation.check_peer(peer.broker_id) if refusal is None else ""
        if reason:
            refusal = ("BROKER_ID", reason)
        if refusal is not None:
            self._refuse(*refusal)
        elif not self._dials and (challenge := self._proof.challenge(peer)) is not None:
            self._challenged = peer
            self._say_first(challenge)
        else:
            self._open(peer)

    def _judge(self, proof: Proof) -> None:
        """Take what the other end shows; an acceptor opens then, and shows the same."""
        if self._dials:
            self._proof.shown(proof)
            return
        own = self._proof.answered(proof)
        peer, self._challenged = self._challenged, None
        assert peer is not None, "there was a CHALLENGE"
        self._open(peer, own)

    def _open(self, peer: Open, *proof: Part) -> None:
        """Talk to a broker that may; `proof` goes before our own OPEN."""
        if missing := self._proof.missing:
            self._refuse(SECRET_REFUSED, f"broker {peer.broker_id}: {missing}")
            return
        if reason := self._conversation.too_old(peer):
            self._refuse(LEVEL_REFUSED, reason)
            return
        if not self._dials:
            self._offer = min(self._offer, peer.protocol_version)
            self._introduce(*proof)
        self.peer = peer
        self._patience.answered()
        self._link.met()
        if peer.region_number != self._identity.region_number:
            self._cap(self._bytes_per_s)
        self._conversation.link_opened(peer)

    def _refuse(self, code: str, reason: str) -> None:
        self._counters.peer_refused(code)
        log.warning("link.refused", peer=self._link.peer, code=code, reason=reason)
        if not self._dials and self._link.is_writable:
            self._link.send(encode_frame(LinkRefused(code, reason)))
            # The reason must reach the dialler before the stream ends; it closes on reading it.
            self._loop.call_later(self._keepalive_ns / 1e9, self.close, reason)
            return
        self.close(reason)

    def _schedule_flush(self) -> None:
        if self._flush is not None or not self._link.is_writable:
            return
        now_ns = self._clock.monotonic_ns()
        since_ns = now_ns - self._sent_at_ns
        if (wait_ns := self._pace.wait_ns(now_ns)) and not self._outbox.has_urgent:
            self._flush = self._loop.call_later(wait_ns / 1e9, self._send_frame)
        elif self._outbox.size_bytes >= FLUSH_BYTES or since_ns >= self._gather_ns or not self.is_open:
            self._flush = self._loop.call_soon(self._send_frame)
        else:
            self._flush = self._loop.call_later((self._gather_ns - since_ns) / 1e9, self._send_frame)

    def _send_frame(self) -> None:
        self._flush = None
        if self._closed or not self._outbox.size_bytes or not self._link.is_writable:
            return
        buffers = self._outbox.take(only_urgent=self._pace.wait_ns(self._clock.monotonic_ns()) > 0)
        if not buffers:
            self._schedule_flush()
            return
        frame = join_frame(buffers)
        sent = self._packer.packed(frame, backlog_bytes=self._outbox.size_bytes, peer_version=self.peer_version)
        if self.peer is not None:
            self._counters.frame_sent(self.peer.region_number, len(sent), plain_bytes=len(frame))
        self._sent_at_ns = self._clock.monotonic_ns()
        self._pace.sent(len(sent), self._sent_at_ns)
        self._link.send(sent)
