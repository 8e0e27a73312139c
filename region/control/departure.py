"""What would be lost with a region that leaves: records of streams that began there and that other regions lack,
acknowledged records of other streams that too few of the others have, and groups, transactions and queues that are at
home there.

Rule 1: first every broker of the mesh has to have heard that the region drains (region.control.drain_heard): only then
        it takes no records of its own any more, and no home counts its copies.
Rule 2: of streams that are at home there, which only topics with homes=every have by now, the end is that of the
        leaving region's log: nobody publishes there any more. Only markers still come, and one that is written after
        the comparison would be nowhere else: so no transaction may be open there, or readers of committed records would
        stand before it for ever. One that nobody ends is aborted at its timeout.
Rule 3: of every other stream each region that stays has to have what its home, or the leaving region, has committed in
        the home's epoch. What was acknowledged with the help of the region that leaves lies below that. So whatever
        fewer regions promise when a home is lost later, none of them lacks an acknowledged record.
Rule 4: a region or a broker that does not answer may lack everything: silence is a reason to refuse.
Rule 5: what coordinators keep is lost when nobody is home of their stream, however many copies there are. Those that
        ever kept something and are at home there have to be moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

from georelay.errors import GeorelayError
from georelay.fields import FieldError, JsonObject
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.home.home_row import ONE_HOME, HomeRow
from region.control.drain_heard import DrainHeard
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """One stream whose home stays. `epoch`: of its home as control decided it, 0 where the home never moved."""

    key: StreamKey
    name: str
    home: RegionNumber
    epoch: Epoch
    is_moving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """What every region that stays has to have of a stream: everything below `offset`, committed in `epoch`."""

    offset: Offset
    epoch: Epoch


class Departure:
    """Asks all regions, on behalf of control's leader.

    Args:
        topics: the live topics.
        moved: the row of a stream whose home was ever to move, None for any other.
        heard: asks brokers whether they know that a region drains.
    """

    def __init__(
        self,
        *,
        topics: Callable[[], Iterator[TopicDefinition]],
        regions: RegionsPart,
        ask: AskRegion,
        moved: Callable[[StreamKey], HomeRow | None],
        heard: DrainHeard,
    ) -> None:
        self._topics = topics
        self._moved = moved
        self._heard = heard
        self._regions = regions
        self._ask = ask

    async def lacking(self, number: RegionNumber) -> list[str]:
        """Name what would be lost, one line for each stream and region, or for each region that does not answer."""
        row = self._regions.row(number)
        others = [other for other in self._regions.rows() if _stores(other) and other.number != number]
        if row is None or not _stores(row):
            return []
        lines = await self._heard.unheard(row, [row, *others])
        began = list(self._began(number))
        for first in range(0, len(began), WAVE_STREAMS_MAX):
            lines += await self._lacking_of(began[first : first + WAVE_STREAMS_MAX], row, others)
        kept = list(self._kept(number))
        for first in range(0, len(kept), WAVE_STREAMS_MAX):
            lines += await self._unsafe_of(kept[first : first + WAVE_STREAMS_MAX], row, others)
        return list(dict.fromkeys(lines))  # a region that is silent is silent for every wave

    def _began(self, number: RegionNumber) -> Iterator[_Began]:
        for topic in self._topics():
            for partition in range(topic.partitions if topic.homes is Homes.EVERY else 0):
                key = StreamKey(topic.topic_id, number, partition)
                moved = self._moved(key)
                if moved is None or moved.home == number:
                    yield _Began(
                        key=key, name=f"{topic.name} partition {partition}", is_coordinator=is_coordination(topic)
                    )

    def _kept(self, number: RegionNumber) -> Iterator[_Kept]:
        """Return the streams whose home is a region that stays."""
        stays = {row.number for row in self._regions.rows() if _stores(row)} - {number}
        for topic in self._topics():
            is_one = topic.homes is Homes.ONE
            for origin in (ONE_HOME,) if is_one else [row.number for row in self._regions.rows()]:
                for partition in range(topic.partitions):
                    key = StreamKey(topic.topic_id, origin, partition)
                    row = self._moved(key)
                    home = (topic.home if is_one else origin) if row is None else row.home
                    if home in stays:
                        yield _Kept(
                            key=key,
                            name=f"{topic.name} partition {partition}",
                            home=home,
                            epoch=Epoch(0) if row is None else row.epoch,
                            is_moving=row is not None and row.moving is not None,
                        )

    async def _unsafe_of(self, kept: Sequence[_Kept], leaver: RegionRow, others: Sequence[RegionRow]) -> list[str]:
        """Name what of these streams is not in every region that stays."""
        asked = [
            (region, {stream.key: Offset(0) for stream in kept if region is leaver or stream.home == region.number})
            for region in (*others, leaver)
        ]
        told = await asyncio.gather(*(self._ends(region, streams, wait_ms=0) for region, streams in asked))
        at_home = {region.number: said for (region, _), said in zip(asked, told, strict=True)}
        ends: dict[StreamKey, _End] = {}
        lines: list[str] = []
        for stream in kept:
            said = at_home[stream.home]
            end = said if isinstance(said, str) else said.get(stream.key)
            if stream.is_moving:
                lines.append(f"{stream.name}: its home is moving: ask again")
            elif isinstance(end, LogEnds) and end.epoch >= stream.epoch:
                ends[stream.key] = _newest(end, at_home[leaver.number], stream.key)
            else:
                why = "it has not begun its epoch" if isinstance(end, LogEnds) else end or "no answer"
                lines.append(f"{stream.name}: its home does not say where it ends ({why})")
        has_records = {key: end.offset for key, end in ends.items() if end.offset}
        waiting = [self._ends(other, has_records, wait_ms=MIRROR_WAIT_MS) for other in others if has_records]
        epochs = {key: end.epoch for key, end in ends.items()}
        for other, there in zip(others, await asyncio.gather(*waiting), strict=False):
            if isinstance(there, str):
                lines.append(f"{there}: nobody can say what it lacks")
            else:
                lines += _behind(kept, has_records, there, other, epochs=epochs)
        return lines

    async def _lacking_of(self, began: Sequence[_Began], row: RegionRow, others: Sequence[RegionRow]) -> list[str]:
        own = {stream.key: Offset(0) for stream in began}
        held = await self._ends(row, own, wait_ms=0, with_transactions=True)
        if isinstance(held, str):
            return [f"{held}: nobody can say what only it holds"]
        ends: dict[StreamKey, Offset] = {}
        lines: list[str] = []
        for stream in began:
            end = held.get(stream.key)
            if isinstance(end, LogEnds):
                ends[stream.key] = end.next_offset
                if end.has_open_transactions is None:
                    lines.append(f"{stream.name}: region {row.name} does not say whether transactions are open in it")
                elif end.has_open_transactions:
                    lines.append(
                        f"{stream.name}: transactions are open in region {row.name}: end them, or await their timeout"
                    )
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

    async def _ends(
        self, row: RegionRow, until: Mapping[StreamKey, Offset], *, wait_ms: int, with_transactions: bool = False
    ) -> Answers | str:
        """Return where a region's logs end, or why it did not say."""
        if not until:
            return {}
        asked = [EndAsked(key=key, until=end, with_transactions=with_transactions) for key, end in until.items()]
        body = asked_json(asked, wait_ms=wait_ms)
        try:
            answer = await self._ask(row.number, ENDS_METHOD, body, timeout_s=ASK_S + wait_ms / 1000)
            return read_answers(ENDS_METHOD, answer, asked=list(until))
        except (GeorelayError, FieldError) as error:
            return f"region {row.name} does not answer ({error})"


