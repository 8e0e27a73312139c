"""What a client knows of the region it works with: its brokers, and who leads which partition.

Rule 1: an address that failed is tried last for a while; when every one has failed, the mesh is asked anew, and the
        client goes on in the region that is nearest now.
Rule 2: what is known may be old: brokers answer NOT_LEADER or pass on, and the client asks again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from georelay._pb import streams_pb2 as pb
from georelay.channels import Channels
from georelay.errors import GeorelayError, OutcomeUnknown, Retry, Unavailable, UnknownTopic
from georelay.library_log import log
from georelay.refusals import error_of
from georelay.resolving import Resolver

SERVICE: Final = "/georelay.v1.Streams/"
LOCATE_TIMEOUT_S: Final = 10.0
ATTEMPT_TIMEOUT_S: Final = 5.0
RETRY_S: Final = 0.1
SUSPECT_S: Final = 3.0  # for how long an address that failed is tried last
REFRESH_PERIOD_S_MIN: Final = 0.2

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

    async def until_answered(self, ask: Callable[[str, float], Awaitable[T]], *, timeout_s: float) -> T:
        """Call `ask` with one address after the other and the seconds left, until one answers (errors as `ask`)."""
        deadline = time.monotonic() + timeout_s
        last: GeorelayError = Unavailable("no broker could be reached")
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                if not self._bootstrap:
                    await self._resolve()
            except GeorelayError as error:
                last = _remember(error)
            for address in self.candidates():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                try:
                    return await ask(address, left_s)
                except GeorelayError as error:
                    last = _remember(error)
                    if isinstance(error, Unavailable | OutcomeUnknown):
                        self._suspect_until[address] = time.monotonic() + SUSPECT_S
            self._bootstrap = ()  # nobody answered: ask the mesh anew
            await asyncio.sleep(min(RETRY_S, max(0.0, deadline - time.monotonic())))
        raise last

    async def locate(self, topics: Iterable[str] = (), *, create: bool = False, timeout_s: float = 30.0) -> None:
        """Learn the brokers, and the places of topics.

        Raises:
            UnknownTopic, AccessDenied and others: of the first topic that cannot be used. Unavailable and others.
        """
        request = pb.LocateRequest(topics=list(topics), create=create)
        answer: pb.LocateResponse = await self.ask("Locate", request, pb.LocateResponse, timeout_s=timeout_s)
        self._learn(answer)
        for places in answer.topics:
            if places.HasField("refusal"):
                raise error_of(places.refusal)

    async def places(self, topic: str, *, create: bool = True, timeout_s: float = 30.0) -> pb.TopicPlaces:
        """Return the places of a topic, asked for once (errors as `locate`)."""
        if topic not in self._topics:
            await self.locate([topic], create=create, timeout_s=timeout_s)
        return self._topics[topic]

    def known_places(self, topic: str) -> pb.TopicPlaces | None:
        """Return the places of a topic that is known already."""
        return self._topics.get(topic)

    def _learn(self, answer: pb.LocateResponse) -> None:
        if self.region and answer.region != self.region:
            log.info("region.changed", before=self.region, after=answer.region)
        self.region = answer.region
        self._asked_at = time.monotonic()
        if self._direct:
            self._brokers = {row.id: row.grpc for row in answer.brokers if row.grpc and row.alive}
        for places in answer.topics:
            if places.HasField("refusal"):
                self._topics.pop(places.name, None)
            else:
                self._topics[places.name] = places

    async def _resolve(self) -> None:
        regions = await self._resolver.resolve()
        self._bootstrap = regions[0].grpc
        if self.region and regions[0].name not in ("", self.region):
            self._brokers = {}  # those of the region that was left

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
