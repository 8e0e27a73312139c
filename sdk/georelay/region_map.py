"""What a client knows of the region it works with: its brokers, and who leads which partition; and the other regions.

Rule 1: an address that failed is tried last for a while. While one of the region's has failed lately, or none is known,
        the next address is tried STAGGER_S later, and the other regions soon: whoever answers first is worked with.
        Otherwise an answer is waited for: a quicker one of another region would change the region without need.
Rule 2: clients that lose a region at once do not come to the next one at once: each waits a random time first.
Rule 3: what is known may be old: brokers answer NOT_LEADER or pass on, and the client asks again.
Rule 4: who has calls open in a region that is left is told, and ends them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from georelay._pb import streams_pb2 as pb
from georelay.channels import Channels
from georelay.errors import GeorelayError, OutcomeUnknown, Retry, Unavailable, UnknownTopic
from georelay.library_log import log
from georelay.racing import Way, race
from georelay.ranking import Ranking
from georelay.refusals import error_of
from georelay.resolving import Resolver

SERVICE: Final = "/georelay.v1.Streams/"
LOCATE_TIMEOUT_S: Final = 10.0
ATTEMPT_TIMEOUT_S: Final = 5.0
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 5.0
SUSPECT_S: Final = 3.0  # for how long an address that failed is tried last
REFRESH_PERIOD_S_MIN: Final = 0.2
STAGGER_S: Final = 0.04  # measured: with 250 ms a dead first address costs 250 ms
PATIENT_S: Final = 1.0  # between two addresses of a region that works
OTHERS_AFTER_S: Final = (0.1, 0.4)  # of a region that may be lost: its other brokers come first

T = TypeVar("T")


class Route(NamedTuple):
    """Where to open a call. `broker`: the one that is wanted behind a gateway at `address`; 0: any."""

    address: str
    broker: int = 0


class RegionMap:
    """Addresses and leaders; every method may be called by any task of the loop.

    Args:
        direct: use the brokers' own addresses; False: only those that the URL gave (a gateway's, say).
    """

    def __init__(self, channels: Channels, resolver: Resolver, *, direct: bool) -> None:
        self.region = ""
        self.stays = False  # whether it is left only when it is lost
        self.on_left: list[Callable[[Collection[str], bool], None]] = []  # told what was left, and whether it is lost
        self.ranking = Ranking(regions=())
        self.is_cached = False  # whether the ranking is of a run before
        self._channels = channels
        self._resolver = resolver
        self._direct = direct
        self._bootstrap: tuple[str, ...] = ()
        self._brokers: dict[int, str] = {}
        self._topics: dict[str, pb.TopicPlaces] = {}
        self._suspect_until: dict[str, float] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._salt = random.getrandbits(64)

    # --- addresses ---------------------------------------------------------------------------------

    def candidates(self) -> list[str]:
        """Return addresses to try, the trusted ones first; brokers before what the URL gave.

        The order is this client's own and stays: one that has just created a topic asks the broker that knows it.
        """
        brokers = sorted(self._brokers.values(), key=lambda address: hash((self._salt, address)))
        known = list(dict.fromkeys([*brokers, *self._bootstrap]))
        now = time.monotonic()
        return sorted(known, key=lambda address: self._suspect_until.get(address, 0.0) > now)

    def route_to(self, topic: str, partition: int) -> Route:
        """Return where a partition is published to best: its leader, while that is known and trusted.

        Raises:
            Unavailable: no address is known.
        """
        places = self._topics.get(topic)
        leader = places.leaders[partition] if places is not None and partition < len(places.leaders) else -1
        address = self._brokers.get(leader)
        if address is not None and self._suspect_until.get(address, 0.0) <= time.monotonic():
            return Route(address)
        candidates = self.candidates()
        if not candidates:
            raise Unavailable("no broker is known; the mesh is being asked")
        return Route(candidates[0], 0 if self._direct else max(leader, 0))

    def suspect(self, address: str) -> None:
        """Note that an address failed; the leaders are asked for anew."""
        self._suspect_until[address] = time.monotonic() + SUSPECT_S
        self.refresh_soon()

    def refresh_soon(self) -> None:
        """Ask again where everything is, in the background, a few times per second at most."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_quietly(), name="locate")

    async def close(self) -> None:
        """Stop asking."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)

    # --- asking ------------------------------------------------------------------------------------

    async def ask(self, method: str, request: Any, answer: Any, *, timeout_s: float) -> Any:
        """Ask a method of Streams at any broker until it is answered; only for what is safe to repeat.

        Raises:
            GeorelayError: the last one when the time is over, or one that repeating cannot help.
        """

        async def ask_one(address: str, left_s: float) -> Any:
            return await self._channels.ask(
                address, SERVICE + method, request, answer, timeout_s=min(left_s, ATTEMPT_TIMEOUT_S)
            )

        return await self.until_answered(ask_one, timeout_s=timeout_s)

    async def until_answered(
        self, ask: Callable[[str, float], Awaitable[T]], *, timeout_s: float, follows: bool = False
    ) -> T:
        """Call `ask` with one address after the other and the seconds left, until one answers (errors as `ask`).

        A call is given up when its region is lost; with `follows` also when the client moves to another one.
        """
        deadline = time.monotonic() + timeout_s
        last: GeorelayError = Unavailable("no broker could be reached")
        backoff_s = RETRY_S
        while (left_s := deadline - time.monotonic()) > 0:
            tried: set[str] = set()
            while left_s > 0 and (address := next((a for a in self.candidates() if a not in tried), None)) is not None:
                tried.add(address)
                try:
                    return await self._unless_left(ask(address, left_s), address, follows=follows)
                except GeorelayError as error:
                    last = _remember(error)
                    if isinstance(error, Unavailable | OutcomeUnknown):
                        self.suspect(address)  # and another region is found, if that is why
                left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            try:
                self._learn(await self._locate(self._known_topics(), timeout_s=left_s))
            except GeorelayError as error:
                last = _remember(error)
            # Full jitter: clients that failed together do not come again together.
            await asyncio.sleep(min(random.uniform(0, backoff_s), max(0.0, deadline - time.monotonic())))
            backoff_s = min(2 * backoff_s, RETRY_S_MAX)
        raise last

    async def _unless_left(self, work: Awaitable[T], address: str, *, follows: bool) -> T:
        """Return what `work` returns (OutcomeUnknown: its region was left)."""
        call = asyncio.ensure_future(work)
        was_left = False

        def told(left: Collection[str], is_lost: bool) -> None:
            nonlocal was_left
            if address in left and (is_lost or follows):
                was_left = True
                call.cancel()

        self.on_left.append(told)
        try:
            return await call
        except asyncio.CancelledError:
            if not was_left:
                raise
            raise OutcomeUnknown(f"{address}: its region was left for {self.region}") from None
        finally:
            self.on_left.remove(told)

    async def locate(self, topics: Iterable[str] = (), *, create: bool = False, timeout_s: float = 30.0) -> None:
        """Learn the brokers, and the places of topics.

        Raises:
            UnknownTopic, AccessDenied and others: of the first topic that cannot be used. Unavailable and others.
        """
        request = pb.LocateRequest(topics=list(topics), create=create)
        deadline = time.monotonic() + timeout_s
        backoff_s = RETRY_S
        while True:
            try:
                answer = await self._locate(request, timeout_s=deadline - time.monotonic())
                break
            except GeorelayError as error:
                _remember(error)
                wait_s = random.uniform(0, backoff_s)
                if time.monotonic() + wait_s >= deadline:
                    raise
            await asyncio.sleep(wait_s)
            backoff_s = min(2 * backoff_s, RETRY_S_MAX)
        self._learn(answer)
        for places in answer.topics:
            if places.HasField("refusal"):
                raise error_of(places.refusal)

    async def move_to(self, region: str) -> bool:
        """Work with another region of the ranking; returns whether it answered: else nothing has changed."""
        ways = [Way(index * STAGGER_S, address) for index, address in enumerate(self.ranking.addresses_of(region))]
        try:
            answer = await self._race(ways, self._known_topics(), timeout_s=ATTEMPT_TIMEOUT_S)
        except GeorelayError as error:
            log.info("region.not_reached", region=region, error=str(error))
            return False
        self._learn(answer, is_lost=False)
        return self.region == region

    async def places(self, topic: str, *, create: bool = True, timeout_s: float = 30.0) -> pb.TopicPlaces:
        """Return the places of a topic, asked for once (errors as `locate`)."""
        if topic not in self._topics:
            await self.locate([topic], create=create, timeout_s=timeout_s)
        return self._topics[topic]

    def known_places(self, topic: str) -> pb.TopicPlaces | None:
        """Return the places of a topic that is known already."""
        return self._topics.get(topic)

    # --- finding a region --------------------------------------------------------------------------

    def _known_topics(self) -> pb.LocateRequest:
        return pb.LocateRequest(topics=list(self._topics))

    async def _locate(self, request: pb.LocateRequest, *, timeout_s: float) -> pb.LocateResponse:
        """Ask where everything is, at whichever region answers (rules 1 and 2); once."""
        kept = None if self.ranking.regions or self.region else await self._resolver.kept()
        if kept is not None:
            self.ranking, self.is_cached = kept, True
            try:
                return await self._race(self._ways(), request, timeout_s=timeout_s)
            except GeorelayError as error:  # whoever is at those addresses now: the gateway knows better
                log.info("ranking.outdated", error=str(error))
                self.ranking, self.is_cached = Ranking(regions=()), False
        if not self.ranking.regions:
            self.ranking = await self._resolver.resolve()
        try:
            return await self._race(self._ways(), request, timeout_s=timeout_s)
        except (Unavailable, OutcomeUnknown):
            self.ranking = Ranking(regions=())  # nobody answered: the mesh is asked anew
            raise

    def _ways(self) -> list[Way]:
        """Return the addresses to try and when: those of the region, then those of the others."""
        here = self.candidates()
        now = time.monotonic()
        is_doubtful = any(self._suspect_until.get(address, 0.0) > now for address in here)
        stagger_s = STAGGER_S if is_doubtful or not here else PATIENT_S
        ways = [Way(index * stagger_s, address) for index, address in enumerate(here)]
        others = [row for row in self.ranking.regions if not here or row.name not in ("", self.region)]
        longest = max((len(row.grpc) for row in others), default=0)
        # One address of each region, then the next one of each: a region is dead more often than all but one broker.
        turns = [row.grpc[turn] for turn in range(longest) for row in others if turn < len(row.grpc)]
        after_s = 0.0 if not here else random.uniform(*OTHERS_AFTER_S) if is_doubtful else ways[-1].after_s + PATIENT_S
        ways += [Way(after_s + index * STAGGER_S, address) for index, address in enumerate(turns)]
        return sorted(ways, key=lambda way: way.after_s)

    async def _race(self, ways: list[Way], request: pb.LocateRequest, *, timeout_s: float) -> pb.LocateResponse:
        async def ask_one(address: str) -> pb.LocateResponse:
            answer: pb.LocateResponse = await self._channels.ask(
                address,
                SERVICE + "Locate",
                request,
                pb.LocateResponse,
                timeout_s=min(max(timeout_s, 0.001), ATTEMPT_TIMEOUT_S),
            )
            return answer

        return await race(ways, ask_one, failed=self._failed)

    def _failed(self, address: str, _: GeorelayError) -> None:
        self._suspect_until[address] = time.monotonic() + SUSPECT_S

    def _learn(self, answer: pb.LocateResponse, *, is_lost: bool = True) -> None:
        before = {*self._brokers.values(), *self._bootstrap}
        is_left = bool(self.region) and answer.region != self.region
        if is_left:
            log.info("region.changed", before=self.region, after=answer.region)
        self._bootstrap = self.ranking.addresses_of(answer.region) or self.ranking.addresses_of("") or self._bootstrap
        self.region = answer.region
        self._asked_at = time.monotonic()
        if self._direct:
            self._brokers = {row.id: row.grpc for row in answer.brokers if row.grpc and row.alive}
        for places in answer.topics:
            if places.HasField("refusal"):
                self._topics.pop(places.name, None)
            else:
                self._topics[places.name] = places
        if is_left:
            left = before - {*self._brokers.values(), *self._bootstrap}
            for told in list(self.on_left):
                told(left, is_lost)

    async def _refresh_quietly(self) -> None:
        wait_s = self._asked_at + REFRESH_PERIOD_S_MIN - time.monotonic()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        self._asked_at = time.monotonic()
        try:
            await self.locate(list(self._topics), timeout_s=LOCATE_TIMEOUT_S)
        except UnknownTopic:
            return  # of one of them: who publishes to it is told
        except GeorelayError as error:
            log.warning("locate.failed", error=str(error))


def _remember(error: GeorelayError) -> GeorelayError:
    """Return an error that may pass by itself, raise any other."""
    if error.retry in (Retry.LATER, Retry.REFRESH) and not isinstance(error, UnknownTopic):
        return error
    raise error
