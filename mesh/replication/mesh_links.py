"""All inter-region replication of one broker: what its composition root starts and stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog

from georelay.cadence import pause_s
from georelay.clock import Clock
from georelay.ids import BrokerId, Offset, RegionNumber, StreamKey
from mesh.listening.addresses_core import Source
from mesh.listening.link_ends_core import LinkEnd
from mesh.listening.listeners import ListenerParts
from mesh.replication.forwarder import Forwarder
from mesh.replication.frames import ClockAnswer, ClockAsk
from mesh.replication.home_link import HomeLink
from mesh.replication.home_session import HomeSession
from mesh.replication.incoming_link import IncomingLink
from mesh.replication.link import Dial, Link, MakeListener, NearLinks
from mesh.replication.link_counters import LinkCounters
from mesh.replication.link_framed import Carriers
from mesh.replication.link_grpc import DialledGrpcLink
from mesh.replication.link_listener import LinkListener
from mesh.replication.link_parts import Open, Raft
from mesh.replication.mirror_session import MirrorSession
from mesh.replication.outgoing_link import OutgoingLink
from mesh.replication.outgoing_links import OutgoingLinks
from mesh.replication.ports import (
    Answer,
    JsonObject,
    MirrorLog,
    Published,
    Publisher,
    RequestHandler,
    StreamDirectory,
)
from mesh.replication.publish import Publish
from mesh.replication.requests import Requests
from mesh.replication.settings import BrokerAddress, LinkSettings, MeshIdentity
from mesh.replication.snapshot import SessionSnapshot

__all__ = ["BrokerAddress", "LinkSettings", "MeshIdentity", "MeshLinks"]

log = structlog.get_logger()

RAFT_SINCE_VERSION: Final = 2
CLOCK_VERSION: Final = 2  # of the link protocol: older brokers know no CLOCK_ASK


class MeshLinks:
    """Links to and from other brokers: mirrors, forwards, requests.

    Args:
        brokers: link addresses of every region, our own included, in the order of the configuration.
        directory, publisher, requests: the broker's side of what others ask of us.
        dial, make_listener: how to reach a broker, and how to be reached; others only in tests.
        parts: of the link listener; its TLS is also that of what is dialled. None: plain text, counted by nobody.
        near: carries the links to and from brokers of the own region; None: they are as those to all others.

    Attributes:
        counters: what was counted since the start.
        region_name: the name of a region by its number, "" while unknown; a broker that gives its own another name is
            refused.
        too_old: why this version of a broker that dials is refused, "" to talk to it.
        on_raft: told (broker, body) of each frame of mesh control; may raise PeerProtocolError. None: they are dropped.
        congestion_controls: what TCP uses towards addresses that are dialled, as far as that can be told.
    """

    def __init__(
        self,
        *,
        identity: MeshIdentity,
        brokers: Mapping[RegionNumber, Sequence[BrokerAddress]],
        directory: StreamDirectory,
        publisher: Publisher,
        requests: RequestHandler,
        clock: Clock,
        settings: LinkSettings | None = None,
        dial: Dial | None = None,
        make_listener: MakeListener | None = None,
        parts: ListenerParts | None = None,
        near: NearLinks | None = None,
    ) -> None:
        tls, counters = (None, None) if parts is None else (parts.contexts, parts.counters)
        with_grpc = partial(DialledGrpcLink, tls=tls, mesh_id=identity.mesh_id)
        dial = dial or Carriers(tls=tls, mesh_id=identity.mesh_id, otherwise=with_grpc).dial
        self._near = near
        if near is not None:
            dial = partial(near.dial, otherwise=dial)
        make_listener = make_listener or partial(LinkListener, tls=tls, counters=counters)
        settings = settings or LinkSettings()
        self.on_raft: Callable[[BrokerId, bytes], None] | None = None
        self._identity = identity
        self._directory = directory
        self._publisher = publisher
        self._handler = requests
        self._clock = clock
        self._settings = settings
        self.counters = LinkCounters()
        self.region_name: Callable[[RegionNumber], str] = lambda _number: ""
        self.too_old: Callable[[Open], str] = lambda _peer: ""
        self.congestion_controls: Callable[[Iterable[str]], Mapping[str, str]] = lambda _addresses: {}
        self._outgoing = OutgoingLinks(
            brokers,
            identity=identity,
            clock=clock,
            settings=settings,
            dial=dial,
            counters=self.counters,
            region_name=self._name_of,
        )
        self._forwarder = Forwarder(self._outgoing, clock=clock, settings=settings, region_name=self._name_of)
        self._requests = Requests(
            self._outgoing,
            clock=clock,
            next_request=self._forwarder.next_request,
            patience_s=settings.dead_after_ms / 1000,
            region_name=self._name_of,
        )
        self._outgoing.on_opened += [self._forwarder.link_opened, self._connect_mirrors]
        self._incoming: set[IncomingLink] = set()
        self._mirrors: dict[StreamKey, MirrorSession] = {}
        self._served: dict[tuple[StreamKey, RegionNumber], HomeSession] = {}
        self._regions_served: set[RegionNumber] = set()
        self._regions_left: set[RegionNumber] = set()
        self._clock_answerer: Callable[[ClockAsk], ClockAnswer] | None = None
        self._listener = make_listener(self._accept)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    # --- life cycle -------------------------------------------------------------------------------

    async def start(self, listen: str) -> int:
        """Listen for links on "host:port" and begin to dial; return the bound port.

        Raises:
            Unavailable: the address cannot be bound.
        """
        port = await self._listener.start(listen)
        if self._near is not None:
            self._near.serve(self._accept)
        self.spawn(self._tick_forever())
        return port

    async def stop(self) -> None:
        """End every session and link; forwards in flight have an unknown outcome."""
        self._stopped = True
        for mirror in list(self._mirrors):
            self.mirror_stopped(mirror)
        self._forwarder.close()
        self._outgoing.close()
        if self._near is not None:
            self._near.stop()
        for link in list(self._incoming):
            link.close("this broker stops")
        await self._listener.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _tick_forever(self) -> None:
        interval_s = self._settings.redial_ms / 1000
        while True:
            await asyncio.sleep(pause_s(interval_s))
            try:
                self.tick()
            except Exception:  # a fault of one stream or link: without ticks no link would ever be dialled again
                log.exception("links.tick_failed")

    def tick(self) -> None:
        """Do what is due: dial, keep alive, judge lag, retry; every redial_ms."""
        self._outgoing.tick()
        for link in list(self._incoming):
            link.tick()
        for mirror in list(self._mirrors.values()):
            mirror.tick()
        self._forwarder.tick()
        for name, session in list(self._served.items()):
            if not session.is_serving or session.is_over:
                del self._served[name]  # the new leader, or the new home, measures the lag from now on

    # --- the broker's side ------------------------------------------------------------------------

    def know_brokers(self, region: RegionNumber, brokers: Sequence[BrokerAddress], source: Source) -> None:
        """Learn where brokers of a region are reached, beside what others said of it; nothing of one that left."""
        if region not in self._regions_left:
            self._outgoing.know(region, brokers, source)

    def link_is_open(self, broker: BrokerId) -> bool:
        """Return whether there is an open link to a broker now."""
        link = self._outgoing.to_broker(broker)
        return link is not None and link.is_open

    def link_life(self, broker: BrokerId) -> int:
        """Return which life of the link to a broker this is, 0 while closed: what was sent in another is lost."""
        link = self._outgoing.to_broker(broker)
        return link.life if link is not None and link.is_open else 0

    def addresses(self) -> dict[BrokerId, str]:
        """Return where other brokers are reached, as far as is known."""
        return self._outgoing.addresses()

    def post_raft(self, broker: BrokerId, body: bytes) -> bool:
        """Send a frame of mesh control; False when it was dropped: the link is dialled, or the peer is too old."""
        link = self._outgoing.to_broker(broker)
        if link is None:
            return False
        link.want()
        if not link.is_open or link.peer_version < RAFT_SINCE_VERSION:
            return False
        link.post(Raft(body))
        return True

    def forget_region(self, region: RegionNumber) -> None:
        """Dial a region no more, for good, and measure no lag of it or behind it: it left the mesh."""
        self._regions_left.add(region)
        self._outgoing.forget(region)
        for key in [key for key, session in self._mirrors.items() if session.log.source == region]:
            self.mirror_stopped(key)
        for name in [name for name in self._served if name[1] == region]:
            del self._served[name]
        self._regions_served.discard(region)

    def is_linked(self, region: RegionNumber) -> bool:
        """Return whether a link to any broker of `region` is open."""
        return any(link.is_open for link in self._outgoing.of_region(region))

    def mirror_started(self, mirror: MirrorLog) -> None:
        """This broker leads a mirror: keep a session to its home, unless that has left and has nothing to say."""
        if mirror.source in self._regions_left:
            return
        if mirror.key in self._mirrors:
            if self._mirrors[mirror.key].log is mirror:
                self._mirrors[mirror.key].connect()
                return
            self.mirror_stopped(mirror.key)
        session = MirrorSession(mirror, self)
        self._mirrors[mirror.key] = session
        session.connect()

    def mirror_stopped(self, key: StreamKey) -> None:
        """This broker does not lead the mirror any more."""
        session = self._mirrors.pop(key, None)
        if session is not None:
            session.stop()

    def forward(
        self, key: StreamKey, publish: Publish, *, region: RegionNumber, leader: int = -1
    ) -> asyncio.Future[Published]:
        """Send one batch to the leader of its home; see Forwarder.forward."""
        return self._forwarder.forward(key, publish, region=region, leader=leader)

    async def request(
        self,
        region: RegionNumber,
        method: str,
        body: JsonObject,
        *,
        timeout_s: float,
        broker: BrokerId | None = None,
    ) -> Answer:
        """Ask a broker of `region`; see Requests.request."""
        return await self._requests.request(region, method, body, timeout_s=timeout_s, broker=broker)

    # --- clocks -----------------------------------------------------------------------------------

    def serve_clocks(
        self, answer: Callable[[ClockAsk], ClockAnswer], heard: Callable[[BrokerId, ClockAnswer], None]
    ) -> None:
        """Answer questions for our clock with `answer`, and hand what others answer to `heard`."""
        self._clock_answerer = answer
        self._outgoing.on_clock_answer = heard

    def brokers_of(self, region: RegionNumber) -> list[BrokerId]:
        """Return the other brokers of a region whose addresses are known."""
        return [link.broker_id for link in self._outgoing.of_region(region)]

    def ask_clock(self, broker: BrokerId, t1_ns: int, *, dial: bool) -> bool:
        """Ask a broker for its clock; False where no link is open that understands it. `dial`: open one then."""
        link = self._outgoing.to_broker(broker)
        if link is None or self._stopped:
            return False
        if dial:
            link.want()
        if not link.is_open or link.peer_version < CLOCK_VERSION:
            return False
        link.post(ClockAsk(t1_ns))
        return True

    # --- what is shown ----------------------------------------------------------------------------

    def mirror_lag(self, key: StreamKey) -> tuple[int, float]:
        """Return (the home's high watermark, lag in ms on the home's clock), (-1, 0.0) while unknown."""
        session = self._mirrors.get(key)
        return (-1, 0.0) if session is None else (session.home_hwm, session.lag_us / 1000)

    def mirror_positions(self, key: StreamKey) -> dict[RegionNumber, Offset]:
        """Return how far each mirror has committed a stream that is served from here, as far as they said so."""
        sessions = [self._served.get((key, region)) for region in self._regions_served]
        return {session.region: session.acked for session in sessions if session is not None}

    def snapshot(self) -> list[SessionSnapshot]:
        """Return every session's state and lag; a mirror that is cut off stays in it, with its lag growing."""
        return [
            *(session.snapshot() for session in self._served.values()),
            *(session.snapshot() for session in self._mirrors.values()),
        ]

    def ends(self, region_name: Callable[[int], str]) -> list[LinkEnd]:
        """Return the far ends of all links that are wanted or were accepted, with the names of their regions."""
        dialled = [
            LinkEnd(region_name(link.region), link.target.address, True)
            for link in self._outgoing.all()
            if link.is_wanted
        ]
        accepted = [(link.region, link.peer) for link in self._incoming]
        return [*dialled, *(LinkEnd(region_name(row), peer, False) for row, peer in accepted if row is not None)]

    def links(self) -> list[dict[str, Any]]:
        """Return every wanted link and session, ready for JSON."""
        wanted = [link for link in self._outgoing.all() if link.is_wanted]
        controls = self.congestion_controls([link.target.address for link in wanted])
        dialled = [
            {
                "broker": link.broker_id,
                "region": link.region,
                "open": link.is_open,
                "last_failure": link.last_failure,
                "congestion_control": controls.get(link.target.address, ""),
            }
            for link in wanted
        ]
        sessions = [
            {
                "role": row.role,
                "stream": str(row.key),
                "region": row.region,
                "broker": row.broker,
                "state": row.state.value,
                "cause": row.cause.value,
                "lag_records": row.lag_records,
                "lag_bytes": row.lag_bytes,
                "lag_ms": round(row.lag_ms, 3),
            }
            for row in self.snapshot()
        ]
        return [*dialled, *sessions]

    # --- owner of sessions and accepted links -----------------------------------------------------

    def link_to_home(self, session: MirrorSession, hint: int) -> HomeLink | None:
        """Return an open link to a broker of the session's home."""
        return None if self._stopped else self._outgoing.for_session(session, hint)

    def session_opened(self, session: HomeSession) -> None:
        """A mirror is served from here."""
        before = self._served.get((session.key, session.region))
        session.resumes = 0 if before is None else before.resumes + 1
        self.counters.session_welcomed("home", session.region, is_resume=before is not None)
        self._served[(session.key, session.region)] = session
        self._regions_served.add(session.region)

    def session_ended(self, session: HomeSession) -> None:
        """Keep it: its lag is what status shows while the mirror is cut off."""

    def link_ended(self, link: IncomingLink) -> None:
        """An accepted link is gone."""
        self._incoming.discard(link)

    def raft_received(self, peer: BrokerId, body: bytes) -> None:
        """Hand a frame of mesh control to who set `on_raft`."""
        if self.on_raft is not None:
            self.on_raft(peer, body)

    def clock_asked(self, ask: ClockAsk) -> ClockAnswer | None:
        """Return what our clock says; None: nobody here answers."""
        return None if self._clock_answerer is None else self._clock_answerer(ask)

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until `stop`."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("link.task_failed", exc_info=task.exception())

    def _name_of(self, number: RegionNumber) -> str:
        return self.region_name(number)

    def _accept(self, accepted: Link) -> None:
        link = IncomingLink(
            accepted,
            identity=self._identity,
            directory=self._directory,
            publisher=self._publisher,
            requests=self._handler,
            owner=self,
            clock=self._clock,
            settings=self._settings,
            counters=self.counters,
            region_name=self._name_of,
        )
        self._incoming.add(link)
        link.start()

    def _connect_mirrors(self, link: OutgoingLink) -> None:
        for session in list(self._mirrors.values()):
            if session.region == link.region:
                session.connect()
