"""Consumer groups in /metrics: how many in which state, and how far behind, of those that this broker coordinates.

Rule 1: lag is sampled every SAMPLE_S, off the scrape: it asks other brokers.
Rule 2: at most GROUPS_SHOWN_MAX groups have series of their own, those with the largest lag; the others are counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Final

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from georelay.errors import GeorelayError
from region.api.group_lag import GroupLag
from region.coordination.coordinators import Coordinators
from region.coordination.part import Part
from region.groups.counters import GroupCounters
from region.groups.part import GroupsPart

log = structlog.get_logger()

SAMPLE_S: Final = 15.0
GROUPS_SAMPLED_MAX: Final = 1_000
GROUPS_SHOWN_MAX: Final = 200


class GroupMetrics(Collector):
    """A collector with a task that samples lag while it is started."""

    def __init__(self, coordinators: Coordinators, lag: GroupLag, counters: GroupCounters) -> None:
        self._coordinators = coordinators
        self._lag = lag
        self._counters = counters
        self._lags: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to sample."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="group-lag")

    async def close(self) -> None:
        """Sample no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def sample(self) -> None:
        """Ask how far the groups coordinated here are behind."""
        ids = [live.group.group_id for part in self._parts() for live in part.groups()]
        try:
            self._lags = await self._lag.totals(ids[:GROUPS_SAMPLED_MAX])
        except GeorelayError as error:  # the next sample may succeed
            log.debug("group_lag.not_sampled", reason=str(error))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            await self.sample()

    def _parts(self) -> Iterator[GroupsPart]:
        for part in self._coordinators.parts_here(Part.GROUPS):
            assert isinstance(part, GroupsPart)
            yield part

    def describe(self) -> list[Metric]:
        """Return nothing: the registry must not collect before the broker runs."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        states: Counter[str] = Counter()
        members: dict[str, int] = {}
        for part in self._parts():
            for live in part.groups():
                states[live.group.state.value] += 1
                members[live.group.group_id] = len(live.group.members)
        groups = GaugeMetricFamily(
            "georelay_consumer_groups", "Groups coordinated by this broker, by state", labels=["state"]
        )
        for state, count in sorted(states.items()):
            groups.add_metric([state], count)
        yield groups
        yield self._lag_family(members)
        yield self._member_family(members)
        counters = self._counters
        yield CounterMetricFamily(
            "georelay_consumer_group_generations", "Rebalances that were stored", counters.generations
        )
        yield CounterMetricFamily(
            "georelay_consumer_group_offsets_committed", "Offsets committed", counters.offsets_committed
        )
        yield CounterMetricFamily(
            "georelay_consumer_group_offsets_expired", "Offsets that expired", counters.offsets_expired
        )
        yield CounterMetricFamily(
            "georelay_consumer_group_room_refusals",
            "New groups, and what groups would have kept more, refused for lack of room",
            counters.room_refusals,
        )

    def _shown(self, members: dict[str, int]) -> list[str]:
        by_lag = sorted(members, key=lambda group_id: (-self._lags.get(group_id, 0), group_id))
        return by_lag[:GROUPS_SHOWN_MAX]

    def _lag_family(self, members: dict[str, int]) -> Metric:
        family = GaugeMetricFamily(
            "georelay_consumer_group_lag_records",
            "Records committed and not consumed yet, all partitions",
            labels=["group"],
        )
        for group_id in self._shown(members):
            if group_id in self._lags:
                family.add_metric([group_id], self._lags[group_id])
        return family

    def _member_family(self, members: dict[str, int]) -> Metric:
        family = GaugeMetricFamily("georelay_consumer_group_members", "Members of a group", labels=["group"])
        for group_id in self._shown(members):
            family.add_metric([group_id], members[group_id])
        return family
