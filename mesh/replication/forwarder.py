"""Sends batches to the leader of their home: one ordered lane per (publisher, stream).

The rules are forwarding_core's; this shell picks links, keeps deadlines and resolves futures.

Rule 1: a lane follows its home. What the old home definitely refused (NOT_HOME) goes to the new one, in order, once
        every batch in flight is answered; what the old home may have stored is never sent anywhere again.
Rule 2: nobody waits for what is known to be out of order (georelay.outage_core): a home that no link reaches, a stream
        that nobody leads there. It is refused, as not stored, at once or with the answer of whoever was asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from georelay.clock import Clock
from georelay.errors import (
    Busy,
    GeorelayError,
    HomeUnreachable,
    NotHome,
    NotLeader,
    OutcomeUnknown,
    OutOfOrderSequence,
    PolicyViolation,
    Unavailable,
)
from georelay.ids import RegionNumber, StreamKey
from georelay.limits import FORWARDS_IN_FLIGHT_MAX
from georelay.outage_core import Outage
from mesh.replication.faults import LANE_RESET, from_fault, poisons_lane, to_fault
from mesh.replication.forwarding_core import Failed, Failure, LaneCore, Refusal
from mesh.replication.frames import Fault, Forward, Forwarded, ForwardedGeo, ForwardFailed, ForwardGeo, Part
from mesh.replication.link_endpoint import RegionNames, unknown_region
from mesh.replication.outgoing_link import OutgoingLink
from mesh.replication.outgoing_links import OutgoingLinks
from mesh.replication.ports import Published
from mesh.replication.publish import Publish
from mesh.replication.settings import FORWARD_BYTES_IN_FLIGHT_MAX, LinkSettings

_REDIRECTS_MAX: Final = 3  # followed at once between two ticks
_LEADERS_REMEMBERED_MAX: Final = 100_000
_NS_PER_MS: Final = 1_000_000
STATUS_ADVICE: Final = "nothing was stored; `georelay status` shows what is down"
GEO_VERSION: Final = 2  # of the link protocol: older brokers know no FORWARD_GEO


class _Pending(NamedTuple):
    """One batch without an answer."""

    publish: Publish
    submitted_ns: int
    future: asyncio.Future[Published]

    @property
    def wait_ms(self) -> int:
        """Return how much longer than others it may take: until its level is reached or given up."""
        level = self.publish.level
        return level.deadline_ms if level.may_wait else 0


@dataclass(slots=True)
class _Window:
    """What one region has in flight."""

    batches: int = 0
    size_bytes: int = 0


class Forwarder:
    """All forward lanes of this broker."""

    def __init__(
        self,
        links: OutgoingLinks,
        *,
        clock: Clock,
        settings: LinkSettings,
        region_name: RegionNames = unknown_region,
    ) -> None:
        self.region_name = region_name
        self.links = links
        self.clock = clock
        self.settings = settings
        self.leaders: dict[StreamKey, int] = {}  # who led it last, as far as answers said
        self._leaderless: dict[StreamKey, Outage] = {}
        self._lanes: dict[tuple[Hashable, StreamKey], _Lane] = {}
        self._windows: dict[RegionNumber, _Window] = {}
        self._lane_number = 0
        self._request_number = 0

    def forward(
        self, key: StreamKey, publish: Publish, *, region: RegionNumber, leader: int = -1
    ) -> asyncio.Future[Published]:
        """Send one batch to the leader of its home, in order within (lane, key).

        Args:
            publish: a broker that is too old for its level is not asked (PolicyViolation).
            region: the home; may be our own region. leader: its leader as far as known, -1 unknown.

        Returns:
            A future of Published or of: HomeUnreachable, Unavailable, NotHome, Busy, ... (not stored), OutcomeUnknown
            (it may be stored; it is never sent again).

        Raises:
            Busy: too much is in flight to that region.
        """
        window = self._windows.setdefault(region, _Window())
        if window.batches >= FORWARDS_IN_FLIGHT_MAX:
            raise Busy(f"{window.batches} batches are in flight to region {region}")
        size_bytes = len(publish.raw)
        if window.batches and window.size_bytes + size_bytes > FORWARD_BYTES_IN_FLIGHT_MAX:
            raise Busy(f"{window.size_bytes} bytes are in flight to region {region}")
        if leader >= 0 and key not in self.leaders:
            self._remember_leader(key, leader)
        future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        window.batches += 1
        window.size_bytes += size_bytes
        future.add_done_callback(partial(self._window_left, window, size_bytes))
        pending = _Pending(publish.kept(), self.clock.monotonic_ns(), future)
        self._lane(publish.lane, key, region).submit(self.next_request(), pending)
        return future

    def tick(self) -> None:
        """Retry what waits for a link or a leader; end what has waited too long."""
        for lane in list(self._lanes.values()):
            lane.tick()

    def link_opened(self, link: OutgoingLink) -> None:
        """Send what waited for this link."""
        for lane in list(self._lanes.values()):
            if lane.region == link.region:
                lane.pump()

    def close(self) -> None:
        """Fail everything: what was sent has an unknown outcome."""
        for lane in list(self._lanes.values()):
            lane.lose()

    def next_request(self) -> int:
        """Return a number that was never used."""
        self._request_number += 1
        return self._request_number

    def lane_idle(self, lane: _Lane) -> None:
        """Forget a lane that has nothing in flight."""
        self._lanes.pop((lane.publisher, lane.key), None)

    def leader_said(self, key: StreamKey, leader: int) -> None:
        """Follow what an answer says about the leader."""
        if leader >= 0:
            self._remember_leader(key, leader)
        else:
            self.leaders.pop(key, None)

    def led(self, key: StreamKey) -> None:
        """Note that somebody leads a stream."""
        self._leaderless.pop(key, None)

    def is_leaderless(self, key: StreamKey) -> bool:
        """Note that a broker of the home knows nobody who leads a stream; return whether that is known for long."""
        outage = self._leaderless.get(key)
        if outage is None:
            if len(self._leaderless) >= _LEADERS_REMEMBERED_MAX:
                self._leaderless.clear()
            outage = self._leaderless[key] = Outage(self.settings.leaderless_ms * _NS_PER_MS)
        now_ns = self.clock.monotonic_ns()
        outage.seen(now_ns)
        return outage.is_known(now_ns)

    def _remember_leader(self, key: StreamKey, leader: int) -> None:
        if len(self.leaders) >= _LEADERS_REMEMBERED_MAX:
            self.leaders.clear()  # a cache: the next answers fill it again
        self.leaders[key] = leader

    def _lane(self, publisher: Hashable, key: StreamKey, region: RegionNumber) -> _Lane:
        name = (publisher, key)
        lane = self._lanes.get(name)
        if lane is None:
            self._lane_number += 1
            lane = self._lanes[name] = _Lane(self, self._lane_number, publisher, key, region)
        lane.aim(region)
        return lane

    @staticmethod
    def _window_left(window: _Window, size_bytes: int, _future: asyncio.Future[Published]) -> None:
        window.batches -= 1
        window.size_bytes -= size_bytes


class _Lane:
    """The shell of one LaneCore."""

    def __init__(
        self, forwarder: Forwarder, number: int, publisher: Hashable, key: StreamKey, region: RegionNumber
    ) -> None:
        self.publisher = publisher
        self.key = key
        self.region = region  # the home, as far as this lane knows
        self._aimed_at = region  # what whoever publishes took for the home
        self._forwarder = forwarder
        self._number = number
        self._core = LaneCore()
        self._pending: dict[int, _Pending] = {}
        self._link: OutgoingLink | None = None
        self._attempt = 0
        self._redirects = 0

    def aim(self, region: RegionNumber) -> None:
        """Follow what the publisher takes for the home; the same word again does not undo what an answer said."""
        if region != self._aimed_at:
            self._aimed_at = self.region = region

    def submit(self, number: int, pending: _Pending) -> None:
        """Take one batch."""
        self._pending[number] = pending
        self._core.submit(number)
        if not self._core.is_flying and self._forwarder.links.is_unreachable(self.region):
            self.lose()
            self._settle()
        else:
            self.pump()

    def pump(self) -> None:
        """Send what waits, if the lane flows and its link is open."""
        core = self._core
        if not core.has_waiting or self._redirects > _REDIRECTS_MAX:
            return
        if not core.is_flying:
            leader = self._forwarder.leaders.get(self.key, -1)
            self._link = self._forwarder.links.for_publish(self.region, leader, self._attempt)
        link = self._link
        if link is None or not link.is_open or link.region != self.region:
            return  # another region is the home now: what is in flight to this one is answered first
        for number in core.take():
            self._send(link, number)

    def _send(self, link: OutgoingLink, number: int) -> None:
        publish = self._pending[number].publish
        entry_region, batch = RegionNumber(publish.entry_region), bytes(publish.raw)
        head = (number, self._number, self._core.generation, self.key, publish.received_ns, entry_region)
        level, knows_levels = publish.level, link.peer_version >= GEO_VERSION
        if not (level.may_wait if knows_levels else level.is_geo):
            link.ask(number, Forward(*head, batch), partial(self._answered, number))
        elif knows_levels:
            link.ask(number, ForwardGeo(*head, level, batch), partial(self._answered, number))
        else:  # refused for good: later batches of the lane, which others may store, do not wait for it
            too_old = PolicyViolation(
                f"broker {link.broker_id} runs an older version: it cannot acknowledge at {level.durability}; "
                "nothing was stored"
            )
            refusal = ForwardFailed(number, to_fault(too_old))
            asyncio.get_running_loop().call_soon(self._answered, number, refusal)

    def _answered(self, number: int, answer: Part | None) -> None:
        if number not in self._pending:
            return  # given up on before
        if isinstance(answer, Forwarded | ForwardedGeo):
            self._stored(number, answer)
        elif isinstance(answer, ForwardFailed):
            self._refused(number, answer.fault)
        else:
            self.lose()
        self._settle()

    def _stored(self, number: int, answer: Forwarded | ForwardedGeo) -> None:
        if self._link is not None:
            self._forwarder.leader_said(self.key, self._link.broker_id)
        self._forwarder.led(self.key)
        pending = self._pending.pop(number)
        self._core.stored(number)
        if not pending.future.done():
            pending.future.set_result(
                Published(
                    epoch=answer.epoch,
                    base_offset=answer.base_offset,
                    append_us=answer.append_us,
                    log_start=answer.log_start,
                    regions=(answer.regions if isinstance(answer, ForwardedGeo) else ()) or (self.region,),
                    level=answer.level if isinstance(answer, ForwardedGeo) else 1,
                    is_pending=isinstance(answer, ForwardedGeo) and answer.is_pending,
                    is_isolated=isinstance(answer, ForwardedGeo) and answer.is_isolated,
                )
            )

    def _refused(self, number: int, fault: Fault) -> None:
        error = from_fault(fault)
        if fault.code == LANE_RESET or (isinstance(error, OutOfOrderSequence) and self._core.is_retrying):
            refusal = Refusal.LANE_RESET  # a gap of this lane's own: what is before this batch goes again
        elif isinstance(error, NotLeader) and error.leader < 0 and self._forwarder.is_leaderless(self.key):
            refusal = Refusal.FAILED
            error = self._without_leader()
        elif isinstance(error, NotLeader):
            refusal = Refusal.LEADER_MOVED
            self._follow(error.leader)
        elif isinstance(error, NotHome) and error.home != self._forwarder.links.own_region:
            refusal = Refusal.LEADER_MOVED
            self._follow_home(RegionNumber(error.home))
        else:
            refusal = Refusal.FAILED if poisons_lane(error) else Refusal.REJECTED
        self._fail(self._core.refused(number, refusal), error)

    def _follow(self, leader: int) -> None:
        """Retry at once where the answer says, at the next tick when it says nothing or too often."""
        self._attempt += 1
        self._redirects += 1 if leader >= 0 else _REDIRECTS_MAX + 1
        self._forwarder.leader_said(self.key, leader)

    def _follow_home(self, home: RegionNumber) -> None:
        """Turn to another home; where the answer names none that is known, ask the same one again at the next tick."""
        self._attempt += 1
        self._redirects += 1
        self._forwarder.leader_said(self.key, -1)
        if home == self.region or not self._forwarder.links.of_region(home):
            self._redirects = _REDIRECTS_MAX + 1
        else:
            self.region = home

    def tick(self) -> None:
        """End what has waited too long, retry the rest."""
        self._redirects = 0
        oldest = next(iter(self._pending.values()), None)
        if oldest is not None:
            settings = self._forwarder.settings
            waited_ms = (self._forwarder.clock.monotonic_ns() - oldest.submitted_ns) // _NS_PER_MS
            reachable = any(link.is_open for link in self._forwarder.links.of_region(self.region))
            if waited_ms >= settings.forward_timeout_ms + oldest.wait_ms or (
                not reachable and waited_ms >= settings.dead_after_ms
            ):
                self.lose()
        self.pump()
        self._settle()

    def lose(self) -> None:
        """Give up on everything: the link or the patience is gone."""
        told = self._core.lost()
        if self._link is not None:
            for row in told:
                self._link.forget(row.batch)
        self._fail(told, None)

    def _fail(self, told: Iterable[Failed], own: GeorelayError | None) -> None:
        for row in told:
            pending = self._pending.pop(row.batch)
            if not pending.future.done():
                pending.future.set_exception(self._error(row.failure, own))

    def _error(self, failure: Failure, own: GeorelayError | None) -> GeorelayError:
        if failure is Failure.OWN and own is not None:
            return own
        if failure is Failure.BEHIND:
            return Unavailable("not stored: a batch before it on the same connection failed")
        if failure is Failure.UNKNOWN:
            return OutcomeUnknown(f"the link to the home, region {self._home_name}, broke before it answered")
        links = self._forwarder.links
        if self.region == links.own_region or any(link.is_open for link in links.of_region(self.region)):
            return self._without_leader()
        return HomeUnreachable(
            f"region {self._home_name}, the home of the partition, cannot be reached from here; {STATUS_ADVICE}, and "
            f"`georelay home failover --region {self._home_name}` moves its homes when it is lost"
        )

    def _without_leader(self) -> NotLeader:
        return NotLeader(f"no broker of region {self._home_name}, the home, leads the partition; {STATUS_ADVICE}")

    @property
    def _home_name(self) -> str:
        return self._forwarder.region_name(self.region) or str(self.region)

    def _settle(self) -> None:
        if self._core.is_idle:
            self._forwarder.lane_idle(self)
        else:
            self.pump()
