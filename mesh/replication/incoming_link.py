"""The accepting end of one link: home sessions, batches forwarded to us, requests.

Rule 1: a forwarded batch is stored here or refused; it is never forwarded again.
Rule 2: everything a peer can make us hold is bounded: sessions, requests, lanes, bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol

import structlog

from georelay.clock import Clock
from georelay.errors import Busy, GeorelayError, OutcomeUnknown, TooLarge
from georelay.ids import BrokerId, RegionNumber
from georelay.limits import LINK_STREAMS_MAX
from georelay.tls import broker_name
from mesh.replication.fair_turns_core import FairTurns
from mesh.replication.faults import LANE_RESET, poisons_lane, to_fault
from mesh.replication.forwarding_core import LaneGuard
from mesh.replication.frames import (
    Ack,
    ClockAnswer,
    ClockAsk,
    DivergedAt,
    Fault,
    FencedBy,
    Forward,
    Forwarded,
    ForwardedGeo,
    ForwardFailed,
    ForwardGeo,
    FrameError,
    Gap,
    GeoWatermark,
    Heartbeat,
    Hello,
    LogStarts,
    Open,
    Part,
    Raft,
    Refused,
    Reply,
    Request,
    RequestFailed,
    Reset,
    Welcome,
)
from mesh.replication.hello_answer import answer_hello
from mesh.replication.home_session import HomeSession
from mesh.replication.level import REGION_LEVEL
from mesh.replication.link import Link
from mesh.replication.link_counters import LinkCounters
from mesh.replication.link_endpoint import LinkEndpoint, RegionNames, unknown_region
from mesh.replication.link_state import PeerProtocolError
from mesh.replication.ports import Published, Publisher, RequestHandler, StreamDirectory
from mesh.replication.settings import LinkSettings, MeshIdentity

log = structlog.get_logger()
REQUESTS_PER_LINK_MAX: Final = 256
GEO_VERSION: Final = 2  # of the link protocol: older brokers know no GEO_WATERMARK and no FORWARDED_GEO
_LANE_RESET: Final = Fault(LANE_RESET, "an earlier batch of this lane failed")


class IncomingLinks(Protocol):
    """The owner of all accepted links."""

    @property
    def too_old(self) -> Callable[[Open], str]:
        """Return what says why this version of a broker that dials is refused, "" to talk to it."""

    def session_opened(self, session: HomeSession) -> None:
        """A mirror is served."""

    def session_ended(self, session: HomeSession) -> None:
        """It is not any more; its lag stays readable."""

    def link_ended(self, link: IncomingLink) -> None:
        """The link is gone."""

    def raft_received(self, peer: BrokerId, body: bytes) -> None:
        """A frame of mesh control came. Raises PeerProtocolError on garbage."""

    def clock_asked(self, ask: ClockAsk) -> ClockAnswer | None:
        """Return what our clock says; None: nobody here answers."""


class IncomingLink:
    """All business of one dialling broker with us."""

    def __init__(
        self,
        link: Link,
        *,
        identity: MeshIdentity,
        directory: StreamDirectory,
        publisher: Publisher,
        requests: RequestHandler,
        owner: IncomingLinks,
        clock: Clock,
        settings: LinkSettings,
        counters: LinkCounters | None = None,
        region_name: RegionNames = unknown_region,
    ) -> None:
        self._counters = LinkCounters() if counters is None else counters
        self._directory = directory
        self._publisher = publisher
        self._requests = requests
        self._owner = owner
        self._clock = clock
        self._settings = settings
        self._sessions: dict[int, HomeSession] = {}
        self._opening: set[int] = set()
        self._turns: FairTurns[HomeSession] = FairTurns()
        self._turns_scheduled = False
        self._telling: dict[HomeSession, None] = {}  # sessions whose mirror may not know the newest geo watermark
        self._guard = LaneGuard()
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests_open = 0
        self._endpoint = LinkEndpoint(
            link,
            identity=identity,
            conversation=self,
            clock=clock,
            settings=settings,
            dials=None,
            counters=self._counters,
            region_name=region_name,
        )
        self.peer = link.peer
        self._peer_names = link.peer_names
        self._mesh_id = identity.mesh_id

    def start(self) -> None:
        """Begin to receive."""
        self._endpoint.start()

    @property
    def region(self) -> RegionNumber | None:
        """Return the region that dialled us, None before its OPEN."""
        peer = self._endpoint.peer
        return None if peer is None else peer.region_number

    def tick(self) -> None:
        """Judge every session's lag and report it to the mirrors."""
        rows = tuple(row for row in [session.tick() for session in list(self._sessions.values())] if row is not None)
        heartbeat = Heartbeat(self._clock.wall_ns() // 1000, rows) if rows else None
        self._endpoint.tick(heartbeat)
        starts = tuple(row for row in [session.start_row() for session in self._sessions.values()] if row is not None)
        if starts:
            self.post(LogStarts(starts))

    def close(self, reason: str) -> None:
        """Close the link."""
        self._endpoint.close(reason)

    # --- Conversation -----------------------------------------------------------------------------

    def check_peer(self, broker: BrokerId) -> str:
        """Any broker of the mesh may dial; with TLS its certificate must name it."""
        names = self._peer_names
        needed = broker_name(broker, self._mesh_id)
        if names is None or needed in names:
            return ""
        return f"the certificate is for {', '.join(sorted(names)[:8]) or 'nobody'}, not for {needed}"

    def too_old(self, peer: Open) -> str:
        """Who dials gets what this region writes: it has to read that."""
        return self._owner.too_old(peer)

    def link_opened(self, peer: Open) -> None:
        """Nothing to do: the dialling side asks."""
        self._counters.opened["accepted", self._counters.region(peer.region_number)] += 1
        log.info("link.accepted", broker=peer.broker_id, region=peer.region)

    def link_drained(self) -> None:
        """Let the sessions that waited for room send, in turn."""
        self._turns_scheduled = False
        endpoint = self._endpoint
        while (
            len(self._turns)
            and (session := self._turns.next(has_room=endpoint.has_room, has_bulk_room=endpoint.has_bulk_room))
            is not None
        ):
            session.take_turn()

    def link_lost(self, reason: str) -> None:
        """End everything that ran over this link."""
        peer = self._endpoint.peer
        if peer is not None:
            self._counters.lost["accepted", self._counters.region(peer.region_number)] += 1
            log.info("link.ended", broker=peer.broker_id, reason=reason)
        self._turns.clear()
        self._telling.clear()
        self._opening.clear()
        for session in list(self._sessions.values()):
            session.close()
        for task in self._tasks:
            task.cancel()
        self._owner.link_ended(self)

    def part_received(self, part: Part) -> None:
        """Handle one part. Raises PeerProtocolError."""
        match part:
            case Ack():
                for number, hwm in part.rows:
                    self._with_session(number, partial(HomeSession.acknowledged, high_watermark=hwm))
            case Forward() | ForwardGeo():
                self._forward(part)
            case Hello():
                self._hello(part)
            case Gap():
                self._with_session(part.session, partial(HomeSession.gap, next_offset=part.next_offset))
            case Reset():
                self._opening.discard(part.session)
                self._with_session(part.session, HomeSession.close)
            case FencedBy():
                self._with_session(part.session, HomeSession.fenced)
            case DivergedAt():
                self._with_session(part.session, partial(HomeSession.diverged, offset=part.offset))
            case Request():
                self._request(part)
            case Raft():
                peer = self._endpoint.peer
                assert peer is not None
                self._owner.raft_received(peer.broker_id, part.body)
            case ClockAsk():
                answer = self._owner.clock_asked(part) if self._endpoint.has_room else None
                if answer is not None:
                    self.post(answer)
            case _:
                raise PeerProtocolError(f"{type(part).__name__} from the dialling side")

    def _with_session(self, number: int, call: Callable[[HomeSession], None]) -> None:
        session = self._sessions.get(number)
        if session is not None:  # else the session ended while the part was on its way
            call(session)

    # --- home sessions ----------------------------------------------------------------------------

    def _hello(self, part: Hello) -> None:
        if part.session in self._sessions or part.session in self._opening:
            raise PeerProtocolError(f"session {part.session} is open already")
        if len(self._sessions) + len(self._opening) >= LINK_STREAMS_MAX:
            raise PeerProtocolError(f"more than {LINK_STREAMS_MAX} sessions on one link")
        self._opening.add(part.session)
        self.spawn(self._open_session(part))

    async def _open_session(self, hello: Hello) -> None:
        committed = self._directory.committed_log(hello.key)
        answer = await answer_hello(
            hello,
            committed,
            leader=self._directory.leader_of(hello.key),
            peer_version=self._endpoint.peer_version,
        )
        peer = self._endpoint.peer
        if hello.session not in self._opening or peer is None:
            return
        self._opening.discard(hello.session)
        self.post(answer)
        if not isinstance(answer, Welcome) or committed is None:
            if isinstance(answer, Refused):
                self._counters.session_refused("home", peer.region_number, answer.code)
            return
        session = HomeSession(
            hello=hello,
            welcome=answer,
            committed=committed,
            link=self,
            region=peer.region_number,
            broker=peer.broker_id,
            clock=self._clock,
            settings=self._settings,
        )
        self._sessions[hello.session] = session
        self._owner.session_opened(session)
        session.pump()

    @property
    def has_room(self) -> bool:
        """Return whether parts should be posted now."""
        return self._endpoint.has_room

    @property
    def has_bulk_room(self) -> bool:
        """Return the same, for a session that is behind."""
        return self._endpoint.has_bulk_room

    def post(self, part: Part) -> None:
        """Send one part."""
        self._endpoint.post(part)

    def post_buffers(self, *buffers: bytes) -> None:
        """Send one encoded part."""
        self._endpoint.post_buffers(*buffers)

    def starved(self, session: HomeSession) -> None:
        """Give the session a turn when there is room again; at once in the next turn of the loop if there is."""
        self._turns.wait(session, is_behind=session.is_behind)
        if not self._turns_scheduled and self._endpoint.has_bulk_room:
            self._turns_scheduled = True
            asyncio.get_running_loop().call_soon(self.link_drained)

    def watermark_moved(self, session: HomeSession) -> None:
        """Collect what all sessions have to tell in this turn of the loop into one part."""
        if self._endpoint.peer_version < GEO_VERSION:
            return
        if not self._telling:
            asyncio.get_running_loop().call_soon(self._tell_watermarks)
        self._telling[session] = None

    def _tell_watermarks(self) -> None:
        telling, self._telling = self._telling, {}
        rows = tuple(row for row in (session.watermark_row() for session in telling) if row is not None)
        if rows:
            self.post(GeoWatermark(rows))

    def ended(self, session: HomeSession) -> None:
        """Forget a session."""
        self._sessions.pop(session.number, None)
        self._turns.discard(session)
        self._owner.session_ended(session)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until the link ends; its failure is ours and ends the link."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("link.task_failed", peer=self.peer, exc_info=task.exception())
            self.close("a session failed")

    # --- forwarded batches ------------------------------------------------------------------------

    def _forward(self, part: Forward | ForwardGeo) -> None:
        if not self._guard.admits(part.lane, part.generation):
            self.post(ForwardFailed(part.request, _LANE_RESET))
            return
        try:
            future = self._publisher.publish_forwarded(
                part.key,
                part.batch,
                received_ns=part.received_ns,
                entry_region=part.entry_region,
                level=part.level if isinstance(part, ForwardGeo) else REGION_LEVEL,
            )
        except GeorelayError as error:
            self._forward_failed(part, error)
            return
        future.add_done_callback(partial(self._forward_ended, part))

    def _forward_ended(self, part: Forward | ForwardGeo, future: asyncio.Future[Published]) -> None:
        if future.cancelled():
            return self._forward_failed(part, OutcomeUnknown("the publish was cancelled"))
        error = future.exception()
        if error is None:
            stored = future.result()
            place = (part.request, stored.epoch, stored.base_offset, stored.append_us, stored.log_start)
            # FORWARDED cannot say that the home was isolated; whoever knows FORWARDED_GEO takes it as its answer too.
            if isinstance(part, ForwardGeo) or (stored.is_isolated and self._endpoint.peer_version >= GEO_VERSION):
                reached = (stored.level, stored.is_pending, stored.regions, stored.is_isolated)
                return self.post(ForwardedGeo(*place, *reached))
            return self.post(Forwarded(*place))
        if not isinstance(error, GeorelayError):
            log.error("forward.failed", stream=str(part.key), exc_info=error)
            return self.close("a forwarded batch failed")  # the other end answers "unknown"
        return self._forward_failed(part, error)

    def _forward_failed(self, part: Forward | ForwardGeo, error: GeorelayError) -> None:
        if poisons_lane(error):
            self._guard.failed(part.lane, part.generation)
        self.post(ForwardFailed(part.request, to_fault(error)))

    # --- requests ---------------------------------------------------------------------------------

    def _request(self, part: Request) -> None:
        if self._requests_open >= REQUESTS_PER_LINK_MAX:
            busy = Busy(f"more than {REQUESTS_PER_LINK_MAX} requests are open on this link")
            self.post(RequestFailed(part.request, to_fault(busy)))
            return
        self._requests_open += 1
        self.spawn(self._answer(part))

    async def _answer(self, part: Request) -> None:
        peer = self._endpoint.peer
        assert peer is not None
        try:
            answer = await self._requests.handle(part.method, part.body, from_broker=peer.broker_id)
            self.post(Reply(part.request, answer.body, answer.attachment))
        except FrameError as error:
            self.post(RequestFailed(part.request, to_fault(TooLarge(str(error)))))
        except GeorelayError as error:
            self.post(RequestFailed(part.request, to_fault(error)))
        finally:
            self._requests_open -= 1
