"""One end of a link: handshake, parts coalesced into frames, signs of life.

Rule 1: nothing but OPEN is sent or understood before both sides know each other; another mesh id or protocol
        version is refused with a reason.
Rule 2: parts are pushed on the next turn of the loop unless a frame left less than FLUSH_AFTER_MS ago: an idle link
        adds no delay, a busy one sends at most 500 frames per second, each of up to FLUSH_BYTES. A frame costs
        its carrier about 0.2 ms of CPU at either end however little it holds.
Rule 3: a link that was silent for dead_after_ms is closed; `tick` says when.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import structlog

from georelay.clock import Clock
from mesh.replication.frames import (
    PROTOCOL_VERSION,
    FrameError,
    Heartbeat,
    LinkRefused,
    Open,
    Part,
    decode_frame,
    encode_frame,
    encode_part,
    join_frame,
)
from mesh.replication.link import Link
from mesh.replication.link_state import PeerProtocolError
from mesh.replication.settings import FLUSH_AFTER_MS, FLUSH_BYTES, OUTBOX_BYTES_MAX, LinkSettings, MeshIdentity

log = structlog.get_logger()
_NS_PER_MS = 1_000_000


class Conversation(Protocol):
    """What happens on an open link."""

    def check_peer(self, peer: Open) -> str:
        """Return why this broker is refused, "" to talk to it."""

    def link_opened(self, peer: Open) -> None:
        """Both sides know each other."""

    def part_received(self, part: Part) -> None:
        """Handle one part. Raises PeerProtocolError to close the link."""

    def link_drained(self) -> None:
        """There is room again."""

    def link_lost(self, reason: str) -> None:
        """The link is gone; called once, opened or not."""


def refuse_peer(own: MeshIdentity, peer: Open) -> tuple[str, str] | None:
    """Return (code, reason) when `peer` must not talk to us."""
    if peer.protocol_version != PROTOCOL_VERSION:
        return "VERSION", f"link protocol {peer.protocol_version}, this broker speaks {PROTOCOL_VERSION}"
    if peer.mesh_id != own.mesh_id:
        return "MESH_ID", f"broker {peer.broker_id} is of mesh '{peer.mesh_id}', this one of '{own.mesh_id}'"
    if peer.broker_id == own.broker_id:
        return "BROKER_ID", f"broker {peer.broker_id} is our own id"
    if peer.broker_id // 1000 != peer.region_number:
        return "BROKER_ID", f"broker {peer.broker_id} cannot be of region {peer.region_number}"
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
        dials: bool,
    ) -> None:
        self.peer: Open | None = None
        self._link = link
        self._identity = identity
        self._conversation = conversation
        self._clock = clock
        self._dials = dials
        self._keepalive_ns = settings.keepalive_ms * _NS_PER_MS
        self._dead_after_ns = settings.dead_after_ms * _NS_PER_MS
        self._outbox: deque[tuple[bytes, ...]] = deque()
        self._outbox_bytes = 0
        self._flush_scheduled = False
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
    def has_room(self) -> bool:
        """Return whether bulk parts should be posted now; `link_drained` says when again."""
        if self._outbox_bytes >= OUTBOX_BYTES_MAX:
            self._was_full = True
            return False
        return True

    def post(self, part: Part) -> None:
        """Send one part, in order."""
        self.post_buffers(encode_part(part))

    def post_buffers(self, *buffers: bytes) -> None:
        """Send one encoded part given as buffers; they are copied only into the frame."""
        if self._closed:
            return
        self._outbox.append(buffers)
        self._outbox_bytes += sum(map(len, buffers))
        self._schedule_flush()

    def tick(self, heartbeat: Heartbeat | None = None) -> None:
        """Send a sign of life when it is due; close a link without one.

        Args:
            heartbeat: sent at once when given.
        """
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._received_at_ns > self._dead_after_ns:
            self.close(f"no sign of life for {(now_ns - self._received_at_ns) // _NS_PER_MS} ms")
        elif heartbeat is not None:
            self.post(heartbeat)
        elif self.is_open and now_ns - self._sent_at_ns >= self._keepalive_ns // 2:
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
        try:
            for part in decode_frame(frame):
                if self.peer is None:
                    self._meet(part)
                elif not isinstance(part, Heartbeat) or part.rows:
                    self._conversation.part_received(part)
        except (FrameError, PeerProtocolError) as error:
            log.warning("link.peer_misbehaved", peer=self._link.peer, reason=str(error))
            self.close(str(error))

    def link_writable(self) -> None:
        """Send what has come meanwhile."""
        if self._outbox:
            self._schedule_flush()
        if self._was_full and self._outbox_bytes < OUTBOX_BYTES_MAX // 2:
            self._was_full = False
            self._conversation.link_drained()

    def link_closed(self, reason: str) -> None:
        """Drop what was not sent and tell the conversation."""
        self._closed = True
        self._outbox.clear()
        self._outbox_bytes = 0
        self._conversation.link_lost(reason)

    # --- details ----------------------------------------------------------------------------------

    def _introduce(self) -> None:
        own = self._identity
        self.post(Open(PROTOCOL_VERSION, own.mesh_id, own.region, own.region_number, own.broker_id))

    def _meet(self, part: Part) -> None:
        if isinstance(part, LinkRefused) and self._dials:
            raise PeerProtocolError(f"refused: {part.code}: {part.reason}")
        if not isinstance(part, Open):
            raise PeerProtocolError(f"{type(part).__name__} before OPEN")
        refusal = refuse_peer(self._identity, part)
        reason = self._conversation.check_peer(part) if refusal is None else ""
        if reason:
            refusal = ("BROKER_ID", reason)
        if refusal is not None:
            self._refuse(*refusal)
            return
        if not self._dials:
            self._introduce()
        self.peer = part
        self._conversation.link_opened(part)

    def _refuse(self, code: str, reason: str) -> None:
        log.warning("link.refused", peer=self._link.peer, code=code, reason=reason)
        if not self._dials and self._link.is_writable:
            self._link.send(encode_frame(LinkRefused(code, reason)))
            # The reason must reach the dialler before the stream ends; it closes on reading it.
            self._loop.call_later(self._keepalive_ns / 1e9, self.close, reason)
            return
        self.close(reason)

    def _schedule_flush(self) -> None:
        if self._flush_scheduled or not self._link.is_writable:
            return
        self._flush_scheduled = True
        since_ns = self._clock.monotonic_ns() - self._sent_at_ns
        if self._outbox_bytes >= FLUSH_BYTES or since_ns >= FLUSH_AFTER_MS * _NS_PER_MS or not self.is_open:
            self._loop.call_soon(self._flush)
        else:
            self._loop.call_later(FLUSH_AFTER_MS / 1000 - since_ns / 1e9, self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._closed or not self._outbox or not self._link.is_writable:
            return
        outbox = self._outbox
        buffers: list[bytes] = []
        size = 0
        while outbox:
            part_bytes = sum(map(len, outbox[0]))
            if buffers and size + part_bytes > FLUSH_BYTES:
                break
            buffers.extend(outbox.popleft())
            size += part_bytes
        self._outbox_bytes -= size
        self._sent_at_ns = self._clock.monotonic_ns()
        self._link.send(join_frame(buffers))
