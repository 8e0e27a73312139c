"""What would be lost with a region that leaves: records of streams that began there and that other regions lack, and
groups, transactions and queues that are at home there.

Rule 1: only streams of `homes=every` topics are asked about; those with one home were moved before, or the region may
        not leave.
Rule 2: the end is that of the leaving region's log now. It stands still: a region that drains takes no records into
        these streams any more.
Rule 3: a region that does not answer may lack everything: silence is a reason to refuse.
Rule 4: what coordinators keep is lost when nobody is home of their stream, however many copies there are. Those that
        ever kept something and are at home there have to be moved; those that were moved are not asked about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from georelay.errors import GeorelayError
from georelay.fields import FieldError, JsonObject
from georelay.ids import Offset, RegionNumber, StreamKey
from region.control.regions_part import RegionsPart
from region.controller.mesh_rows import RegionRow, RegionState
from region.controller.topic import Homes, TopicDefinition
from region.homes.home_requests import (
    ENDS_METHOD,
    WAVE_STREAMS_MAX,
    Answers,
    EndAsked,
    LogEnds,
    asked_json,
    read_answers,
)
from region.homes.levels import is_coordination

ASK_S: Final = 5.0  # one region, for one wave of streams
MIRROR_WAIT_MS: Final = 1_000  # for what is on its way


class AskRegion(Protocol):
    """Carries one question to a region, this broker's own included."""

    async def __call__(
        self, region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float
    ) -> Mapping[str, Any]:
        """Return the answer; raises GeorelayError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Began:
    """One stream that began in the leaving region, and is at home there."""

    key: StreamKey
    name: str
    is_coordinator: bool


class Departure:
    """Asks all regions, on behalf of control's leader.

    Args:
        topics: the live topics.
        home_of: the home of a stream that was ever to move, 0 for any other.
    """

    def __init__(
        self,
        *,
        topics: Callable[[], Iterator[TopicDefinition]],
        regions: RegionsPart,
        ask: AskRegion,
        home_of: Callable[[StreamKey], RegionNumber] = lambda _: RegionNumber(0),
    ) -> None:
        self._topics = topics
        self._home_of = home_of
        self._regions = regions
        self._ask = ask

    async def lacking(self, number: RegionNumber) -> list[str]:
        """Name what would be lost, one line for each stream and region, or for each region that does not answer."""
        row = self._regions.row(number)
        others = [other for other in self._regions.rows() if _stores(other) and other.number != number]
        if row is None or not _stores(row):
            return []
        began = list(self._began(number))
        lines: list[str] = []
        for first in range(0, len(began), WAVE_STREAMS_MAX):
            lines += await self._lacking_of(began[first : first + WAVE_STREAMS_MAX], row, others)
        return list(dict.fromkeys(lines))  # a region that is silent is silent for every wave

    def _began(self, number: RegionNumber) -> Iterator[_Began]:
        for topic in self._topics():
            for partition in range(topic.partitions if topic.homes is Homes.EVERY else 0):
                key = StreamKey(topic.topic_id, number, partition)
                if self._home_of(key) in (0, number):
                    yield _Began(
                        key=key, name=f"{topic.name} partition {partition}", is_coordinator=is_coordination(topic)
                    )

    async def _lacking_of(self, began: Sequence[_Began], row: RegionRow, others: Sequence[RegionRow]) -> list[str]:
        held = await self._ends(row, {stream.key: Offset(0) for stream in began}, wait_ms=0)
        if isinstance(held, str):
            return [f"{held}: nobody can say what only it holds"]
        ends: dict[StreamKey, Offset] = {}
        lines: list[str] = []
        for stream in began:
            end = held.get(stream.key)
            if isinstance(end, LogEnds):
                ends[stream.key] = end.next_offset
            else:
                lines.append(f"{stream.name}: region {row.name} does not say where it ends ({end or 'no answer'})")
        has_records = {key: end for key, end in ends.items() if end}
        lines += [
            f"{stream.name}: groups, transactions or queues of region {row.name} are at home there "
            f"('georelay home move --groups-of {row.name} --to REGION')"
            for stream in began
            if stream.is_coordinator and stream.key in has_records
        ]
        asked = [self._ends(other, has_records, wait_ms=MIRROR_WAIT_MS) for other in others if has_records]
        for other, told in zip(others, await asyncio.gather(*asked), strict=False):
            if isinstance(told, str):
                lines.append(f"{told}: nobody can say what it lacks")
            else:
                lines += _behind(began, has_records, told, other)
        return lines

    async def _ends(self, row: RegionRow, until: Mapping[StreamKey, Offset], *, wait_ms: int) -> Answers | str:
        """Return where a region's logs end, or why it did not say."""
        asked = [EndAsked(key=key, until=end) for key, end in until.items()]
        body = asked_json(asked, wait_ms=wait_ms)
        try:
            answer = await self._ask(row.number, ENDS_METHOD, body, timeout_s=ASK_S + wait_ms / 1000)
            return read_answers(ENDS_METHOD, answer, asked=list(until))
        except (GeorelayError, FieldError) as error:
            return f"region {row.name} does not answer ({error})"


def _behind(
    began: Sequence[_Began], ends: Mapping[StreamKey, Offset], told: Answers, other: RegionRow
) -> Iterator[str]:
    for stream in began:
        end = ends.get(stream.key)
        if end is None:
            continue
        there = told.get(stream.key)
        has = there.high_watermark if isinstance(there, LogEnds) else Offset(0)
        if has < end:
            why = "" if isinstance(there, LogEnds) else f" ({there or 'no answer'})"
            yield f"{stream.name}: offsets {has} to {end - 1} are not in region {other.name}{why}"


def _stores(row: RegionRow) -> bool:
    return row.state is not RegionState.REMOVED and not row.witness
