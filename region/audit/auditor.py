"""Compares the streams of this mesh, a page at a time: one request per round and region, for all streams of the page.

Rule 1: a page is compared as a whole: rounds grow with the logarithm of the longest log that differs, not with streams.
Rule 2: a region that does not answer is left out of the page and named in every verdict: it is never taken for equal.
Rule 3: nothing is kept between pages; whoever wants more asks for what follows the last stream of this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from georelay.errors import BadRequest, Busy, GeorelayError, Unavailable, UnknownTopic
from georelay.fields import FieldError, JsonObject
from georelay.ids import RegionNumber, StreamKey
from region.audit.agent import AuditAgent
from region.audit.audit_core import StreamAudit
from region.audit.questions import (
    DEEP_METHOD,
    DIGESTS_METHOD,
    STREAMS_MAX,
    DeepAsked,
    DeepPiece,
    DigestsAsked,
    deep_json,
    digests_json,
    read_answers,
    read_piece,
)
from region.audit.values import StreamVerdict, Told

PAGES_AT_ONCE: Final = 2
REGION_TIMEOUT_S: Final = 6.0  # above the agent's own
DEEP_TIMEOUT_S: Final = 25.0
ROUNDS_MAX: Final = 100  # 2^63 offsets take 21, with three tries; more is our own bug


class AskRegion(Protocol):
    """Carries one request to any broker of another region."""

    async def __call__(
        self, region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float
    ) -> Mapping[str, Any]:
        """Return the answer; raises GeorelayError."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StreamName:
    """A stream as people name it; in this order they are compared.

    Args:
        topic: plain name of the topic. origin: 0 with one home, else number of the region whose stream it is.
    """

    topic: str
    origin: int
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStream:
    """A stream to compare, and its home as far as is known here."""

    name: StreamName
    key: StreamKey
    home: RegionNumber


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage:
    """Verdicts in the order of names; `is_last`: no stream follows. `total`: streams on all pages."""

    verdicts: tuple[tuple[StreamName, StreamVerdict], ...]
    is_last: bool
    total: int
    requests: int


class Auditor:
    """Asks all regions.

    Args:
        streams: those of a topic, of all with None; UnknownTopic.
        regions: numbers of the regions that store topics.
        ask: asks another region; the own one is asked without a link.
    """

    def __init__(
        self,
        *,
        own: RegionNumber,
        agent: AuditAgent,
        streams: Callable[[str | None], Iterable[NamedStream]],
        regions: Callable[[], Sequence[RegionNumber]],
        ask: AskRegion,
    ) -> None:
        self._own = own
        self._agent = agent
        self._streams = streams
        self._regions = regions
        self._ask = ask
        self._running = 0

    async def page(
        self,
        topic: str | None,
        *,
        after: StreamName | None = None,
        limit: int = STREAMS_MAX,
        may: Callable[[str], bool] = lambda _topic: True,
    ) -> AuditPage:
        """Compare up to `limit` (1..STREAMS_MAX) streams that follow `after`, of topics that the caller may describe.

        Raises:
            UnknownTopic. Busy: too many audits run on this broker.
        """
        named = sorted((row for row in self._streams(topic) if may(row.name.topic)), key=lambda row: row.name)
        left = [row for row in named if after is None or row.name > after]
        if self._running >= PAGES_AT_ONCE:
            raise Busy(f"{self._running} audits run on this broker already")
        self._running += 1
        try:
            some = left[: max(1, min(limit, STREAMS_MAX))]
            verdicts, requests = await self._compared(some)
        finally:
            self._running -= 1
        return AuditPage(verdicts=verdicts, is_last=len(left) <= len(some), total=len(named), requests=requests)

    async def _compared(
        self, streams: Sequence[NamedStream]
    ) -> tuple[tuple[tuple[StreamName, StreamVerdict], ...], int]:
        regions = self._regions()
        audits = [(row.name, StreamAudit(row.key, home=row.home, regions=regions)) for row in streams]
        requests = 0
        for _ in range(ROUNDS_MAX):
            wanted: dict[RegionNumber, list[DigestsAsked]] = {}
            for _, audit in audits:
                for region, at in audit.wanted().items():
                    wanted.setdefault(region, []).append(DigestsAsked(key=audit.key, at=at))
            if not wanted:
                break
            requests += len(wanted)
            told = await asyncio.gather(*(self._ask_region(region, rows) for region, rows in wanted.items()))
            by_region = dict(zip(wanted, told, strict=True))
            for _, audit in audits:
                if asked := audit.wanted():
                    audit.told({region: by_region[region][audit.key] for region in asked})
        return tuple((name, audit.verdict()) for name, audit in audits), requests

    async def _ask_region(self, region: RegionNumber, rows: Sequence[DigestsAsked]) -> dict[StreamKey, Told]:
        if region == self._own:
            return await self._agent.views(rows)
        missing: GeorelayError = Unavailable(f"region {region} left streams out of its answer")
        told: Mapping[StreamKey, Told] = {}
        try:
            answer = await self._ask(region, DIGESTS_METHOD, digests_json(rows), timeout_s=REGION_TIMEOUT_S)
            told = read_answers(answer, asked=rows)
        except BadRequest as error:
            missing = Unavailable(f"region {region} cannot be audited yet: {error}")
        except GeorelayError as error:
            missing = error
        except FieldError as error:
            missing = Unavailable(f"region {region} answered {DIGESTS_METHOD} oddly: {error}")
        return {row.key: told.get(row.key, missing) for row in rows}

    async def deep(self, name: StreamName, region: RegionNumber, *, offset: int, digest: bytes) -> DeepPiece:
        """Let a region recompute a piece of its log of one stream; see questions.DeepAsked.

        Raises:
            UnknownTopic, BadRequest. GeorelayError: what the region says, or why it cannot be asked.
        """
        found = next((row for row in self._streams(name.topic) if row.name == name), None)
        if found is None:
            raise UnknownTopic(f"topic '{name.topic[:60]}' has no such stream")
        if region not in self._regions():
            raise BadRequest(f"region {region} stores no topics")
        asked = DeepAsked(key=found.key, offset=offset, digest=digest)
        if region == self._own:
            return await self._agent.piece(asked)
        answer = await self._ask(region, DEEP_METHOD, deep_json(asked), timeout_s=DEEP_TIMEOUT_S)
        try:
            return read_piece(answer)
        except FieldError as error:
            raise Unavailable(f"region {region} answered {DEEP_METHOD} oddly: {error}") from error
