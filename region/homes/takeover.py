"""At the leader of mesh control: homes are taken away from regions that are lost, without an operator.

Rule 1: only where the topic says so and nothing protected is lost by it; groups go where such topics go.
Rule 2: a stream is taken from a lost region once, until that region is heard again: if it is its home after that, it
        answered itself. What could not be begun is tried again, after a pause.
Rule 3: what becomes a lost region's later is taken, too: a region can be chosen as home and be lost before it is one.
Rule 4: nothing is taken, no topic and no coordinator, of which the region is not known to acknowledge under a lease
        only (region.homes.policies). It is looked at again: brokers without a leader still say what they follow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from georelay.clock import Clock
from georelay.errors import GeorelayError
from georelay.ids import RegionNumber, StreamKey
from mesh.home.home_book_core import HomePosition
from mesh.home.home_row import NOT_CHOSEN, MoveKind
from region.controller.topic import TopicDefinition
from region.homes.levels import may_fail_over
from region.homes.move_desk import MoveAsked, MoveDesk
from region.homes.part import HomesPart, MeshTopics
from region.homes.reports import MoveReport

log = structlog.get_logger()

AGAIN_NS: Final = 2_000_000_000


@dataclass(slots=True, kw_only=True)
class _LostRegion:
    """What was done about one lost region.

    Args:
        taken: streams that were taken away. failed: those for which that could not be begun.
        unbound: those of which the region may acknowledge without a lease.
        reports: of what is under way. looked_at: where the book stood. again_ns: not before that.
    """

    taken: set[StreamKey] = field(default_factory=set)
    failed: set[StreamKey] = field(default_factory=set)
    unbound: set[StreamKey] = field(default_factory=set)
    reports: list[MoveReport] = field(default_factory=list)
    looked_at: HomePosition | None = None
    again_ns: int = 0


class Takeovers:
    """Begins forced moves. Arguments: see HomeLeader.

    Args:
        in_force: whether a topic's policy is known to bind a home (region.homes.policies).
    """

    def __init__(
        self,
        *,
        part: HomesPart,
        topics: MeshTopics,
        desk: MoveDesk,
        clock: Clock,
        in_force: Callable[[TopicDefinition, RegionNumber], bool] = lambda _topic, _home: True,
    ) -> None:
        self._in_force = in_force
        self._part = part
        self._topics = topics
        self._desk = desk
        self._clock = clock
        self._lost: dict[RegionNumber, _LostRegion] = {}

    def clear(self) -> None:
        """Forget all: this broker leads no more."""
        self._lost.clear()

    def look(self, lost: Collection[RegionNumber]) -> None:
        """Follow which regions are lost now; take away what is to be taken."""
        for region in [region for region in self._lost if region not in lost]:
            del self._lost[region]
            log.info("home.region_found", region=region)
        for region in lost:
            known = self._lost.get(region)
            if known is None:
                known = self._lost[region] = _LostRegion()
                self._take(region, known, self._part.streams_of(region))
                log.warning("home.region_lost", region=region, streams=len(known.taken))
            elif self._is_due(known):
                homed = (row.key for row in self._part.book.rows() if row.home == region)
                self._take(region, known, dict.fromkeys((*homed, *known.failed)))

    def _is_due(self, known: _LostRegion) -> bool:
        for report in [report for report in known.reports if report.is_over]:
            known.reports.remove(report)
            known.taken.difference_update(report.refused)
            self._failed(known, report.refused)
        if self._clock.monotonic_ns() < known.again_ns:
            return False
        return bool(known.failed) or self._part.book.position != known.looked_at

    def _failed(self, known: _LostRegion, keys: Iterable[StreamKey]) -> None:
        before = len(known.failed)
        known.failed.update(keys)
        if len(known.failed) != before:
            known.again_ns = self._clock.monotonic_ns() + AGAIN_NS

    def _take(self, region: RegionNumber, known: _LostRegion, keys: Iterable[StreamKey]) -> None:
        known.looked_at = self._part.book.position
        known.failed.clear()
        free = [key for key in keys if key not in known.taken and self._is_free(key, region)]
        bound = {key for key in free if self._is_in_force(key, region)}
        automatic = [key for key in free if self._fails_over(key)]
        wanted = [key for key in automatic if key in bound]
        coordinators = [key for key in free if key.origin]
        if wanted or known.taken:  # groups go where their topics go
            automatic += coordinators
            wanted = [key for key in automatic if key in bound]
        self._note_unbound(region, known, [key for key in automatic if key not in bound])
        if known.unbound:
            self._failed(known, (*known.unbound, *coordinators))  # they come with the topics, or later
        if not wanted:
            return
        try:
            report = self._desk.begin(MoveAsked(keys=tuple(wanted), kind=MoveKind.FORCED, target=NOT_CHOSEN))
        except GeorelayError as error:
            log.warning("home.failover_refused", region=region, reason=str(error))
            self._failed(known, wanted)
        else:
            known.taken.update(wanted)
            known.reports.append(report)

    def _note_unbound(self, region: RegionNumber, known: _LostRegion, keys: Collection[StreamKey]) -> None:
        if not known.unbound.issuperset(keys):
            log.warning("home.policies_not_in_force", region=region, streams=len(keys))
        known.unbound = set(keys)

    def _fails_over(self, key: StreamKey) -> bool:
        topic = self._topics.find(key.topic_id)
        return topic is not None and may_fail_over(topic)

    def _is_in_force(self, key: StreamKey, region: RegionNumber) -> bool:
        topic = self._topics.find(key.topic_id)
        return topic is not None and self._in_force(topic, region)

    def _is_free(self, key: StreamKey, region: RegionNumber) -> bool:
        row = self._part.row(key)
        return row is not None and row.home == region and (row.moving is None or row.moving.kind is not MoveKind.FORCED)
