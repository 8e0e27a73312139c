"""How a call finds the broker that may serve it: the controller leader of the own region, or another region.

Rule 1: a call is forwarded at most HOPS_MAX times, so brokers that disagree about the leader cannot play ping-pong.
Rule 2: every wait is bounded; a call whose answer did not come in time has an unknown outcome.
Rule 3: retried is only what is safe to do twice; whoever asks for a retry has made it so.
Rule 4: once the outcome of an attempt is unknown only success makes it known: a later attempt that did nothing says
        nothing about the earlier one, and "not stored" is never said of what may be done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from georelay.errors import Busy, GeorelayError, NotLeader, Outcome, OutcomeUnknown, Unavailable
from georelay.fields import JsonObject
from georelay.ids import BrokerId, RaftIndex, RegionNumber
from region.controller import answers
from region.controller.topic import TopicDefaults
from region.controller.topology import Topology

HOPS_MAX: Final = 2
PASSING: Final = (NotLeader, Unavailable, Busy, OutcomeUnknown)  # gone after the next election, at the latest
T = TypeVar("T")


class Propose(Protocol):
    """Commits one command of the controller group."""

    async def __call__(self, command: bytes, /) -> RaftIndex:
        """Return the index once the command is applied on this broker.

        Raises NotLeader, Busy or Unavailable (not stored), OutcomeUnknown (it may be applied later).
        """
        ...


class Request(Protocol):
    """Carries a call to `ControllerService.handle` of another broker."""

    async def __call__(
        self, *, region: RegionNumber, broker: BrokerId | None, method: str, body: JsonObject
    ) -> JsonObject:
        """Return the answer. `broker` None means any reachable one of that region.

        Raises Unavailable or HomeUnreachable (nothing was sent), OutcomeUnknown (the answer was lost).
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Times and defaults of a controller.

    Args:
        auto_create: an unknown topic is created with defaults when somebody publishes or subscribes to it.
        topic_defaults: of this broker, for topics that its clients ask for.
        pull_interval_s: how often definitions are asked for; a hint makes it sooner.
        request_timeout_s: for one call to one broker.
        apply_timeout_s: for a whole operation, elections and retries included, and again until applied here.
        retry_delay_s: between two tries.
        producer_block: producer ids fetched at once, per broker.
        auto_join: a broker of this region's number that nobody added may join by registering.
        replace_absent_after_s: a broker that was silent for so long is absent, and others take over; 0: never.
        moves_in_flight_max: groups that copy their log to another broker at a time.
        disk_claim_s: how long a broker goes on claiming its id with another disk before it gives up.
    """

    auto_create: bool = True
    topic_defaults: TopicDefaults = field(default_factory=TopicDefaults)
    pull_interval_s: float = 1.0
    request_timeout_s: float = 5.0
    apply_timeout_s: float = 10.0
    retry_delay_s: float = 0.1
    producer_block: int = 1_000
    auto_join: bool = False
    replace_absent_after_s: float = 1_800.0
    moves_in_flight_max: int = 4
    disk_claim_s: float = 10.0


class Route:
    """The way to the own region's controller leader and to other regions."""

    def __init__(
        self,
        *,
        topology: Topology,
        request: Request,
        is_leader: Callable[[], bool],
        leader_id: Callable[[], int],
        settings: ControllerSettings,
    ) -> None:
        self._topology = topology
        self._request = request
        self._leader_id = leader_id
        self._settings = settings
        self.is_leader = is_leader

    def knows_leader(self) -> bool:
        """Return whether this broker leads or knows who does."""
        return self.is_leader() or self._leader_id() > 0

    async def to_leader(
        self, method: str, body: JsonObject, serve: Callable[[JsonObject], Awaitable[JsonObject]], *, hops: int = 0
    ) -> JsonObject:
        """Serve the call here when this broker leads, else send it to the leader.

        Raises:
            Unavailable: no leader is known.
            NotLeader: forwarded too often already.
        """
        if self.is_leader():
            return await serve(body)
        leader = self._leader_id()
        if leader <= 0:
            raise Unavailable(f"region {self._topology.own.name} has no controller leader at the moment")
        if hops >= HOPS_MAX:
            raise NotLeader(f"{method} was forwarded {hops} times and met no leader", leader=leader)
        return await self.to_region(self._topology.region, method, {**body, "hops": hops + 1}, broker=BrokerId(leader))

    async def to_region(
        self, region: RegionNumber, method: str, body: JsonObject, *, broker: BrokerId | None = None
    ) -> JsonObject:
        """Send the call and return its result, or raise the other broker's error."""
        try:
            async with asyncio.timeout(self._settings.request_timeout_s):
                answer = await self._request(region=region, broker=broker, method=method, body={"hops": 0, **body})
        except TimeoutError as error:
            raise OutcomeUnknown(f"{method}: no answer within {self._settings.request_timeout_s:g} s") from error
        return answers.result_of(answer)

    async def retrying(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat `attempt` over passing errors until it succeeds or apply_timeout_s is over.

        Raises:
            OutcomeUnknown: some attempt was not answered. Others: what the last one raised.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.apply_timeout_s
        lost: GeorelayError | None = None
        while True:
            try:
                return await attempt()
            except GeorelayError as error:
                lost = error if error.outcome is Outcome.UNKNOWN else lost
                if not isinstance(error, PASSING) or loop.time() + self._settings.retry_delay_s > deadline:
                    if lost is None or lost is error:
                        raise
                    raise OutcomeUnknown(f"it may be done: {lost}; asked again: {error}") from error
            await asyncio.sleep(self._settings.retry_delay_s)
