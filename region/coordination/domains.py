"""Whose coordinators answer for a name: the region's own, or those of another region whose home was moved.

A domain is what one region's clients see: its groups, transactional ids and queues, kept in the coordinator streams
that this region began (their origin). A domain is served by the region that is home of the stream. Every region has
mirrors of all domains, so it knows every name.

Rule 1: a name that several domains at home here know belongs to the one with the highest claim, to the own one if none
        is higher.
Rule 2: a name that none of them knows, and a domain knows that was moved at any time, belongs to that one wherever its
        home is now: its clients may have come here with it, and would begin a second group of the same name.
Rule 3: a name that none of them knows, and the domain of a region knows that does not answer, is nobody's for now: the
        region comes back, or its domain is moved. Beginning anew would forget where the group stands.
Rule 4: else a name that is not known begins in the own domain, also when another region uses it: a group is of one
        region. Where the own domain is at home elsewhere, its clients are led there, and the name is expected there.
Rule 5: what a domain knows is read from the replica on this broker, where there is one; else the leader in this region
        is asked and the answer is kept for a moment. A new home says nothing before its epoch has begun here.
Rule 6: what is kept about a stream is in the domain of the stream's own beginning, whoever asks: no name is looked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from georelay.errors import CoordinatorLoading, GeorelayError
from georelay.ids import RegionNumber, StreamKey
from georelay.limits import REGIONS_MAX
from mesh.home.home_row import HomeRow
from region.controller.topic import TopicView
from region.coordination.coordinator_stream import CoordinatorStream
from region.coordination.lookups import Lookups
from region.coordination.part import Part

log = structlog.get_logger()

CLAIMS_KEPT_MAX: Final = 20_000
CLAIM_KEPT_S: Final = 5.0
EXPECTED_S: Final = 60.0  # longer than a client takes from FindCoordinator to its first request
HEARD_KEPT_S: Final = 1.0

FindStream = Callable[[StreamKey], CoordinatorStream | None]
AskClaim = Callable[[StreamKey, Part, str], Awaitable[int]]
Ping = Callable[[RegionNumber], Awaitable[None]]
_Asked = tuple[StreamKey, Part, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCoordinator:
    """A broker of another region that serves a domain of this one, as clients reach it."""

    broker: int
    kafka_host: str
    kafka_port: int


class Domains:
    """Finds the domain of a name.

    Args:
        home_row: control's newest word about the home of a stream, None where it never moved.
        origins: every region that began streams, those that left too. has_left: whether a region left.
        stream: the replica on this broker. ask_claim: asks the leader of a stream in this region; raises GeorelayError.
        ping: returns when a region answers; raises GeorelayError.
    """

    def __init__(
        self,
        *,
        region: RegionNumber,
        home_row: Callable[[StreamKey], HomeRow | None],
        origins: Callable[[], Sequence[RegionNumber]],
        has_left: Callable[[RegionNumber], bool],
        stream: FindStream,
        ask_claim: AskClaim,
        ping: Ping,
    ) -> None:
        self._region = region
        self._home_row = home_row
        self._origins = origins
        self._has_left = has_left
        self._stream = stream
        self._ask_claim = ask_claim
        self._ping = ping
        self._claims = Lookups(self._ask, kept_max=CLAIMS_KEPT_MAX, kept_s=CLAIM_KEPT_S)
        self._heard = Lookups(self._answers, kept_max=REGIONS_MAX, kept_s=HEARD_KEPT_S)
        self._expected: dict[_Asked, float] = {}  # names that begin in a domain of another region, until a loop time

    def home_of(self, key: StreamKey) -> RegionNumber:
        """Return the region that serves a coordinator."""
        row = self._home_row(key)
        return key.origin if row is None else row.home

    def was_moved(self, key: StreamKey) -> bool:
        """Return whether the home of a coordinator was ever moved."""
        row = self._home_row(key)
        return row is not None and len(row.homes) > 1

    def own(self, view: TopicView, partition: int) -> StreamKey:
        """Return the coordinator that this region began."""
        return StreamKey(view.topic_id, self._region, partition)

    def here(self, view: TopicView, partition: int) -> list[StreamKey]:
        """Return the coordinators of a partition that are at home in this region, the own one first."""
        keys = [self.own(view, partition), *self._foreign(view, partition)]
        return [key for key in keys if self.home_of(key) == self._region]

    def find(self, view: TopicView, partition: int, part: Part, name: str) -> StreamKey:
        """Return the coordinator of a name; its home may be another region.

        Raises:
            CoordinatorLoading: not known on this broker yet, or nobody's for now (rule 3).
        """
        own = self.own(view, partition)
        foreign = self._foreign(view, partition)
        claims = {key: claim for key in foreign if (claim := self._claim(key, part, name))}
        if not claims:
            return next((key for key in foreign if self._is_expected((key, part, name))), own)
        known = self._claim(own, part, name) if self.home_of(own) == self._region else 0
        here = [key for key in claims if self.home_of(key) == self._region and claims[key] > known]
        if here:
            return max(here, key=claims.__getitem__)
        if known:
            return own
        moved = [key for key in claims if self.was_moved(key)]
        if moved:
            return max(moved, key=claims.__getitem__)
        for key in claims:
            if not self._heard.find(key.origin):
                text = f"'{name}' is at home in region {key.origin}, which does not answer"
                raise CoordinatorLoading(f"{text}: it goes on there, or here after 'georelay home failover'")
        return own

    def begun_in(self, view: TopicView, partition: int, origin: RegionNumber) -> StreamKey:
        """Return the coordinator that a region began; the own one for a region that left with its own."""
        key = StreamKey(view.topic_id, origin, partition)
        return self.own(view, partition) if self._has_left(origin) and not self.was_moved(key) else key

    def expect(self, key: StreamKey, part: Part, name: str) -> None:
        """Let a name that nobody knows begin in a domain of another region: its client is being led here."""
        now_s = asyncio.get_running_loop().time()
        asked = (key, part, name)
        self._expected.pop(asked, None)
        self._expected[asked] = now_s + EXPECTED_S
        while len(self._expected) > CLAIMS_KEPT_MAX or next(iter(self._expected.values())) <= now_s:
            del self._expected[next(iter(self._expected))]

    def close(self) -> None:
        """Ask no more."""
        self._claims.close()
        self._heard.close()

    def _is_expected(self, asked: _Asked) -> bool:
        return self._expected.get(asked, 0.0) > asyncio.get_running_loop().time()

    def _foreign(self, view: TopicView, partition: int) -> list[StreamKey]:
        origins = (origin for origin in self._origins() if origin != self._region)
        keys = (StreamKey(view.topic_id, origin, partition) for origin in origins)
        return [key for key in keys if not self._has_left(key.origin) or self.was_moved(key)]

    def _claim(self, key: StreamKey, part: Part, name: str) -> int:
        stream = self._stream(key)
        if stream is None:
            return self._claims.find((key, part, name))
        if stream.is_home and stream.epoch < stream.decided:
            raise CoordinatorLoading(f"epoch {stream.decided} of coordinator {key} has not begun here yet")
        return stream.parts[part].claim(name) if part in stream.parts else 0

    async def _ask(self, asked: _Asked) -> int:
        return await self._ask_claim(*asked)

    async def _answers(self, region: RegionNumber) -> int:
        try:
            await self._ping(region)
        except GeorelayError as error:
            log.debug("coordinators.region_silent", region=region, reason=str(error))
            return 0
        return 1
