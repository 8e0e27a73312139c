"""The home's end of one session: reads committed batches and pushes them to one mirror.

Rule 1: only what is committed here, and only while this broker leads the stream, is ever sent.
Rule 2: a session belongs to one home epoch: when that changes or the leadership is lost it is reset, and the mirror
        asks again.
Rule 3: when the log start overtakes a session it is reset, and the mirror is told to skip at its next HELLO.
Rule 4: lag is measured here, on one clock: now - append time of the oldest record the mirror has not committed.
Rule 5: a session that has more than one frame to send is behind: it sends a frame per turn, and those at the tail of
        their logs go first (mesh.replication.fair_turns_core).
Rule 6: the mirror counts for geo acknowledgements while its session epoch is the newest of the home, and no longer.
"""

from __future__ import annotations

import struct
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol

import structlog

from georelay.clock import Clock
from georelay.errors import GeorelayError, OffsetOutOfRange
from georelay.ids import Offset, RegionNumber
from mesh.replication.frames import Hello, Part, Refused, Reset, Welcome, batch_part
from mesh.replication.link_state import Cause, LinkInput, LinkState, step
from mesh.replication.ports import CommittedEntry, CommittedLog
from mesh.replication.receiver_core import following_row
from mesh.replication.sender_core import Refusal, SenderCore
from mesh.replication.settings import FLUSH_BYTES, LinkSettings
from mesh.replication.snapshot import SessionSnapshot

log = structlog.get_logger()
_APPEND_US: Final = struct.Struct(">q")
_APPEND_US_POSITION: Final = 20  # in the stream part
_NS_PER_MS: Final = 1_000_000


