"""Compares the streams of this mesh, a page at a time: one request per round and region, for all streams of the page.

Rule 1: a page is compared as a whole: rounds grow with the logarithm of the longest log that differs, not with streams.
Rule 2: a region that does not answer is left out of the page and named in every verdict: it is never taken for equal.
Rule 3: nothing is kept between pages; whoever wants more asks for what follows the last stream of this one.
Rule 4: with replicas there is one request per round and broker that holds one, through any broker of its region; which
        brokers those are each region is asked once per page. A region that does not say is named in every verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from georelay.errors import BadRequest, Busy, GeorelayError, Unavailable, UnknownTopic
from georelay.fields import FieldError, JsonObject
from georelay.ids import BrokerId, RegionNumber, StreamKey, region_of
from region.audit.agent import AuditAgent
from region.audit.audit_core import StreamAudit
from region.audit.questions import (
    DEEP_METHOD,
    DIGESTS_METHOD,
    REPLICA_METHOD,
    REPLICAS_METHOD,
    STREAMS_MAX,
    DeepAsked,
    DeepPiece,
    DigestsAsked,
    deep_json,
    digests_json,
    read_answers,
    read_brokers,
    read_piece,
    replica_json,
    replicas_json,
)
from region.audit.values import FindingState, RegionFinding, StreamVerdict, Told, Who

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


AskWho = Callable[[Who, Sequence[DigestsAsked]], Awaitable[Mapping[StreamKey, Told]]]
Brokers = Mapping[StreamKey, tuple[BrokerId, ...]]


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
        replicas: bool = False,
    ) -> AuditPage:
        """Compare up to `limit` (1..STREAMS_MAX) streams that follow `after`, of topics that the caller may describe.

        Args:
            replicas: compare every replica of every region; else one log of each region, that of its leader.

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
            verdicts, requests = await (self._compared_replicas(some) if replicas else self._compared(some))
        finally:
            self._running -= 1
        return AuditPage(verdicts=verdicts, is_last=len(left) <= len(some), total=len(named), requests=requests)

    async def _compared(
        self, streams: Sequence[NamedStream]
    ) -> tuple[tuple[tuple[StreamName, StreamVerdict], ...], int]:
        regions = self._regions()
        audits = [StreamAudit(row.key, home=row.home, regions=regions) for row in streams]
        requests = await _run(audits, self._ask_leaders)
        return tuple((row.name, audit.verdict()) for row, audit in zip(streams, audits, strict=True)), requests

    async def _compared_replicas(
        self, streams: Sequence[NamedStream]
    ) -> tuple[tuple[tuple[StreamName, StreamVerdict], ...], int]:
        regions = self._regions()
        keys = [row.key for row in streams]
        told = await asyncio.gather(*(self._brokers_in(region, keys) for region in regions))
        places = dict(zip(regions, told, strict=True))
        audits = [_replica_audit(row, places) for row in streams]
        requests = len(regions) + await _run(audits, self._ask_broker)
        return tuple(
            (row.name, _with_silent(audit.verdict(), places)) for row, audit in zip(streams, audits, strict=True)
        ), requests

    async def _ask_leaders(self, who: Who, rows: Sequence[DigestsAsked]) -> Mapping[StreamKey, Told]:
        region = RegionNumber(who)
        if region == self._own:
            return await self._agent.views(rows)
        return await self._ask_region(region, DIGESTS_METHOD, digests_json(rows), rows)

    async def _ask_broker(self, who: Who, rows: Sequence[DigestsAsked]) -> Mapping[StreamKey, Told]:
        broker = BrokerId(who)
        if region_of(broker) == self._own:
            return await self._agent.copies(broker, rows)
        return await self._ask_region(region_of(broker), REPLICA_METHOD, replica_json(rows, broker=broker), rows)

    async def _ask_region(
        self, region: RegionNumber, method: str, body: JsonObject, rows: Sequence[DigestsAsked]
    ) -> dict[StreamKey, Told]:
        missing: GeorelayError = Unavailable(f"region {region} left streams out of its answer")
        told: Mapping[StreamKey, Told] = {}
        try:
            told = read_answers(await self._ask(region, method, body, timeout_s=REGION_TIMEOUT_S), asked=rows)
        except BadRequest as error:
            missing = Unavailable(f"region {region} cannot be audited yet: {error}")
        except GeorelayError as error:
            missing = error
        except FieldError as error:
            missing = Unavailable(f"region {region} answered {method} oddly: {error}")
        return {row.key: told.get(row.key, missing) for row in rows}

    async def _brokers_in(self, region: RegionNumber, keys: Sequence[StreamKey]) -> Brokers | GeorelayError:
        """Return which brokers of a region hold replicas, or why that is not known."""
        if region == self._own:
            return {key: self._agent.replicas(key) for key in keys}
        try:
            answer = await self._ask(region, REPLICAS_METHOD, replicas_json(keys), timeout_s=REGION_TIMEOUT_S)
            return read_brokers(answer, asked=keys, region=region)
        except BadRequest as error:
            return Unavailable(f"the replicas of region {region} cannot be audited yet: {error}")
        except GeorelayError as error:
            return error
        except FieldError as error:
            return Unavailable(f"region {region} answered {REPLICAS_METHOD} oddly: {error}")

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


async def _run(audits: Sequence[StreamAudit], ask: AskWho) -> int:
    """Ask round after round until no stream wants to know more; return how many requests that took."""
    requests = 0
    for _ in range(ROUNDS_MAX):
        wanted: dict[Who, list[DigestsAsked]] = {}
        for audit in audits:
            for who, at in audit.wanted().items():
                wanted.setdefault(who, []).append(DigestsAsked(key=audit.key, at=at))
        if not wanted:
            break
        requests += len(wanted)
        told = await asyncio.gather(*(ask(who, rows) for who, rows in wanted.items()))
        answers = dict(zip(wanted, told, strict=True))
        for audit in audits:
            if asked := audit.wanted():
                audit.told({who: answers[who][audit.key] for who in asked})
    return requests


def _replica_audit(row: NamedStream, places: Mapping[RegionNumber, Brokers | GeorelayError]) -> StreamAudit:
    """Return the comparison of all replicas that are known; the home's leader is the first of its brokers."""
    known = {region: told.get(row.key, ()) for region, told in places.items() if not isinstance(told, GeorelayError)}
    brokers = [broker for some in known.values() for broker in some]
    at_home = known.get(row.home, ())
    return StreamAudit(row.key, home=row.home, regions=brokers, by_broker=True, preferred=at_home[0] if at_home else 0)


def _with_silent(verdict: StreamVerdict, places: Mapping[RegionNumber, Brokers | GeorelayError]) -> StreamVerdict:
    """Return a verdict that also names the regions whose replicas nobody knows."""
    silent = []
    for region, told in places.items():
        if isinstance(told, GeorelayError):
            reason = f"{told.code}: {told}"
        elif told.get(verdict.key):
            continue
        else:
            reason = "no broker of this region is known to hold a replica"
        silent.append(RegionFinding(region=region, state=FindingState.NO_ANSWER, reason=reason))
    findings = sorted((*verdict.findings, *silent), key=lambda row: (row.region, row.broker or 0))
    return replace(verdict, findings=tuple(findings))
