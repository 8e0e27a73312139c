"""What Produce did not store is told to the traces: by stream, once, and only by the error path."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import Busy, NotHome, NotLeader, OutcomeUnknown
from georelay.wire.api import ApiKey
from region.controller.topic import Homes
from tests.unit.kafka.test_kafka_produce_fetch import batch, call_produce, produce, produced, wait_until


async def test_a_stored_publish_leaves_no_trace_of_a_refusal(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    await call_produce(await bed.client(), produce(("orders", 0, batch(b"a", b"b"))))
    assert bed.recorder.not_stored == []


@pytest.mark.parametrize(("error", "is_decided"), [(Busy("full"), True), (OutcomeUnknown("lost"), False)])
async def test_the_records_of_a_publish_that_fails_are_told_by_stream(
    bed: Any, error: Exception, is_decided: bool
) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.publish_errors = [error]
    await call_produce(await bed.client(), produce(("orders", 0, batch(b"a", b"b", b"c"))))
    assert bed.recorder.not_stored == [("orders", 0, 0, 3, is_decided)]


async def test_a_stream_of_every_home_is_named_with_its_region(bed: Any) -> None:
    bed.cluster.add_topic("orders", homes=Homes.EVERY)
    bed.cluster.publish_errors = [Busy("full")]
    await call_produce(await bed.client(), produce(("orders", 0, batch(b"a"))))
    assert bed.recorder.not_stored == [("orders", bed.cluster.region_number, 0, 1, True)]


@pytest.mark.parametrize("error", [NotLeader(leader=2), NotHome("elsewhere", epoch=1, home=2)])
async def test_a_redirection_is_no_refusal(bed: Any, error: Exception) -> None:
    bed.cluster.add_topic("orders")
    bed.cluster.publish_errors = [error]
    await call_produce(await bed.client(), produce(("orders", 0, batch(b"a"))))
    assert bed.recorder.not_stored == []


async def test_nobody_makes_up_a_stream_or_a_number_of_records(bed: Any) -> None:
    bed.cluster.add_topic("orders")
    damaged = bytearray(batch(b"a"))
    damaged[-1] ^= 1
    await call_produce(await bed.client(), produce(("nowhere", 0, batch(b"a")), ("orders", 7, batch(b"a"))))
    await call_produce(await bed.client(), produce(("orders", 0, bytes(damaged))))
    assert [row for row in bed.recorder.not_stored if row[3]] == []


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_late_answer_counts_the_records_by_what_became_of_them(bed: Any, is_stored: bool) -> None:
    bed.cluster.add_topic("orders")
    stream = bed.cluster.stream("orders", 0)
    stream.auto_commit = False
    client = await bed.client()
    client.send(produce(("orders", 0, batch(b"a", b"b")), timeout_ms=1), 9)
    await wait_until(lambda: bed.cluster.published)
    (connection,) = bed.listener._connections
    connection.sweep(bed.services.monotonic_ns() + 2_000_000_000)
    await client.receive(ApiKey.PRODUCE, 9)
    assert bed.recorder.not_stored == []  # its end is not known
    if is_stored:
        stream.commit()
    else:
        stream.fail_pending(Busy("gone"))
    after = await call_produce(client, produce(("missing", 0, batch(b"x"))))
    assert len(after) == 1
    assert bed.recorder.not_stored == ([] if is_stored else [("orders", 0, 0, 2, True)])
    counters = bed.services.counters
    attempts = counters.publishes_stored + sum(counters.publish_errors.values())
    assert attempts == 2, "the late publish and the one to nowhere, each once"


async def test_partitions_of_one_request_are_told_apart(bed: Any) -> None:
    bed.cluster.add_topic("orders", partitions=2)
    bed.cluster.publish_errors = [Busy("full")]
    client = await bed.client()
    client.send(produce(("orders", 0, batch(b"a")), ("orders", 1, batch(b"b", b"c"))), 9)
    rows = produced((await client.receive(ApiKey.PRODUCE, 9))[1])
    assert [code == 0 for code, _ in rows] == [False, True]
    assert bed.recorder.not_stored == [("orders", 0, 0, 1, True)]
