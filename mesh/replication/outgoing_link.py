"""The dialling end towards one broker: keeps a link open while it is wanted, and shares it between mirror sessions,
forwarded batches and requests.

Rule 1: a lost link is dialled again every redial_ms, on our own clock. A dial that is not answered ends with the
        patience of this link (dial_patience_core), at first dead_after_ms.
Rule 2: an address is a hint: where nobody answers, or another broker, the next known one is dialled; an open link is
        not given up for a newer word.
Rule 3: when a link is lost every user hears it: sessions reconnect, forwards and requests in flight fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from georelay.clock import Clock
from georelay.ids import BrokerId, RegionNumber, region_of
from mesh.listening.addresses_core import Addresses, Source
from mesh.listening.dial_patience_core import DialPatience
from mesh.replication.frames import (
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    Ack,
    Batch,
    ClockAnswer,
    Forwarded,
    ForwardedGeo,
    ForwardFailed,
    GeoWatermark,
    Heartbeat,
    LogStarts,
    Open,
    Part,
    Redirect,
    Refused,
    Reply,
    RequestFailed,
    Reset,
    Skip,
    Welcome,
)
from mesh.replication.link import Dial
from mesh.replication.link_counters import LinkCounters
from mesh.replication.link_endpoint import VERSION_REFUSED, LinkEndpoint, RegionNames, unknown_region
from mesh.replication.link_state import PeerProtocolError
from mesh.replication.mirror_session import MirrorSession
from mesh.replication.settings import BrokerAddress, LinkSettings, MeshIdentity

log = structlog.get_logger()
REASONS_TOLD_MAX: Final = 8  # until it is open: reasons that differ each time shall not fill the log
Reaction = Callable[[Part | None], None]  # the answer, None when the link was lost


class OutgoingLink:
    """All our business with one broker."""

    def __init__(
        self,
        target: BrokerAddress,
        source: Source,
        *,
        identity: MeshIdentity,
        clock: Clock,
        settings: LinkSettings,
        dial: Dial,
        opened: Callable[[OutgoingLink], None],
        clock_answered: Callable[[BrokerId, ClockAnswer], None] = lambda _broker, _answer: None,
        counters: LinkCounters | None = None,
        region_name: RegionNames = unknown_region,
    ) -> None:
        self._counters = LinkCounters() if counters is None else counters
        self._region_name = region_name
        self.broker_id = target.broker_id
        self.addresses = Addresses(target.address, source)
        self.region: RegionNumber = region_of(target.broker_id)
        self.last_failure = ""
        self._told: set[str] = set()  # why dials failed since it was open
        self._identity = identity
        self._clock = clock
        self._settings = settings
        self._dial = dial
        self._patience = DialPatience(settings.dead_after_ms)
        self._opened = opened
        self._clock_answered = clock_answered
        self._endpoint: LinkEndpoint | None = None
        self._wanted = False
        self.life = 0  # which opening of all this broker's links its last one was; its owner counts
        self._offer = PROTOCOL_VERSION
        self._sessions: dict[int, MirrorSession] = {}
        self._session_number = 0
        self._awaited: dict[int, Reaction] = {}
        self._acknowledging: dict[MirrorSession, None] = {}

    # --- life cycle -------------------------------------------------------------------------------

    @property
    def target(self) -> BrokerAddress:
        """Return the broker at the other end, and where it is dialled."""
        return BrokerAddress(broker_id=self.broker_id, address=self.addresses.current)

    @property
    def is_open(self) -> bool:
        """Return whether parts may be posted."""
        return self._endpoint is not None and self._endpoint.is_open

    @property
    def peer_version(self) -> int:
        """Return the protocol version that both sides speak; 0 while the link is not open."""
        return 0 if self._endpoint is None else self._endpoint.peer_version

    @property
    def may_open(self) -> bool:
        """Return whether a dial is under way whose predecessor did not fail."""
        return self._endpoint is not None and not self.last_failure

    @property
    def is_wanted(self) -> bool:
        """Return whether there was ever work for it."""
        return self._wanted

    def want(self) -> None:
        """Keep this link open from now on."""
        self._wanted = True
        if self._endpoint is None and not self.last_failure:
            self._connect()

    def tick(self) -> None:
        """Dial when it is due; keep an open link alive."""
        if self._endpoint is not None:
            self._endpoint.tick()
        elif self._wanted:
            self._connect()

    def close(self) -> None:
        """Close for good."""
        self._wanted = False
        self.fail("this broker stops")

    def fail(self, reason: str) -> None:
        """Close the link; it is dialled again while it is wanted."""
        if self._endpoint is not None:
            self._endpoint.close(reason)

    def _connect(self) -> None:
        self._endpoint = LinkEndpoint(
            self._dial(self.target),
            identity=self._identity,
            conversation=self,
            clock=self._clock,
            settings=self._settings,
            dials=self._patience,
            offer=self._offer,
            counters=self._counters,
            region_name=self._region_name,
        )
        self._endpoint.start()

    # --- Conversation -----------------------------------------------------------------------------

    def check_peer(self, broker: BrokerId) -> str:
        """Refuse any broker but the one we dialled."""
        if broker != self.broker_id:
            return f"{self.addresses.current} is broker {broker}, not {self.broker_id}"
        return ""

    def too_old(self, _peer: Open) -> str:
        """Nobody is: what we write reaches others only by the links that they dial."""
        return ""

    def link_opened(self, peer: Open) -> None:
        """Tell the owner."""
        self.last_failure = ""
        self._told.clear()
        self._counters.opened["dialled", self._counters.region(self.region)] += 1
        log.info("link.opened", broker=peer.broker_id, region=peer.region)
        self._opened(self)

    def link_drained(self) -> None:
        """Nothing here waits for room: forwards are bounded by their number and bytes."""

    def link_lost(self, reason: str) -> None:
        """Tell every user."""
        was_open = self._endpoint is not None and self._endpoint.peer is not None
        region = self._counters.region(self.region)
        if was_open:
            self._counters.lost["dialled", region] += 1
        else:
            self._counters.dial_failures[region] += 1
            self.addresses.failed(self.addresses.current)
        if was_open:
            log.warning("link.lost", broker=self.broker_id, reason=reason)
        elif reason not in self._told and len(self._told) < REASONS_TOLD_MAX:
            self._told.add(reason)  # one that is down fails at each of its addresses in turn, each second
            log.warning("link.dial_failed", broker=self.broker_id, reason=reason)
        # A broker of version 1 refuses version 2; when it comes back after an open link it may be a newer one.
        was_too_new = self._endpoint is not None and self._endpoint.refused_code == VERSION_REFUSED
        self._offer = PROTOCOL_VERSION_MIN if was_too_new else PROTOCOL_VERSION
        self._endpoint = None
        self.last_failure = reason or "closed"
        sessions, self._sessions = self._sessions, {}
        awaited, self._awaited = self._awaited, {}
        self._acknowledging.clear()
        for session in sessions.values():
            session.link_lost()
        for reaction in awaited.values():
            reaction(None)

    def part_received(self, part: Part) -> None:
        """Hand one part to whom it belongs. Raises PeerProtocolError."""
        match part:
            case Batch() | Welcome() | Skip() | Redirect() | Refused() | Reset():
                session = self._sessions.get(part.session)
                if session is not None:  # else a late part of a session that we left
                    session.part_received(part)
            case Heartbeat():
                for number, hwm, lag_us in part.rows:
                    session = self._sessions.get(number)
                    if session is not None:
                        session.heartbeat(hwm, lag_us)
            case LogStarts():
                for number, log_start in part.rows:
                    session = self._sessions.get(number)
                    if session is not None:
                        session.log.home_start_moved(log_start)
            case GeoWatermark():
                for number, k, watermark in part.rows:
                    session = self._sessions.get(number)
                    if session is not None:
                        session.watermark_told(k, watermark)
            case Forwarded() | ForwardedGeo() | ForwardFailed() | Reply() | RequestFailed():
                reaction = self._awaited.pop(part.request, None)
                if reaction is not None:  # else we have given up on it
                    reaction(part)
            case ClockAnswer():
                self._clock_answered(self.broker_id, part)
            case _:
                raise PeerProtocolError(f"{type(part).__name__} from the accepting side")

    # --- users ------------------------------------------------------------------------------------

    def post(self, part: Part) -> None:
        """Send one part; lost if the link is not open."""
        if self._endpoint is not None:
            self._endpoint.post(part)

    def ask(self, request: int, part: Part, reaction: Reaction) -> None:
        """Send a FORWARD or REQUEST; `reaction` hears its answer, or None if the link is lost before."""
        assert self.is_open
        self._awaited[request] = reaction
        self.post(part)

    def forget(self, request: int) -> None:
        """Drop the answer of a request when it comes."""
        self._awaited.pop(request, None)

    def open_session(self, session: MirrorSession) -> int:
        """Return a session number that was never used on this link."""
        self._session_number += 1
        self._sessions[self._session_number] = session
        return self._session_number

    def close_session(self, number: int) -> None:
        """Drop late parts of a session."""
        self._sessions.pop(number, None)

    def acknowledge(self, session: MirrorSession) -> None:
        """Collect acknowledgements of all sessions that moved in this turn of the loop into one part."""
        if not self._acknowledging:
            asyncio.get_running_loop().call_soon(self._send_acks)
        self._acknowledging[session] = None

    def _send_acks(self) -> None:
        sessions, self._acknowledging = self._acknowledging, {}
        rows = tuple(row for row in (session.ack() for session in sessions) if row is not None)
        if rows:
            self.post(Ack(rows))
