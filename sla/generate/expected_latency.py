"""What a report must say about latencies: counted from the events themselves, by minute and by hour."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from georelay.trace.histogram import GOOD_US_MAX
from sla.generate.latency_rows import BUCKETS, GROUP_STAGES, STAGES, LatencyEvents, bucket_indexes
from sla.generate.world import Int64, World

MINUTE_S: Final = 60
SUMS: Final = ("n", "n_good", "n_good_lo", "n_good_hi", "n_clock_unknown", "n_clock_revised", "lat_sum_us", "n_true")

Key = tuple[int, int, int, int, int]  # start s, dest, stage, origin, topic


class LatencyBook:
    """Everything expected of the histograms that reach a reader.

    Rows say what is true without a revision of clocks: of records with `n_clock_revised` only the count is exact.
    `n_true` counts records that really were within the target, whatever any clock says.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._sums: dict[Key, dict[str, int]] = {}
        self._most: dict[Key, list[int]] = {}  # longest latency, largest clock error (-1: none known)
        self._buckets: dict[Key, dict[int, int]] = {}

    def take(self, dest: int, events: LatencyEvents, reaches: npt.NDArray[np.bool_]) -> None:
        """Count the events of a region; `reaches`: those whose row is read."""
        events = events.take(reaches)
        if not len(events):
            return
        minute = events.second // MINUTE_S
        key = minute - int(minute.min())
        for width, part in ((len(STAGES), events.stage), (len(self._world.regions), events.origin)):
            key = key * width + part
        key = key * len(self._world.topics) + events.topic
        _, firsts, place = np.unique(key, return_index=True, return_inverse=True)
        keys: list[Key] = [
            (int(minute[first]) * MINUTE_S, dest, int(events.stage[first]), int(events.origin[first]),
             int(events.topic[first]))
            for first in firsts
        ]  # fmt: skip
        self._add_sums(keys, place, events)
        self._add_most(keys, place, events)
        self._add_buckets(keys, place, events)

    def _add_sums(self, keys: list[Key], place: Int64, events: LatencyEvents) -> None:
        latency, error, count = events.latency_us, events.error_us, events.count
        is_known = error >= 0
        weights = {
            "n": count,
            "n_good": count * (latency <= GOOD_US_MAX),
            "n_good_lo": count * (is_known & (latency + error <= GOOD_US_MAX)),
            "n_good_hi": count * (~is_known | (latency - error <= GOOD_US_MAX)),
            "n_clock_unknown": count * ~is_known,
            "n_clock_revised": count * events.is_revised,
            "lat_sum_us": count * latency,
            "n_true": count * (events.true_us <= GOOD_US_MAX),
        }
        for name, weight in weights.items():
            sums = np.zeros(len(keys), dtype=np.int64)
            np.add.at(sums, place, weight)
            for key, value in zip(keys, sums.tolist(), strict=True):
                self._sums.setdefault(key, dict.fromkeys(SUMS, 0))[name] += value

    def _add_most(self, keys: list[Key], place: Int64, events: LatencyEvents) -> None:
        longest = np.zeros(len(keys), dtype=np.int64)
        np.maximum.at(longest, place, events.latency_us)
        worst = np.full(len(keys), -1, dtype=np.int64)
        np.maximum.at(worst, place, events.error_us)
        for key, one, other in zip(keys, longest.tolist(), worst.tolist(), strict=True):
            most = self._most.setdefault(key, [0, -1])
            most[:] = [max(most[0], one), max(most[1], other)]

    def _add_buckets(self, keys: list[Key], place: Int64, events: LatencyEvents) -> None:
        both = place * BUCKETS + bucket_indexes(events.latency_us)
        found, where = np.unique(both, return_inverse=True)
        sums = np.zeros(len(found), dtype=np.int64)
        np.add.at(sums, where, events.count)
        for combined, value in zip(found.tolist(), sums.tolist(), strict=True):
            buckets = self._buckets.setdefault(keys[combined // BUCKETS], {})
            bucket = combined % BUCKETS
            buckets[bucket] = buckets.get(bucket, 0) + value

    def rows(self, span_s: int) -> list[dict[str, Any]]:
        """Return the rows of minute (60) or hour (3600)."""
        sums: dict[Key, dict[str, int]] = {}
        most: dict[Key, list[int]] = {}
        buckets: dict[Key, dict[int, int]] = {}
        for key, values in self._sums.items():
            wide: Key = (key[0] // span_s * span_s, *key[1:])
            total = sums.setdefault(wide, dict.fromkeys(SUMS, 0))
            for name, value in values.items():
                total[name] += value
            biggest = most.setdefault(wide, [0, -1])
            biggest[:] = [max(pair) for pair in zip(biggest, self._most[key], strict=True)]
            merged = buckets.setdefault(wide, {})
            for bucket, value in self._buckets[key].items():
                merged[bucket] = merged.get(bucket, 0) + value
        return [self._row(key, sums[key], most[key], buckets[key]) for key in sums]

    def _row(self, key: Key, sums: dict[str, int], most: list[int], buckets: dict[int, int]) -> dict[str, Any]:
        world = self._world
        start_s, dest, stage, origin, topic = key
        return {
            "ts_s": start_s,
            "origin": world.regions[origin],
            "dest": world.regions[dest],
            "topic": world.topics[topic],
            "group": world.groups[topic] if STAGES[stage] in GROUP_STAGES else "",
            "stage": STAGES[stage].value,
            **sums,
            "lat_max_us": most[0],
            "clock_err_max_us": None if most[1] < 0 else most[1],
            "hist": [list(pair) for pair in sorted(buckets.items())],
        }
