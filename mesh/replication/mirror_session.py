"""The mirror's end of one session: says HELLO, applies the receiver rule, acknowledges commits.

Rule 1: appends are pipelined against the log END; only the committed high watermark is acknowledged.
Rule 2: every broker of the home may be asked; REDIRECT names the leader; without a hint the next one is asked at
        the next tick. A refusal is never answered by starting somewhere else.
Rule 3: the epoch is raised only by a committed EPOCH entry, then HELLO is said again.
Rule 4: records are skipped only by a committed SKIP entry that the home asked for, then HELLO is said again.
Rule 5: a home whose epoch table ends below what this region promised is not heard: nothing of it is appended.
Rule 6: when the home moves the session moves with it, at once.
Rule 7: DIVERGED stops for good: two regions hold different records, and only a person can decide.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import structlog

from georelay.errors import Busy, Diverged, GeorelayError, NotLeader
from georelay.ids import Epoch, Offset
from mesh.replication.frames import (
    Batch,
    DivergedAt,
    FencedBy,
    Gap,
    Hello,
    Part,
    Redirect,
    Refused,
    Reset,
    Skip,
    Welcome,
)
from mesh.replication.home_link import HomeLink, HomeLinks
from mesh.replication.link_state import Cause, LinkInput, LinkState, PeerProtocolError, step
from mesh.replication.ports import EpochRow, MirrorLog, SkipPoint
from mesh.replication.receiver_core import (
    NO_EPOCH,
    MirrorEnd,
    Verdict,
    following_row,
    is_fenced,
    judge,
    judge_skip,
    table_fault,
)
from mesh.replication.sender_core import Refusal
from mesh.replication.snapshot import SessionSnapshot
from mesh.replication.stream_header import StreamHeader

log = structlog.get_logger()
_REDIRECTS_MAX: Final = 3  # followed at once; beyond it the next tick asks again


class MirrorSession:
    """One stream that this broker mirrors, from `start` to `stop`."""

    def __init__(self, mirror: MirrorLog, links: HomeLinks) -> None:
        self.log = mirror
        self.key = mirror.key
        self.state = LinkState.CONNECTING
        self.home_hwm = Offset(-1)
        self.lag_us = 0
        self.attempts = 0  # which broker of the home is next in turn
        self._links = links
        self.region = mirror.source
        self._link: HomeLink | None = None
        self._number = 0
        self._epoch = Epoch(0)
        self._table: tuple[EpochRow, ...] = ()
        self._welcome: Welcome | None = None
        self._hint = -1
        self._redirects = 0
        self._gap_told = Offset(-1)
        self._refused_bytes = False  # the log was busy: nothing is appended until it has moved
        self._acked = Offset(-1)
        self._raising = False  # an EPOCH or SKIP entry waits for its commit: no session until then
        self._stopped = False
        self._refusal_logged = ""
        self._sessions = 0  # that were welcomed
        self._refusals = 0
        self._waiter = mirror.add_waiter(self._log_moved)

    # --- connecting -------------------------------------------------------------------------------

    def tick(self) -> None:
        """Say HELLO when there is no session; retry what waited for the log."""
        self._redirects = 0
        if self._link is None:
            self.connect()
        elif self._refused_bytes:
            self._ask_again()

    def connect(self) -> None:
        """Say HELLO to the home, if a link to it is open; leave a region that is not the home any more."""
        mirror = self.log
        self._follow_source()
        if self._stopped or self._raising or self._link is not None or self.state is LinkState.DIVERGED:
            return
        if not mirror.is_leader or mirror.epoch < 1:
            return
        link = self._links.link_to_home(self, self._hint)
        if link is None:
            self._hint = -1
            return
        self._link = link
        self._number = link.open_session(self)
        self._epoch = mirror.epoch
        self._welcome = None
        self._gap_told = Offset(-1)
        self._refused_bytes = False
        self._acked = Offset(-1)
        link.post(Hello(self._number, self.key, self._epoch, mirror.next_offset, mirror.end_digest))

    def _follow_source(self) -> None:
        source = self.log.source
        if source == self.region:
            return
        if self._link is not None:
            self._leave("the home moved")
        self.region = source
        self._hint = -1
        self.attempts = 0
        self.home_hwm, self.lag_us = Offset(-1), 0

    def link_lost(self) -> None:
        """The link is gone; the next tick connects again."""
        self._link = None
        self._welcome = None
        self._step(LinkInput.SESSION_CLOSED)

    def stop(self) -> None:
        """End the session: this broker no longer leads the stream."""
        self._stopped = True
        self.log.remove_waiter(self._waiter)
        self._leave("the mirror is led elsewhere")

    def _leave(self, reason: str) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.post(Reset(self._number, reason))
            link.close_session(self._number)
        self._welcome = None
        self._step(LinkInput.SESSION_CLOSED)

    def _left(self) -> None:
        """The home has ended the session."""
        if self._link is not None:
            self._link.close_session(self._number)
        self.link_lost()

    # --- what the home says -----------------------------------------------------------------------

    def part_received(self, part: Part) -> None:
        """Handle one part of this session. Raises PeerProtocolError."""
        match part:
            case Batch():
                self._batch(part)
            case Welcome():
                self._welcomed(part)
            case Skip():
                self._told_to_skip(part)
            case Redirect():
                self._redirected(part)
            case Refused():
                self._refused(part)
            case Reset():
                self._left()
                self.connect()
            case _:
                raise PeerProtocolError(f"{type(part).__name__} from the home of a session")

    def heartbeat(self, hwm: Offset, lag_us: int) -> None:
        """Follow the home's high watermark and the lag it measured."""
        self.home_hwm, self.lag_us = hwm, lag_us
        if self._welcome is not None and self.log.high_watermark >= hwm:
            self._step(LinkInput.MIRROR_CAUGHT_UP)

    def watermark_told(self, k: int, watermark: Offset) -> None:
        """Follow which records `k` regions have, as long as home and mirror are in one epoch."""
        welcome, geo = self._welcome, self.log.geo
        is_current = welcome is not None and welcome.table[-1][0] == self._epoch == self.log.epoch
        if is_current and geo is not None and k > 1:
            geo.told(k, watermark)

    def _welcomed(self, part: Welcome) -> None:
        fault = table_fault(part.table)
        if fault or self._welcome is not None or part.epoch != self._epoch:
            raise PeerProtocolError(fault or f"WELCOME to epoch {part.epoch} in a session of {self._epoch}")
        if is_fenced(part.table, self.log.promised):
            self._fence()
            return
        self._welcome = part
        self._table = part.table
        self._refusal_logged = ""
        self.log.home_start_moved(part.log_start)
        self.home_hwm = part.high_watermark
        self._links.counters.session_welcomed("mirror", self.region, is_resume=self._sessions > 0)
        self._sessions += 1
        self._step(LinkInput.SESSION_OPENED)
        self._acknowledge()
        self._raise_epoch_if_due()

    def _redirected(self, part: Redirect) -> None:
        self._left()
        self._hint = part.broker
        self._redirects += 1
        if part.broker >= 0 and self._redirects <= _REDIRECTS_MAX:
            self.connect()

    def _refused(self, part: Refused) -> None:
        self._refusals += 1
        self._links.counters.session_refused("mirror", self.region, part.code)
        if part.code == Refusal.DIVERGED.value:
            self._diverged(part.reason)
            return
        if self._refusal_logged != part.code:
            self._refusal_logged = part.code
            log.warning("link.session_refused", stream=str(self.key), code=part.code, reason=part.reason)
        if part.code == Refusal.FENCED.value:
            self._step(LinkInput.MIRROR_FENCED)
        self._hint = -1
        self._left()

    # --- the receiver rule ------------------------------------------------------------------------

    def _batch(self, part: Batch) -> None:
        if self._welcome is None:
            raise PeerProtocolError("BATCH before WELCOME")
        if self._raising or not self.log.is_leader:
            return
        try:
            header = StreamHeader.decode(part.stream_part)
        except ValueError as error:
            raise PeerProtocolError(str(error)) from error
        verdict = judge(
            self._own_end(), session_epoch=part.epoch, table=self._table, header=header, payload=part.payload
        )
        match verdict:
            case Verdict.ACCEPT:
                self._append(header, part.payload)
            case Verdict.ALREADY_THERE:
                self._acknowledge()
            case Verdict.GAP:
                self._answer_gap()
            case Verdict.FENCED:
                self._fence()
            case Verdict.EPOCH_AHEAD:
                self._leave("the session epoch is ahead of the mirror's")
            case Verdict.DIVERGED:
                assert self._link is not None
                self._link.post(DivergedAt(self._number, header.base_offset))
                self._diverged(f"the digest of the batch at offset {header.base_offset} does not continue ours")
            case Verdict.WRONG_EPOCH | Verdict.DAMAGED:
                raise PeerProtocolError(f"batch at offset {header.base_offset}: {verdict.value}")

    def _own_end(self) -> MirrorEnd:
        mirror = self.log
        return MirrorEnd(
            epoch=mirror.epoch,
            next_offset=mirror.next_offset,
            digest=mirror.end_digest,
            promised=mirror.promised,
        )

    def _append(self, header: StreamHeader, payload: bytes) -> None:
        if self._refused_bytes:
            return
        try:
            self.log.append_batch(header, payload)
        except Busy:
            self._refused_bytes = True  # the home sends from our log end once the log has moved
            return
        except NotLeader:
            self._leave("the mirror is led elsewhere")
            return
        self._gap_told = Offset(-1)
        self.home_hwm = max(self.home_hwm, header.next_offset)
        self._step(LinkInput.BATCH_SHIPPED)
        self._raise_epoch_if_due()

    def _answer_gap(self) -> None:
        """Say where our log ends, once per position: the batches behind the gap are on their way already."""
        following = self.log.next_offset
        if self._refused_bytes or self._gap_told == following or self._link is None:
            return
        self._gap_told = following
        self._link.post(Gap(self._number, following))

    def _ask_again(self) -> None:
        self._refused_bytes = False
        self._gap_told = Offset(-1)
        self._answer_gap()

    def _fence(self) -> None:
        assert self._link is not None
        self._link.post(FencedBy(self._number, max(self.log.epoch, self.log.promised)))
        self._step(LinkInput.MIRROR_FENCED)
        self._leave("the mirror is in a newer epoch, or has promised one")

    def _diverged(self, reason: str) -> None:
        self._step(LinkInput.MIRROR_DIVERGED)
        log.error("link.diverged", stream=str(self.key), offset=self.log.next_offset, reason=reason)
        self._left()

    # --- following our own log --------------------------------------------------------------------

    def _log_moved(self) -> None:
        if not self.log.is_leader:
            if self._link is not None:
                self._leave("the mirror is led elsewhere")
            return
        if self.region != self.log.source:
            self.connect()
            return
        if self._welcome is None:
            return
        if is_fenced(self._table, self.log.promised):
            self._fence()
            return
        if self._epoch != self.log.epoch and not self._raising:
            self._leave("the mirror has a new epoch")
            self.connect()
            return
        if self._refused_bytes:
            self._ask_again()
        self._acknowledge()
        self._step(
            LinkInput.MIRROR_CAUGHT_UP if self.log.high_watermark >= self.home_hwm else LinkInput.MIRROR_PROGRESSED
        )

    def _acknowledge(self) -> None:
        if self._link is not None and self._welcome is not None:
            self._link.acknowledge(self)

    def ack(self) -> tuple[int, Offset] | None:
        """Return (session, committed high watermark) when it has news."""
        hwm = self.log.high_watermark
        if self._link is None or self._welcome is None or hwm == self._acked:
            return None
        self._acked = hwm
        return self._number, hwm

    def _raise_epoch_if_due(self) -> None:
        row = following_row(self._table, self._epoch)
        if row is None or self._raising or self.log.next_offset < row[1]:
            return
        self._raising = True
        self._links.spawn(self._raise_epoch(row))

    async def _raise_epoch(self, row: EpochRow) -> None:
        welcome = self._welcome
        assert welcome is not None
        is_done = False
        try:
            await self.log.append_epoch(
                row[0],
                start=row[1],
                digest=welcome.following_digest,
                control_index=welcome.control_index,
                proven=welcome.table[-1][0],
            )
            is_done = True
        except Diverged as error:
            self._diverged(str(error))
            return
        except GeorelayError as error:
            log.warning("link.epoch_refused", stream=str(self.key), epoch=row[0], reason=str(error))
        finally:
            self._raising = False
        if not self._stopped and self.state is not LinkState.DIVERGED:
            self._leave("the mirror has a new epoch" if is_done else "the mirror cannot begin the epoch yet")
            if is_done:  # else the next tick says HELLO
                self.connect()

    # --- skipping ---------------------------------------------------------------------------------

    def _told_to_skip(self, part: Skip) -> None:
        if self._welcome is not None or part.epoch != self._epoch:
            raise PeerProtocolError(f"SKIP in a session of epoch {self._epoch}")
        if self._raising or not self.log.is_leader:
            return
        end = self._own_end()
        if self.log.decided >= end.promised:
            # The table is only that of what is skipped; that this region is the home of the decided epoch is proof.
            end = replace(end, promised=NO_EPOCH)
        verdict = judge_skip(end, session_epoch=part.epoch, table=part.table, last=part.last)
        match verdict:
            case Verdict.ACCEPT:
                point = SkipPoint(last=part.last, digest=part.digest, table=part.table, producers=part.producers)
                self._raising = True
                self._links.spawn(self._skip(point))
            case Verdict.WRONG_EPOCH:
                raise PeerProtocolError(f"SKIP up to {part.last}: its epoch table makes no sense")
            case _:
                self._leave("the mirror has moved meanwhile")  # the next tick says HELLO from where it is

    async def _skip(self, point: SkipPoint) -> None:
        is_done = False
        try:
            await self.log.append_skip(point)
            is_done = True
        except GeorelayError as error:
            log.warning("link.skip_refused", stream=str(self.key), last=point.last, reason=str(error))
        finally:
            self._raising = False
        if not self._stopped:
            self._leave("the mirror begins elsewhere" if is_done else "the mirror cannot skip yet")
            if is_done:
                self.connect()

    def snapshot(self) -> SessionSnapshot:
        """Return the state for metrics and status."""
        hwm = self.log.high_watermark
        return SessionSnapshot(
            role="mirror",
            key=self.key,
            region=self.region,
            broker=self._link.broker_id if self._link is not None else -1,
            state=self.state,
            cause=Cause.NONE,
            lag_records=max(self.home_hwm - hwm, 0),
            lag_bytes=0,
            lag_ms=self.lag_us / 1000,
            hwm=self.home_hwm,
            acked=hwm,
            resumes=max(self._sessions - 1, 0),
            refusals=self._refusals,
        )

    def _step(self, given: LinkInput) -> None:
        self.state = step(self.state, given)
