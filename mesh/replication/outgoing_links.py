"""The links this broker dials, found by broker and by region."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from georelay.clock import Clock
from georelay.ids import BrokerId, RegionNumber
from georelay.outage_core import Outage
from mesh.listening.addresses_core import Source
from mesh.replication.frames import ClockAnswer
from mesh.replication.link import Dial
from mesh.replication.link_counters import LinkCounters
from mesh.replication.link_endpoint import RegionNames, unknown_region
from mesh.replication.mirror_session import MirrorSession
from mesh.replication.outgoing_link import OutgoingLink
from mesh.replication.settings import BrokerAddress, LinkSettings, MeshIdentity

_NS_PER_MS: Final = 1_000_000


class OutgoingLinks:
    """One OutgoingLink per other broker; a link is dialled from the first time it is wanted."""

    def __init__(
        self,
        brokers: Mapping[RegionNumber, Sequence[BrokerAddress]],
        *,
        identity: MeshIdentity,
        clock: Clock,
        settings: LinkSettings,
        dial: Dial,
        counters: LinkCounters | None = None,
        region_name: RegionNames = unknown_region,
    ) -> None:
        self.on_opened: list[Callable[[OutgoingLink], None]] = []
        self.on_clock_answer: Callable[[BrokerId, ClockAnswer], None] | None = None
        self.own_region = identity.region_number
        self._me = identity.broker_id
        self._clock = clock
        self._patience_ns = settings.dead_after_ms * _NS_PER_MS
        self._outages: dict[RegionNumber, Outage] = {}
        self._make = partial(
            OutgoingLink,
            identity=identity,
            clock=clock,
            settings=settings,
            dial=dial,
            opened=self._link_opened,
            clock_answered=self._clock_answered,
            counters=counters,
            region_name=region_name,
        )
        self._by_region: dict[RegionNumber, list[OutgoingLink]] = {}
        self._by_broker: dict[BrokerId, OutgoingLink] = {}
        self._waiting: set[asyncio.Future[None]] = set()
        self._openings = 0
        for region, targets in brokers.items():
            self.know(region, targets, Source.CONFIGURATION)

    def know(self, region: RegionNumber, targets: Sequence[BrokerAddress], source: Source) -> None:
        """Learn where brokers of a region are reached; another address of one is dialled when the one in use fails."""
        links = self._by_region.setdefault(region, [])
        for target in targets:
            known = self._by_broker.get(target.broker_id)
            if known is not None:
                known.addresses.tell(target.address, source)
            elif target.broker_id != self._me:
                link = self._by_broker[target.broker_id] = self._make(target, source)
                links.append(link)

    def forget(self, region: RegionNumber) -> None:
        """Close the links to a region for good."""
        self._outages.pop(region, None)
        for link in self._by_region.pop(region, []):
            self._by_broker.pop(link.broker_id, None)
            link.close()

    def addresses(self) -> dict[BrokerId, str]:
        """Return "host:port" of every broker that is known, this one left out."""
        return {broker: link.addresses.current for broker, link in self._by_broker.items()}

    def all(self) -> Sequence[OutgoingLink]:
        """Return every link, opened or not."""
        return list(self._by_broker.values())

    def of_region(self, region: RegionNumber) -> Sequence[OutgoingLink]:
        """Return the links to the brokers of a region, in the order of the configuration."""
        return self._by_region.get(region, ())

    def to_broker(self, broker: BrokerId | int) -> OutgoingLink | None:
        """Return the link to one broker, None when it is unknown or ourselves."""
        return self._by_broker.get(BrokerId(broker))

    def for_session(self, session: MirrorSession, hint: int) -> OutgoingLink | None:
        """Return an open link for a mirror session: to `hint`, else to the next broker of the home in turn."""
        hinted = self.to_broker(hint)
        if hinted is not None and hinted.region == session.region:
            hinted.want()
            if hinted.is_open:
                return hinted
            if hinted.may_open:
                return None
        links = self.of_region(session.region)
        if not links:
            return None
        turn = links[session.attempts % len(links)]
        session.attempts += 1
        turn.want()
        return turn if turn.is_open else next((link for link in links if link.is_open), None)

    def for_publish(self, region: RegionNumber, leader: int, attempt: int) -> OutgoingLink | None:
        """Return an open link for a forward lane: to the leader, else to any broker of the region; None: wait."""
        hinted = self.to_broker(leader)
        if hinted is not None and hinted.region == region:
            hinted.want()
            if hinted.is_open:
                return hinted
            if hinted.may_open:
                return None
        links = self.of_region(region)
        for link in links:
            link.want()
        opened = [link for link in links if link.is_open]
        return opened[attempt % len(opened)] if opened else None

    async def wait_opened(self, timeout_s: float) -> None:
        """Return when any link opens, at the latest after `timeout_s`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait([future], timeout=timeout_s)
        finally:
            self._waiting.discard(future)

    def tick(self) -> None:
        """Dial what is due, keep the rest alive, and see which regions are not reached."""
        for link in list(self._by_broker.values()):
            link.tick()
        now_ns = self._clock.monotonic_ns()
        for region, links in self._by_region.items():
            if any(link.is_open for link in links):
                self._outages.pop(region, None)
            elif any(link.is_wanted for link in links):
                self._outages.setdefault(region, Outage(self._patience_ns)).seen(now_ns)

    def is_unreachable(self, region: RegionNumber) -> bool:
        """Return whether all links to a region were dialled in vain for dead_after_ms: nobody need wait for one."""
        outage = self._outages.get(region)
        if outage is None or any(link.is_open for link in self.of_region(region)):
            return False
        return outage.is_known(self._clock.monotonic_ns())

    def close(self) -> None:
        """Close every link for good."""
        for link in self._by_broker.values():
            link.close()

    def _link_opened(self, link: OutgoingLink) -> None:
        self._openings += 1
        link.life = self._openings
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        for callback in self.on_opened:
            callback(link)

    def _clock_answered(self, broker: BrokerId, answer: ClockAnswer) -> None:
        if self.on_clock_answer is not None:
            self.on_clock_answer(broker, answer)
