"""Single records of gRPC and REST that are not stored are told with their partition and number, once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import Busy, OutcomeUnknown, PolicyViolation, TooLarge
from georelay.lane import RECORD_BYTES_MAX
from georelay.lane_core import LaneLimits
from region.api.coalescer import Coalescer, NewRecord
from region.api.publishing import RecordPublisher

Told = list[tuple[str, int, int, type[BaseException]]]


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
async def coalescer(cluster: Any, told: Told) -> Any:
    cluster.add_topic("orders")

    def note(name: str, partition: int, records: int, error: BaseException) -> None:
        told.append((name, partition, records, type(error)))

    coalescer = Coalescer(cluster, entry_region=1, wall_ns=lambda: 1, monotonic_ns=lambda: 1, refused=note)
    yield coalescer
    await coalescer.close()


async def test_stored_records_are_told_to_nobody(coalescer: Any, told: Told) -> None:
    for future in coalescer.publish("orders", 0, [NewRecord(b"a"), NewRecord(b"b")]):
        await future
    assert told == []


async def test_records_of_a_batch_that_is_given_up_are_told(cluster: Any, coalescer: Any, told: Told) -> None:
    cluster.publish_errors = [PolicyViolation("no")]
    (future,) = coalescer.publish("orders", 0, [NewRecord(b"a"), NewRecord(b"b")])
    with pytest.raises(PolicyViolation):
        await future
    assert told == [("orders", 0, 2, PolicyViolation)]


async def test_records_that_wait_when_the_broker_stops_are_told_as_unknown(
    cluster: Any, coalescer: Any, told: Told
) -> None:
    cluster.stream("orders", 0).auto_commit = False
    (future,) = coalescer.publish("orders", 0, [NewRecord(b"a"), NewRecord(b"b")])
    await coalescer.close()
    with pytest.raises(OutcomeUnknown):
        await future
    await asyncio.sleep(0)  # futures tell in the next turn of the loop
    assert told == [("orders", 0, 2, OutcomeUnknown)]


async def test_records_that_are_refused_before_they_wait_are_told(coalescer: Any, told: Told) -> None:
    with pytest.raises(TooLarge):
        coalescer.publish("orders", 0, [NewRecord(b"x" * (RECORD_BYTES_MAX + 1))])
    assert told == [("orders", 0, 1, TooLarge)]


async def test_a_full_queue_tells_what_it_does_not_take(cluster: Any, coalescer: Any, told: Told) -> None:
    cluster.stream("orders", 0).auto_commit = False
    record = NewRecord(b"x" * 900_000)
    while coalescer.pending_bytes + record.size_bytes <= LaneLimits().queue_bytes:
        coalescer.publish("orders", 0, [record])
    with pytest.raises(Busy):
        coalescer.publish("orders", 0, [record])
    assert told == [("orders", 0, 1, Busy)]


@pytest.mark.parametrize("first_is_taken", [False, True])
async def test_partitions_that_are_not_tried_after_a_refusal_are_told_too(
    cluster: Any, coalescer: Any, told: Told, first_is_taken: bool
) -> None:
    topic = cluster.add_topic("wide", partitions=3) or cluster.topic("wide")
    too_large = NewRecord(b"x" * (RECORD_BYTES_MAX + 1))
    small = NewRecord(b"a")
    records = [(small if first_is_taken else too_large, 0), (too_large, 1), (small, 2), (small, 2)]
    with pytest.raises((TooLarge, OutcomeUnknown)):
        await RecordPublisher(cluster, coalescer).begin(topic, "wide", records)
    expected = [("wide", 1, 1, TooLarge), ("wide", 2, 2, TooLarge)]
    assert told == (expected if first_is_taken else [("wide", 0, 1, TooLarge), *expected])
