"""What brokers count of one lane's chunk: latencies on their clocks, and the rows of single deliveries."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from georelay.trace.kinds import SCHEMA_VERSION, Stage, TraceKind
from georelay.trace.schema import SCHEMAS
from sla.generate.batches import Batches
from sla.generate.clocks import Clocks
from sla.generate.columns import constant, named
from sla.generate.latency_rows import STAGE_NUMBER, LatencyEvents
from sla.generate.ledger_rows import EPOCH
from sla.generate.traffic import Lane
from sla.generate.world import NS_PER_S, NS_PER_US, Int64, World

RECORD_BYTES: Final = 100
LATE_US: Final = 40_000  # from here on a delivery keeps its row for being late
REASONS: Final = ("sampled", "late", "duplicate", "retried")


def latencies(
    clocks: Clocks, lane: Lane, stage: Stage, due: Batches, *, since: Int64, origin: Int64, shown_ns: Int64
) -> LatencyEvents:
    """Return the latencies of a lane's batches in one stage.

    Args:
        since: true time at which the stage began. origin: region whose clock stamped that.
        shown_ns: `due.at` on the clock of the lane's region.
    """
    began_ns = clocks.shown(origin, since)
    received_ns = clocks.shown(origin if stage is Stage.REPLICATE else due.entry, _published(due, stage))
    second = received_ns // NS_PER_S
    if stage is Stage.DELIVER:
        offset_us = error_us = np.zeros(len(due), dtype=np.int64)
    else:
        offset_us, error_us = clocks.correction_us(lane.region, origin, second)
    brokers = np.array([session.broker for session in lane.sessions], dtype=np.int64)
    number = len(due)
    return LatencyEvents(
        broker=brokers[due.session],
        stage=np.full(number, STAGE_NUMBER[stage], dtype=np.int64),
        second=second,
        origin=due.entry if stage is Stage.DELIVER else origin,
        topic=np.full(number, lane.stream.topic, dtype=np.int64),
        latency_us=np.maximum(0, (shown_ns - began_ns) // NS_PER_US + offset_us),
        true_us=(due.at - since) // NS_PER_US,
        offset_us=offset_us,
        error_us=error_us,
        is_revised=clocks.is_revised(lane.region, origin, error_us),
        count=due.count,
    )


def _published(due: Batches, stage: Stage) -> Int64:
    return due.appended if stage is Stage.REPLICATE else due.received


def of_log(clocks: Clocks, lane: Lane, due: Batches, shown_ns: Int64) -> LatencyEvents:
    """Return the latencies that a home (commit) or a mirror (replicate) counts."""
    home = lane.stream.home
    if lane.region == home:
        return latencies(clocks, lane, Stage.COMMIT, due, since=due.received, origin=due.entry, shown_ns=shown_ns)
    homes = np.full(len(due), home, dtype=np.int64)
    return latencies(clocks, lane, Stage.REPLICATE, due, since=due.appended, origin=homes, shown_ns=shown_ns)


def of_consumer(clocks: Clocks, lane: Lane, due: Batches, shown_ns: Int64) -> list[LatencyEvents]:
    """Return the latencies of deliveries: total and, within the delivering region, deliver."""
    waited = due.is_live & (due.attempt == 1)
    due, shown_ns = due.take(waited), shown_ns[waited]
    here = np.full(len(due), lane.region, dtype=np.int64)
    return [
        latencies(clocks, lane, Stage.TOTAL, due, since=due.received, origin=due.entry, shown_ns=shown_ns),
        latencies(clocks, lane, Stage.DELIVER, due, since=due.ready, origin=here, shown_ns=shown_ns),
    ]


def delivery_table(
    world: World, clocks: Clocks, lane: Lane, due: Batches, shown_ns: Int64, sequence: Int64
) -> tuple[pa.Table, Int64]:
    """Return a row per delivery, without row numbers and run, and the broker of each."""
    number = len(due)
    region = lane.region
    brokers = np.array([session.broker for session in lane.sessions], dtype=np.int64)[due.session]
    numbers = np.array([session.number for session in lane.sessions], dtype=np.int64)[due.session]
    received_ns = clocks.shown(due.entry, due.received)
    ready_ns = clocks.shown(region, due.ready)
    offset_us, _ = clocks.correction_us(region, due.entry, received_ns // NS_PER_S)
    latency_us = np.maximum(0, (shown_ns - received_ns) // NS_PER_US + offset_us)
    reach = np.maximum.accumulate(np.append(0, due.end[:-1])) if number else due.end
    is_again = due.first < reach
    reason = np.where(due.attempt > 1, 3, np.where(is_again, 2, np.where(latency_us > LATE_US, 1, 0)))
    group = world.groups[lane.stream.topic]
    is_home = np.full(number, region == lane.stream.home)
    zeros = np.zeros(number, dtype=np.int64)
    texts = pa.array([str(broker) for broker in world.brokers(region)])
    columns = {
        "origin_region": named(world.regions, due.entry),
        "origin_broker": pa.nulls(number, pa.string()),
        "dest_region": constant(world.regions[region], number),
        "dest_broker": texts.take(pa.array(brokers - world.brokers(region)[0])),
        "topic": constant(world.topics[lane.stream.topic], number),
        "partition": constant(lane.stream.partition, number, pa.int32()),
        "epoch": constant(EPOCH, number, pa.int64()),
        "group": constant(group, number) if group else pa.nulls(number, pa.string()),
        "session_epoch": pa.array(numbers),
        "base_offset": pa.array(due.first),
        "count": pa.array(due.count, pa.int32()),
        "bytes": pa.array(due.count * RECORD_BYTES),
        "publish_first_ns": pa.array(received_ns),
        "publish_last_ns": pa.array(received_ns),
        "commit_ns": pa.array(ready_ns, mask=~is_home),
        "replicated_ns": pa.array(ready_ns, mask=is_home),
        "delivered_first_ns": pa.array(shown_ns),
        "delivered_last_ns": pa.array(shown_ns),
        "acked_ns": pa.nulls(number, pa.int64()),
        "lat_max_us": pa.array(latency_us),
        "attempt": pa.array(due.attempt, pa.int16()),
        "deliver_seq": pa.array(sequence),
        "sample_weight": constant(1.0, number, pa.float64()),
        "sample_reason": named(REASONS, reason),
        "traceparent": pa.nulls(number, pa.binary(16)),
        "row_seq": pa.array(zeros),  # and the run: the writer's
        "boot_id": constant("", number),
        "schema_version": constant(SCHEMA_VERSION, number, pa.int16()),
    }
    return pa.Table.from_pydict(columns, schema=SCHEMAS[TraceKind.DELIVERY]), brokers