def _newest(home: LogEnds, leaver: Answers | str, key: StreamKey) -> _End:
    """Return up to where records of the home's epoch are committed there, or in the region that leaves.

    The second bounds what was acknowledged with its help, also where who answered for the home was just deposed.
    """
    there = None if isinstance(leaver, str) else leaver.get(key)
    committed = home.high_watermark
    if isinstance(there, LogEnds) and there.epoch == home.epoch:
        committed = max(committed, there.high_watermark)
    return _End(offset=committed, epoch=home.epoch)


def _behind(
    streams: Sequence[_Began] | Sequence[_Kept],
    ends: Mapping[StreamKey, Offset],
    told: Answers,
    other: RegionRow,
    *,
    epochs: Mapping[StreamKey, Epoch] = MappingProxyType({}),
) -> Iterator[str]:
    """Name what a region lacks below `ends`. In another epoch than in `epochs` it may hold a branch of its own."""
    for stream in streams:
        end = ends.get(stream.key)
        if end is None:
            continue
        there = told.get(stream.key)
        has = there.high_watermark if isinstance(there, LogEnds) else Offset(0)
        if has < end:
            why = "" if isinstance(there, LogEnds) else f" ({there or 'no answer'})"
            yield f"{stream.name}: offsets {has} to {end - 1} are not in region {other.name}{why}"
        elif isinstance(there, LogEnds) and there.epoch != epochs.get(stream.key, there.epoch):
            epoch = epochs[stream.key]
            yield f"{stream.name}: region {other.name} is in epoch {there.epoch} of it, its home in epoch {epoch}"


def _stores(row: RegionRow) -> bool:
    return row.state is not RegionState.REMOVED and not row.witness
