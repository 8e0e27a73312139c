"""Queues in /metrics: of those that this broker coordinates.

Rule 1: at most QUEUES_SHOWN_MAX queues have series of their own, those with the most records that are not done; the
        others are in the sums under the queue label "" (a queue's name is never empty).
Rule 2: queues of one name, this region's and that of a region whose coordinators are here, are one series.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from region.coordination.coordinators import Coordinators
from region.coordination.part import Part
from region.queues.counters import QueueCounters
from region.queues.operations import gauges, oldest_age_ms
from region.queues.part import QueuesPart

QUEUES_SHOWN_MAX: Final = 100
OTHERS: Final = ""
_STATES: Final = ("ready", "delayed", "leased", "dead_lettering")
_COUNTERS: Final = (
    ("georelay_queue_delivered", "Records handed out by queues"),
    ("georelay_queue_redelivered", "Records handed out by queues for a second time or more"),
    ("georelay_queue_acknowledged", "Records acknowledged by consumers of queues"),
    ("georelay_queue_rejected", "Records rejected by consumers of queues"),
    ("georelay_queue_dead_lettered", "Records published to dead-letter topics"),
    ("georelay_queue_leases_expired", "Leases that ran out"),
    ("georelay_queue_leases_refused", "Requests that named a lease that was over"),
    ("georelay_queue_consumers_lost", "Consumers that held leases and were not heard of any more"),
    ("georelay_queue_records_expired", "Records whose time to live was over before they were delivered"),
    ("georelay_queue_room_refusals", "Queues refused because a share or the coordinator was full"),
    ("georelay_queue_records_skipped", "Records that retention deleted before they were done"),
)


class QueueMetrics(Collector):
    """Reads the queues led here when it is scraped."""

    def __init__(self, coordinators: Coordinators, counters: QueueCounters) -> None:
        self._coordinators = coordinators
        self._counters = counters

    def describe(self) -> list[Metric]:
        """Return nothing: the registry must not collect before the broker runs."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        named: dict[str, tuple[dict[str, int], int]] = {}
        queues = 0
        for part in self._coordinators.parts_here(Part.QUEUES):
            assert isinstance(part, QueuesPart)
            now_us = part.log.now_us()
            for queue in part.queues():
                queues += 1
                counts, (known, known_ms) = gauges(queue), named.get(queue.name, ({}, 0))
                sums = {state: counts[state] + known.get(state, 0) for state in _STATES}
                named[queue.name] = sums, max(known_ms, oldest_age_ms(queue, now_us))
        rows = [(name, sums, oldest_ms) for name, (sums, oldest_ms) in named.items()]
        yield GaugeMetricFamily("georelay_queues", "Queues coordinated by this broker", queues)
        rows.sort(key=lambda row: (-sum(row[1].values()), row[0]))
        shown = rows[:QUEUES_SHOWN_MAX]
        hidden = rows[QUEUES_SHOWN_MAX:]
        if hidden:
            sums = {state: sum(row[1][state] for row in hidden) for state in _STATES}
            shown.append((OTHERS, sums, max(row[2] for row in hidden)))
        records = GaugeMetricFamily(
            "georelay_queue_records", "Records of a queue that are not done, by state", labels=["queue", "state"]
        )
        age = GaugeMetricFamily(
            "georelay_queue_oldest_seconds", "Age of the oldest record of a queue that is not done", labels=["queue"]
        )
        for name, states, oldest_ms in shown:
            for state in _STATES:
                records.add_metric([name, state], states[state])
            age.add_metric([name], oldest_ms / 1000)
        yield from (records, age)
        for name, text in _COUNTERS:
            yield CounterMetricFamily(name, text, getattr(self._counters, name.partition("_queue_")[2]))