class SessionLink(Protocol):
    """What a home session needs of the link it runs on."""

    @property
    def has_room(self) -> bool:
        """Whether parts should be posted now."""

    @property
    def has_bulk_room(self) -> bool:
        """The same, for a session that is behind."""

    def post(self, part: Part) -> None:
        """Send one part."""

    def post_buffers(self, *buffers: bytes) -> None:
        """Send one encoded part."""

    def starved(self, session: HomeSession) -> None:
        """Call `take_turn` when there is room again, and it is this session's turn."""

    def ended(self, session: HomeSession) -> None:
        """The session is over."""

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine for as long as the link lives."""

    def watermark_moved(self, session: HomeSession) -> None:
        """Tell the mirror of `session.watermark_row`, together with other sessions, if it understands."""


class HomeSession:
    """One stream on its way to one mirror."""

    def __init__(
        self,
        *,
        hello: Hello,
        welcome: Welcome,
        committed: CommittedLog,
        link: SessionLink,
        region: RegionNumber,
        broker: int,
        clock: Clock,
        settings: LinkSettings,
    ) -> None:
        following = following_row(welcome.table, hello.epoch)
        self.number = hello.session
        self.key = hello.key
        self.region = region
        self.broker = broker
        self.state = LinkState.IDLE
        self.cause = Cause.NONE
        self._epoch = hello.epoch
        self._home_epoch = welcome.table[-1][0]
        self._log = committed
        self._link = link
        self._clock = clock
        self._settings = settings
        self._core = SenderCore(
            next_offset=hello.next_offset,
            stop_at=following[1] if following else None,
            window_bytes_max=settings.window_bytes_max,
        )
        self._mirror_hwm = Offset(0)
        self.is_behind = False  # there is more to send than one frame takes
        self.resumes = 0  # sessions of this stream with this region that were served here before
        self._waits = False  # for its turn
        self._reading_cold = False
        self._mirror_refused = False  # it answered GAP since it last progressed
        self._progress_ns = clock.monotonic_ns()
        self._told: tuple[int, int] = (-1, 0)
        self._told_start = welcome.log_start
        self._closed = False
        self._waiter = committed.add_waiter(self.pump)
        self._told_watermark: tuple[int, Offset] | None = None
        # A mirror that follows up older epochs of our table has not promised the newest one: its word does not count.
        self._geo = committed.geo if self._epoch == self._home_epoch else None
        if self._geo is not None:
            self._geo.joined(region, self, self)

    def pump(self) -> None:
        """Send what is committed, as far as window and link have room."""
        if self._closed:
            return
        committed = self._log
        if not committed.is_serving or committed.epoch != self._home_epoch:
            self.end("the stream is led elsewhere" if not committed.is_serving else "a new epoch began")
            return
        if self._core.next_offset < committed.served_from:
            self.end(f"records up to {committed.served_from} are deleted here")  # its next HELLO is told to skip
            return
        if self._waits and self.is_behind:
            return
        while not self._reading_cold:
            wanted = self._core.wants(committed.high_watermark)
            if not wanted:
                return
            if not (self._link.has_bulk_room if self.is_behind else self._link.has_room):
                self._wait()
                return
            entries = committed.read(self._core.next_offset, min(wanted, FLUSH_BYTES))
            if entries is None:
                self._reading_cold = self.is_behind = True
                self._link.spawn(self._pump_cold(min(wanted, FLUSH_BYTES)))
                return
            if not self._ship(entries):
                return
            self.is_behind = self._core.next_offset < committed.high_watermark
            if self.is_behind:
                self._wait()
                return

    def _wait(self) -> None:
        self._waits = True
        self._link.starved(self)

    def take_turn(self) -> None:
        """Send one frame, or everything at the tail: there is room, and it is this session's turn."""
        self._waits = False
        self.pump()

    async def _pump_cold(self, max_bytes: int) -> None:
        asked = self._core.next_offset
        try:
            entries = await self._log.read_cold(asked, max_bytes)
        except OffsetOutOfRange:
            self._reading_cold = False
            self.pump()  # deleted while it was read: ends the session
            return
        except GeorelayError as error:  # one damaged log must not end the link, which carries others
            log.warning("link.read_failed", stream=str(self.key), region=self.region, offset=asked, reason=str(error))
            self.end(f"offset {asked} cannot be read: {error}", refusal=Refusal.NO_POSITION)
            return
        finally:
            self._reading_cold = False
        if self._closed or self._core.next_offset != asked:
            self.pump()  # a GAP moved the position meanwhile
            return
        if not self._log.is_serving or self._log.epoch != self._home_epoch or self._ship(entries):
            self.pump()

    def _ship(self, entries: Sequence[CommittedEntry]) -> bool:
        """Send entries; return whether there may be more to send."""
        core = self._core
        if not entries:
            return False
        for entry in entries:
            if entry.next_offset == entry.base_offset:
                continue  # control entries belong to this region's group
            if entry.base_offset != core.next_offset:
                # The mirror asked for an offset inside a batch, or the disk no longer has it: never skip, never re-cut.
                self.end(f"offset {core.next_offset} is not the start of a batch", refusal=Refusal.NO_POSITION)
                return False
            if not core.takes(entry.next_offset):
                return False
            stream_part = entry.stream_part
            payload = entry.payload
            self._link.post_buffers(
                *batch_part(session=self.number, epoch=self._epoch, stream_part=stream_part, payload=payload)
            )
            core.sent(following=entry.next_offset, size_bytes=len(payload), append_us=_append_us(stream_part))
        if self.state is LinkState.IDLE:
            self._progress_ns = self._clock.monotonic_ns()
        self._step(LinkInput.BATCH_SHIPPED)
        return True

    # --- what the mirror says ---------------------------------------------------------------------

    def acknowledged(self, high_watermark: Offset) -> None:
        """Follow the mirror's committed high watermark. Raises PeerProtocolError."""
        moved = self._core.acknowledged(high_watermark)  # refuses what was never sent, before anything counts
        self._mirror_hwm = max(self._mirror_hwm, high_watermark)
        if self._geo is not None and not self._closed:
            self._geo.acknowledged(self.region, epoch=self._epoch, offset=high_watermark)
        if self._mirror_hwm >= self._log.high_watermark:
            self._mirror_refused = False
            self._step(LinkInput.MIRROR_CAUGHT_UP)
        elif moved:
            self._step(LinkInput.MIRROR_PROGRESSED)
        if moved:
            self._progress_ns = self._clock.monotonic_ns()
            self.pump()

    def gap(self, next_offset: Offset) -> None:
        """Go back to where the mirror's log ends. Raises PeerProtocolError."""
        self._core.rewind(next_offset)
        self._mirror_refused = True
        self.pump()

    def fenced(self) -> None:
        """The mirror is in a newer epoch: this session sends nothing any more."""
        self._step(LinkInput.MIRROR_FENCED)
        self.end("the mirror is in a newer epoch")

    def diverged(self, offset: Offset) -> None:
        """The mirror holds other records: stop and raise the alarm."""
        self._step(LinkInput.MIRROR_DIVERGED)
        log.error("link.diverged", stream=str(self.key), region=self.region, offset=offset)
        self.close()

    # --- life cycle -------------------------------------------------------------------------------

    def tick(self) -> tuple[int, Offset, int] | None:
        """Judge the lag; return the heartbeat row (session, hwm, lag us) when it has news."""
        if self._closed:
            return None
        hwm, lag_us = self._log.high_watermark, self.lag_us()
        behind = self._mirror_hwm < hwm
        since_ms = (self._clock.monotonic_ns() - self._progress_ns) // _NS_PER_MS
        if behind and since_ms >= self._settings.stall_after_ms:
            if self.state is not LinkState.STALLED:
                log.warning(
                    "link.stalled", stream=str(self.key), region=self.region, lag_records=hwm - self._mirror_hwm
                )
            self._step(LinkInput.STALL_TIMER_FIRED)
        elif behind and lag_us >= self._settings.lagging_after_ms * 1000:
            self.cause = Cause.APPLY if self._mirror_refused else Cause.NETWORK
            self._step(LinkInput.LAG_TIMER_FIRED)
        news = (hwm, lag_us)
        if news == self._told:
            return None
        self._told = news
        return self.number, hwm, lag_us

    def start_row(self) -> tuple[int, Offset] | None:
        """Return the row (session, log start) when the mirror does not know it yet."""
        start = self._log.log_start
        if self._closed or start == self._told_start:
            return None
        self._told_start = start
        return self.number, start

    def watermark_moved(self) -> None:
        """What enough regions have may be news for the mirror."""
        if not self._closed:
            self._link.watermark_moved(self)

    def watermark_row(self) -> tuple[int, int, Offset] | None:
        """Return the row (session, k, watermark) when the mirror does not know it yet."""
        told = None if self._geo is None or self._closed else self._geo.watermark_to_tell()
        if told is None or told == self._told_watermark:
            return None
        self._told_watermark = told
        return self.number, *told

    def end(self, reason: str, *, refusal: Refusal | None = None) -> None:
        """Tell the mirror that the session is over."""
        if self._closed:
            return
        part = Reset(self.number, reason) if refusal is None else Refused(self.number, refusal.value, reason)
        self._link.post(part)
        self.close()

    def close(self) -> None:
        """Stop sending; the lag stays readable."""
        if self._closed:
            return
        self._closed = True
        self._log.remove_waiter(self._waiter)
        if self._geo is not None:
            self._geo.left(self.region, self)
        self._step(LinkInput.SESSION_CLOSED)
        self._link.ended(self)

    @property
    def acked(self) -> Offset:
        """Return the mirror's committed high watermark as far as it said so, 0 before."""
        return self._mirror_hwm

    @property
    def is_serving(self) -> bool:
        """Return whether mirrors may still be served from here."""
        return self._log.is_serving

    @property
    def is_over(self) -> bool:
        """Return whether it ended at a home that is none any more: what was measured here says nothing now."""
        return self._closed and not self._log.is_home

    def lag_us(self) -> int:
        """Return now - append time of the oldest record that the mirror has not committed, 0 when it has all."""
        if self._mirror_hwm >= self._log.high_watermark:
            return 0
        appended_us = self._core.oldest_append_us
        is_stored = self._mirror_hwm >= self._log.served_from
        if is_stored and (appended_us is None or self._closed):
            first = self._log.read(self._mirror_hwm, 1)
            appended_us = _append_us(first[0].stream_part) if first else appended_us
        return 0 if appended_us is None else max(self._clock.wall_ns() // 1000 - appended_us, 0)

    def snapshot(self) -> SessionSnapshot:
        """Return the state for metrics and status."""
        hwm = self._log.high_watermark
        return SessionSnapshot(
            role="home",
            key=self.key,
            region=self.region,
            broker=self.broker,
            state=self.state,
            cause=self.cause,
            lag_records=max(hwm - self._mirror_hwm, 0),
            lag_bytes=self._core.lag_bytes(hwm),
            lag_ms=self.lag_us() / 1000,
            hwm=hwm,
            acked=self._mirror_hwm,
            resumes=self.resumes,
        )

    def _step(self, given: LinkInput) -> None:
        self.state = step(self.state, given)
        if self.state is not LinkState.LAGGING:
            self.cause = Cause.NONE


def _append_us(stream_part: bytes) -> int:
    return int(_APPEND_US.unpack_from(stream_part, _APPEND_US_POSITION)[0])
