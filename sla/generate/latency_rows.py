"""Histogram rows of one region's chunk, and the grid of sla's histograms for whole arrays.

The grid is taken from `georelay.trace.histogram` bucket by bucket: the lowest whole microsecond of each is looked up,
so that no logarithm of another library can differ from it in its last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from georelay.trace.histogram import BUCKETS_PER_OCTAVE, GOOD_US_MAX, GRID, bucket_index
from georelay.trace.kinds import SCHEMA_VERSION, Stage, TraceKind
from georelay.trace.schema import SCHEMAS
from sla.generate.columns import constant, named
from sla.generate.world import Int64, World

STAGES: Final = tuple(Stage)
STAGE_NUMBER: Final = {stage: number for number, stage in enumerate(STAGES)}
GROUP_STAGES: Final = (Stage.DELIVER, Stage.TOTAL)  # the others are nobody's group's
BUCKET_BITS: Final = 10
BUCKETS: Final = 1 << BUCKET_BITS  # 2**32 us are more than an hour


def _lowest_us() -> Int64:
    """Return the lowest whole microsecond that is in each bucket or above it."""
    lowest = np.zeros(BUCKETS, dtype=np.int64)
    for bucket in range(1, BUCKETS):
        us = max(2, math.floor(2 ** (bucket / BUCKETS_PER_OCTAVE)) - 1)
        while bucket_index(us) < bucket:
            us += 1
        lowest[bucket] = us
    return lowest


_LOWEST_US: Final = _lowest_us()


def bucket_indexes(latency_us: Int64) -> Int64:
    """Return the bucket of every latency (>= 0 us)."""
    return np.searchsorted(_LOWEST_US, latency_us, side="right").astype(np.int64) - 1


@dataclass(slots=True)
class LatencyEvents:
    """Latencies of batches, one per element, as the brokers of one region counted them.

    Args:
        broker: id. stage: index into STAGES. second: of publish, on the origin's clock. origin: number of the region.
        latency_us: corrected, >= 0. true_us: what it really was. offset_us, error_us: correction in force, -1 unknown.
        is_revised: whether the exchanges contradict the correction.
        count: records.
    """

    broker: Int64
    stage: Int64
    second: Int64
    origin: Int64
    topic: Int64
    latency_us: Int64
    true_us: Int64
    offset_us: Int64
    error_us: Int64
    is_revised: npt.NDArray[np.bool_]
    count: Int64

    @classmethod
    def concat(cls, parts: Sequence[LatencyEvents]) -> LatencyEvents:
        """Return all of some parts, in order."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.broker)

    def take(self, index: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> LatencyEvents:
        """Return some of them."""
        return LatencyEvents(*(getattr(self, name)[index] for name in _NAMES))


_NAMES = tuple(field.name for field in fields(LatencyEvents))


def table(world: World, region: int, events: LatencyEvents) -> tuple[pa.Table, Int64, Int64]:
    """Return the rows of a region's events (>= 1), the broker of each row (rising), and the row of each event."""
    brokers, broker = np.unique(events.broker, return_inverse=True)
    second = events.second - int(events.second.min())
    spans = ((len(STAGES), events.stage), (int(second.max()) + 1, second),
             (len(world.regions), events.origin), (len(world.topics), events.topic))  # fmt: skip
    key = broker.astype(np.int64)
    for width, part in spans:
        key = key * width + part
    key = key * BUCKETS + bucket_indexes(events.latency_us)
    order = np.argsort(key, kind="stable")
    key = key[order]
    bucket_starts = _starts(key)
    row_starts = _starts(key >> BUCKET_BITS)
    row_of_event = np.empty(len(key), dtype=np.int64)
    row_of_event[order] = np.repeat(np.arange(len(row_starts)), np.diff(np.append(row_starts, len(key))))
    events = events.take(order)
    first = events.take(row_starts)

    def summed(values: Int64) -> Int64:
        sums: Int64 = np.add.reduceat(values, row_starts)
        return sums

    latency, count, error = events.latency_us, events.count, events.error_us
    is_unknown = first.error_us < 0
    lists = np.append(np.searchsorted(bucket_starts, row_starts), len(bucket_starts)).astype(np.int32)
    has_group = np.isin(first.stage, [STAGE_NUMBER[stage] for stage in GROUP_STAGES])
    number = len(row_starts)
    columns = [
        pa.array(first.second),
        named(world.regions, first.origin),
        constant(world.regions[region], number),
        named(world.topics, first.topic),
        named(["", *world.groups], np.where(has_group, first.topic + 1, 0)),
        constant(GRID, number, pa.int16()),
        pa.array(summed(count)),
        pa.array(summed(count * (latency <= GOOD_US_MAX))),
        pa.array(summed(count * latency)),
        pa.array(np.maximum.reduceat(latency, row_starts)),
        _histograms(key, count, bucket_starts, lists),
        named([stage.value for stage in STAGES], first.stage),
        pa.array(summed(count * (latency <= GOOD_US_MAX - error)), mask=is_unknown),
        pa.array(summed(count * (latency <= GOOD_US_MAX + error)), mask=is_unknown),
        pa.array(first.offset_us, mask=is_unknown),
        pa.array(first.error_us, mask=is_unknown),
        constant(SCHEMA_VERSION, number, pa.int16()),
    ]
    rows = pa.Table.from_arrays(columns, schema=SCHEMAS[TraceKind.LATENCY_HIST])
    return rows, brokers[broker[order][row_starts]], row_of_event


def _starts(sorted_keys: Int64) -> Int64:
    return np.flatnonzero(np.append(True, sorted_keys[1:] != sorted_keys[:-1]))


def _histograms(key: Int64, count: Int64, bucket_starts: Int64, lists: npt.NDArray[np.int32]) -> Any:
    kind = SCHEMAS[TraceKind.LATENCY_HIST].field("hist").type
    buckets = (key[bucket_starts] & (BUCKETS - 1)).astype(np.int32)
    counts = np.add.reduceat(count, bucket_starts)
    pairs = pa.StructArray.from_arrays(
        [pa.array(buckets), pa.array(counts)], fields=[kind.value_type.field(0), kind.value_type.field(1)]
    )
    return pa.ListArray.from_arrays(pa.array(lists), pairs, type=kind)
