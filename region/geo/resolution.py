"""What became of a record, asked by its position in any region and answered by the leader of its home.

Rule 1: a question is passed on at most HOPS_MAX times: to the home region, and there to the leader.
Rule 2: it may wait until a level is reached; its answer is never more than is true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from georelay.durability import Durability
from georelay.errors import BadRequest, NotLeader, PolicyViolation, Unavailable, UnknownTopic
from georelay.fields import INT64_MAX, FieldError, Fields, integers
from georelay.ids import REGION_NUMBER_MAX, BrokerId, Epoch, Offset, RegionNumber, StreamKey
from georelay.limits import REGIONS_MAX
from region.geo.stream_geo import Holders, StreamGeo

RESOLVE_METHOD: Final = "geo.resolve"
HOPS_MAX: Final = 2
WAIT_MS_MAX: Final = 30_000
ANSWER_S: Final = 5.0  # what an answer may take beyond its waiting
JsonObject = Mapping[str, Any]


class ResolvedStream(Protocol):
    """The part of a hosted stream that is asked."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads it."""

    @property
    def geo(self) -> StreamGeo | None:
        """Who counts regions."""


class AskBroker(Protocol):
    """Carries one request to a broker (None: any) of a region; raises what the other end raised."""

    async def __call__(
        self, *, region: RegionNumber, broker: BrokerId | None, method: str, body: JsonObject, timeout_s: float
    ) -> dict[str, Any]:
        """Return the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A position, and the level to wait for."""

    key: StreamKey
    epoch: Epoch
    offset: Offset
    durability: Durability = Durability.REGION
    wait_ms: int = 0

    def to_json(self, hops: int) -> dict[str, Any]:
        """Return the body of a request that was passed on `hops` times."""
        return {
            "topic_id": self.key.topic_id.hex(),
            "origin": self.key.origin,
            "partition": self.key.partition,
            "epoch": self.epoch,
            "offset": self.offset,
            "regions": self.durability.regions,
            "wait_ms": self.wait_ms,
            "hops": hops,
        }

    @classmethod
    def from_json(cls, body: JsonObject) -> tuple[Question, int]:
        """Return a question and how often it was passed on. Raises BadRequest."""
        try:
            fields = Fields(dict(body), RESOLVE_METHOD)
            key = StreamKey(
                fields.blob("topic_id", size_bytes=16),
                RegionNumber(fields.integer("origin", low=0, high=REGION_NUMBER_MAX)),
                fields.integer("partition", low=0, high=2**31 - 1),
            )
            question = cls(
                key=key,
                epoch=Epoch(fields.integer("epoch", low=0, high=2**32 - 1)),
                offset=Offset(fields.integer("offset", low=0, high=INT64_MAX)),
                durability=Durability.of_wire(fields.integer("regions", low=-2, high=REGIONS_MAX)),
                wait_ms=fields.integer("wait_ms", low=0, high=WAIT_MS_MAX),
            )
            hops = fields.integer("hops", low=1, high=HOPS_MAX)
            fields.done()
        except FieldError as error:
            raise BadRequest(str(error)) from error
        return question, hops


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Who has the record, and whether those are as many as were asked about."""

    holders: Holders
    is_reached: bool

    def to_json(self) -> dict[str, Any]:
        """Return the body of an answer."""
        return {
            "regions": list(self.holders.regions),
            "level": self.holders.level,
            "is_lost": self.holders.is_lost,
            "epoch": self.holders.epoch,
            "is_reached": self.is_reached,
        }

    @classmethod
    def from_json(cls, body: JsonObject) -> Resolved:
        """Read an answer. Raises FieldError."""
        fields = Fields(dict(body), RESOLVE_METHOD)
        rows = fields.items("regions", count_max=REGIONS_MAX)
        regions = integers(rows, "regions", low=1, high=REGION_NUMBER_MAX)
        resolved = cls(
            holders=Holders(
                regions=tuple(RegionNumber(region) for region in regions),
                level=fields.integer("level", low=0, high=REGIONS_MAX),
                is_lost=fields.flag("is_lost"),
                epoch=Epoch(fields.integer("epoch", low=0, high=2**32 - 1)),
            ),
            is_reached=fields.flag("is_reached"),
        )
        fields.done()
        return resolved


class Resolver:
    """One broker's part in answering.

    Args:
        hosted: the stream when a replica of it is on this broker.
        home_of: the home region of a stream, None for an unknown one.
        leader_of: the leader of a stream in this region, -1 while unknown.
    """

    def __init__(
        self,
        *,
        region: RegionNumber,
        hosted: Callable[[StreamKey], ResolvedStream | None],
        home_of: Callable[[StreamKey], RegionNumber | None],
        leader_of: Callable[[StreamKey], int],
        ask: AskBroker,
    ) -> None:
        self._region = region
        self._hosted = hosted
        self._home_of = home_of
        self._leader_of = leader_of
        self._ask = ask

    async def resolve(self, question: Question, *, hops: int = 0) -> Resolved:
        """Return who has a record, now or when enough have it.

        Raises:
            UnknownTopic; OffsetOutOfRange: nothing was ever committed there; PolicyViolation: more regions than hold
            the topic; NotLeader, HomeUnreachable, Unavailable: ask again.
        """
        key = question.key
        home = self._home_of(key)
        if home is None:
            raise UnknownTopic(f"stream {key} is unknown here")
        stream = self._hosted(key)
        if home == self._region and stream is not None and stream.is_leader:
            if stream.geo is None:
                raise PolicyViolation("nobody counts the regions that have these records")
            holders, is_reached = await stream.geo.resolve(
                question.epoch, question.offset, question.durability, wait_ms=question.wait_ms
            )
            return Resolved(holders=holders, is_reached=is_reached)
        if hops >= HOPS_MAX:
            raise NotLeader(f"the question about {key} was passed on {hops} times and met no leader")
        leader: int | None = None
        if home == self._region:
            leader = self._leader_of(key)
            if leader <= 0:
                raise NotLeader(f"{key} has no leader yet", leader=-1)
        answer = await self._ask(
            region=home,
            broker=None if leader is None else BrokerId(leader),
            method=RESOLVE_METHOD,
            body=question.to_json(hops + 1),
            timeout_s=ANSWER_S + question.wait_ms / 1000,
        )
        try:
            return Resolved.from_json(answer)
        except FieldError as error:
            raise Unavailable(f"region {home} answered {RESOLVE_METHOD} with something else: {error}") from error

    async def serve(self, body: JsonObject) -> dict[str, Any]:
        """Answer another broker (BadRequest: a body that is no question; others as `resolve`)."""
        question, hops = Question.from_json(body)
        return (await self.resolve(question, hops=hops)).to_json()
