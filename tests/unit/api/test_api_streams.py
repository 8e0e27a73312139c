"""The native API `georelay.v1.Streams` against the in-memory region: publishing, reading by position, refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from georelay._pb import streams_pb2 as pb
from georelay.durability import Durability
from georelay.errors import BadRequest, NotLeader, OutcomeUnknown, PolicyViolation
from georelay.ids import brokers_own
from georelay.refusals import error_of
from georelay.wire.batch import build_batch, iterate_records
from region.api.streams import partition_pump, publish_call
from region.api.streams.outbox import Writer
from region.controller.topic import Homes
from tests.unit.api.native_in_memory import SECONDS, Native, refusal
from tests.unit.api.native_in_memory import native as native  # a fixture


def batch(*values: bytes, **settings: Any) -> bytes:
    return build_batch([(value, None, ()) for value in values], timestamps_ms=1_700_000_000_000, **settings)


async def acknowledgements(call: Any, count: int) -> list[Any]:
    """Return `count` acknowledgements in the order of arrival."""
    found: list[Any] = []
    async with asyncio.timeout(SECONDS):
        while len(found) < count:
            response = await call.read()
            assert response is not grpc.aio.EOF, await call.code()
            found += response.acknowledgements
    return found


# --- publishing -----------------------------------------------------------------------------------


async def test_a_producer_id_of_the_brokers_is_refused_from_a_client(native: Native, cluster: Any) -> None:
    cluster.add_topic("orders")
    call = native.publish_stream()
    raw = batch(b"a", producer_id=brokers_own(5), producer_epoch=0, base_sequence=0)
    await call.write(pb.PublishStreamRequest(publishes=[pb.Publish(tag=1, topic="orders", batch=raw)]))
    (refused,) = await acknowledgements(call, 1)
    assert (refused.outcome, refused.refusal.code) == (pb.OUTCOME_NOT_STORED, "POLICY_VIOLATION")
    assert cluster.published == []


async def test_a_batch_over_the_topics_size_is_refused_and_the_call_goes_on(native: Native, cluster: Any) -> None:
    cluster.add_topic("orders")
    await cluster.alter_topic("orders", {"max.message.bytes": "200"})
    call = native.publish_stream()
    publishes = [pb.Publish(tag=tag, topic="orders", batch=batch(b"x" * size)) for tag, size in ((1, 200), (2, 100))]
    await call.write(pb.PublishStreamRequest(publishes=publishes))
    refused, stored = sorted(await acknowledgements(call, 2), key=lambda row: row.tag)
    assert (refused.outcome, refused.refusal.code) == (pb.OUTCOME_NOT_STORED, "TOO_LARGE")
    assert (stored.outcome, stored.base_offset) == (pb.OUTCOME_STORED, 0)


async def test_opaque_batches_are_stored_as_they_came_and_answered_with_their_place(
    native: Native, cluster: Any
) -> None:
    cluster.add_topic("orders", 2)
    call = native.publish_stream()
    raws = [batch(b"a", b"b"), batch(b"c")]
    publishes = [
        pb.Publish(tag=7, topic="orders", partition=1, batch=raws[0]),
        pb.Publish(tag=9, topic="orders", partition=1, batch=raws[1]),
    ]
    await call.write(pb.PublishStreamRequest(publishes=publishes))
    first, second = await acknowledgements(call, 2)
    assert (first.tag, first.outcome, first.base_offset, first.epoch) == (7, pb.OUTCOME_STORED, 0, 1)
    assert (second.tag, second.base_offset) == (9, 2)
    assert (first.level, list(first.regions)) == (pb.LEVEL_REGION, ["us"])
    assert first.commit_us == cluster.stream("orders", 1).now_us
    stored = [bytes(entry.payload) for entry in cluster.stream("orders", 1).entries]
    assert [raw[21:] for raw in stored] == [raw[21:] for raw in raws]
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_the_first_response_says_the_window_and_who_answers(native: Native) -> None:
    call = native.publish_stream()
    await call.write(pb.PublishStreamRequest())
    window = (await call.read()).window
    assert (window.region, window.broker) == ("us", 1001)
    assert (window.bytes, window.publishes) == (publish_call.WINDOW_BYTES, publish_call.WINDOW_PUBLISHES)
    call.cancel()


async def test_records_get_their_places_and_keep_keys_headers_and_times(native: Native, cluster: Any) -> None:
    cluster.add_topic("orders", 3)
    call = native.publish_stream()
    given = [
        pb.NewRecord(key=b"k", value=b"v", headers=[pb.Header(name="h", value=b"1")], timestamp_ms=5),
        pb.NewRecord(key=b"k"),
    ]
    publish = pb.Publish(tag=1, topic="orders", partition=-1, records=pb.NewRecords(records=given))
    await call.write(pb.PublishStreamRequest(publishes=[publish]))
    (answer,) = await acknowledgements(call, 1)
    assert answer.outcome == pb.OUTCOME_STORED
    (partition,) = set(answer.places.partitions)
    assert list(answer.places.offsets) == [0, 1]
    (entry,) = cluster.stream("orders", partition).entries
    first, second = iterate_records(entry.payload)
    assert (first.key, first.value, first.headers, first.timestamp_ms) == (b"k", b"v", (("h", b"1"),), 5)
    assert (second.key, second.value, second.headers) == (b"k", None, ())
    call.cancel()


async def test_a_geo_level_that_is_reached_is_stored_and_names_the_regions(native: Native, cluster: Any) -> None:
    cluster.add_topic("orders")
    call = native.publish_stream()
    geo: dict[str, Any] = {"topic": "orders", "level": pb.LEVEL_GEO, "deadline_ms": 700}
    publishes = [
        pb.Publish(tag=1, batch=batch(b"a"), regions=2, **geo),
        pb.Publish(tag=2, records=pb.NewRecords(records=[pb.NewRecord(value=b"b")]), regions=-2, **geo),
    ]
    await call.write(pb.PublishStreamRequest(publishes=publishes))
    for answer in await acknowledgements(call, 2):
        assert (answer.outcome, answer.level, len(answer.regions)) == (pb.OUTCOME_STORED, pb.LEVEL_GEO, 3)
    assert [level.durability for level in cluster.levels] == [Durability(2), Durability.ALL]
    assert {level.deadline_ms for level in cluster.levels} == {700, 704}
    call.cancel()


async def test_a_geo_level_that_is_not_reached_in_time_is_pending_with_its_position(
    native: Native, cluster: Any
) -> None:
    cluster.add_topic("orders")
    cluster.regions_reached = 1
    call = native.publish_stream()
    geo: dict[str, Any] = {"topic": "orders", "level": pb.LEVEL_GEO, "regions": 2}
    records = pb.NewRecords(records=[pb.NewRecord(value=b"b")])
    publishes = [pb.Publish(tag=1, batch=batch(b"a"), **geo), pb.Publish(tag=2, records=records, **geo)]
    await call.write(pb.PublishStreamRequest(publishes=publishes))
    for answer in await acknowledgements(call, 2):
        assert (answer.outcome, answer.level, answer.epoch) == (pb.OUTCOME_PENDING, pb.LEVEL_REGION, 1)
        assert answer.base_offset == answer.tag - 1
    call.cancel()


@pytest.mark.parametrize(("level", "regions"), [(pb.LEVEL_GEO, 1), (pb.LEVEL_GEO, 0), (pb.LEVEL_GEO, 65), (7, 2)])
async def test_a_level_that_is_no_level_is_refused_and_nothing_is_stored(
    native: Native, cluster: Any, level: Any, regions: int
) -> None:
    cluster.add_topic("orders")
    call = native.publish_stream()
    publish = pb.Publish(tag=1, topic="orders", batch=batch(b"a"), level=level, regions=regions)
    await call.write(pb.PublishStreamRequest(publishes=[publish]))
    (answer,) = await acknowledgements(call, 1)
    assert (answer.outcome, answer.refusal.code) == (pb.OUTCOME_NOT_STORED, "BAD_REQUEST")
    assert cluster.stream("orders", 0).entries == []
    call.cancel()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "orders", "partition": 9, "batch": batch(b"a")}, "UNKNOWN_TOPIC"),
        ({"topic": "orders", "batch": b"rubbish"}, "CORRUPT_RECORD_BATCH"),
        ({"topic": "orders"}, "BAD_REQUEST"),
        ({"topic": "orders", "records": pb.NewRecords()}, "BAD_REQUEST"),
        ({"topic": "orders", "batch": batch(b"a"), "deadline_ms": -1}, "BAD_REQUEST"),
        ({"topic": "eu.clicks", "batch": batch(b"a")}, "POLICY_VIOLATION"),
    ],
)
async def test_a_publish_that_cannot_be_is_answered_and_the_call_goes_on(
    native: Native, cluster: Any, fields: dict[str, Any], code: str
) -> None:
    cluster.add_topic("orders")
    cluster.add_topic("eu.clicks", homes=Homes.EVERY, mirror_of="clicks")
    call = native.publish_stream()
    publishes = [pb.Publish(tag=1, **fields), pb.Publish(tag=2, topic="orders", batch=batch(b"good"))]
    await call.write(pb.PublishStreamRequest(publishes=publishes))
    bad, good = await acknowledgements(call, 2)
    assert (bad.tag, bad.outcome, bad.refusal.code) == (1, pb.OUTCOME_NOT_STORED, code)
    assert (good.tag, good.outcome) == (2, pb.OUTCOME_STORED)
    call.cancel()


async def test_an_unknown_outcome_is_told_as_unknown_and_a_refusal_as_not_stored(native: Native, cluster: Any) -> None:
    cluster.add_topic("orders")
    cluster.publish_errors += [OutcomeUnknown("lost"), NotLeader()]
    call = native.publish_stream()
    publishes = [pb.Publish(tag=tag, topic="orders", batch=batch(b"a")) for tag in (1, 2)]
    await call.write(pb.PublishStreamRequest(publishes=publishes))
    lost, refused = await acknowledgements(call, 2)
    assert (lost.outcome, lost.refusal.code) == (pb.OUTCOME_UNKNOWN, "OUTCOME_UNKNOWN")
    assert (refused.outcome, refused.refusal.code, refused.refusal.retry) == (
        pb.OUTCOME_NOT_STORED,
        "NOT_LEADER",
        "refresh",
    )
    assert isinstance(error_of(refused.refusal), NotLeader)
    call.cancel()


async def test_a_publish_past_its_deadline_is_answered_once_with_unknown(
    native: Native, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_call, "SWEEP_S", 0.01)
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.auto_commit = False
    call = native.publish_stream()
    publish = pb.Publish(tag=1, topic="orders", batch=batch(b"a"), deadline_ms=500)
    await call.write(pb.PublishStreamRequest(publishes=[publish]))
    while not stream.entries:
        await asyncio.sleep(0.001)
    native.clock.now_ns += 600_000_000
    (late,) = await acknowledgements(call, 1)
    assert (late.outcome, late.refusal.outcome) == (pb.OUTCOME_UNKNOWN, "unknown")
    stream.commit()
    stream.auto_commit = True
    await call.write(pb.PublishStreamRequest(publishes=[pb.Publish(tag=1, topic="orders", batch=batch(b"b"))]))
    (again,) = await acknowledgements(call, 1)
    assert (again.tag, again.outcome, again.base_offset) == (1, pb.OUTCOME_STORED, 1)
    call.cancel()


def values(kind: str, *values: bytes) -> dict[str, Any]:
    """Return the payload of a publish: a batch, or records."""
    if kind == "batch":
        return {"batch": batch(*values)}
    return {"records": pb.NewRecords(records=[pb.NewRecord(value=value) for value in values])}


@pytest.mark.parametrize("error", [None, PolicyViolation("no")], ids=["stored", "refused"])
@pytest.mark.parametrize("kind", ["batch", "records"])
async def test_what_comes_of_a_late_publish_answers_no_other_one_of_its_tag(
    native: Native, cluster: Any, monkeypatch: pytest.MonkeyPatch, kind: str, error: PolicyViolation | None
) -> None:
    monkeypatch.setattr(publish_call, "SWEEP_S", 0.01)
    cluster.add_topic("orders", 2)
    late, other = (cluster.stream("orders", partition) for partition in range(2))
    other.add(b"before")
    late.auto_commit = other.auto_commit = False
    call = native.publish_stream()

    async def publish(stream: Any, *, deadline_ms: int) -> None:
        place: dict[str, Any] = {"topic": "orders", "partition": stream.partition, "deadline_ms": deadline_ms}
        await call.write(pb.PublishStreamRequest(publishes=[pb.Publish(tag=7, **place, **values(kind, b"a"))]))
        async with asyncio.timeout(SECONDS):
            while stream.next_offset == stream.high_watermark:
                await asyncio.sleep(0.001)

    await publish(late, deadline_ms=500)
    native.clock.now_ns += 600_000_000
    assert [row.outcome for row in await acknowledgements(call, 1)] == [pb.OUTCOME_UNKNOWN]
    await publish(other, deadline_ms=0)
    late.commit() if error is None else late.fail_pending(error)
    await asyncio.sleep(0.05)
    other.commit()
    (answer,) = await acknowledgements(call, 1)
    assert (answer.tag, answer.outcome, answer.base_offset) == (7, pb.OUTCOME_STORED, 1)
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF


async def test_records_with_a_transactional_id_are_refused_because_they_would_be_in_no_transaction(
    native: Native, cluster: Any
) -> None:
    cluster.add_topic("orders")
    call = native.publish_stream()
    publishes = [
        pb.Publish(tag=1, topic="orders", transactional_id="bank", **values("records", b"a")),
        pb.Publish(tag=2, topic="orders", **values("records", b"b")),
    ]
    await call.write(pb.PublishStreamRequest(publishes=publishes))
    refused, stored = sorted(await acknowledgements(call, 2), key=lambda row: row.tag)
    assert (refused.outcome, refused.refusal.code) == (pb.OUTCOME_NOT_STORED, "BAD_REQUEST")
    assert "as a batch" in refused.refusal.text
    assert (stored.outcome, stored.base_offset) == (pb.OUTCOME_STORED, 0)
    assert [record.value for record in iterate_records(cluster.stream("orders", 0).entries[0].payload)] == [b"b"]
    call.cancel()


async def test_nothing_of_a_call_waits_on_when_its_answers_cannot_be_written(
    native: Native, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_topic("orders", 2)
    streams = [cluster.stream("orders", partition) for partition in range(2)]
    for stream in streams:
        stream.auto_commit = False
    write = Writer.write

    async def broken(writer: Writer, response: Any) -> None:
        if response.acknowledgements:
            raise ConnectionError("the client has gone")
        await write(writer, response)

    def waiting() -> list[Any]:
        return [task for task in asyncio.all_tasks() if "_all_answered" in str(task.get_coro())]

    monkeypatch.setattr(Writer, "write", broken)
    call = native.publish_stream()
    publishes = [pb.Publish(tag=tag, topic="orders", partition=tag, batch=batch(b"a")) for tag in range(2)]
    await call.write(pb.PublishStreamRequest(publishes=publishes))
    await call.done_writing()
    async with asyncio.timeout(SECONDS):
        while not waiting():
            await asyncio.sleep(0.001)
        streams[0].commit()  # the answer to this one cannot be written, the other one is never answered
        while await call.read() is not grpc.aio.EOF:
            pass
    assert waiting() == []


async def test_a_call_beyond_its_window_is_not_read(
    native: Native, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_call, "WINDOW_PUBLISHES", 2)
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.auto_commit = False
    call = native.publish_stream()
    publishes = [pb.Publish(tag=tag, topic="orders", batch=batch(b"a")) for tag in range(5)]
    await call.write(pb.PublishStreamRequest(publishes=publishes))
    while len(stream.entries) < 2:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    assert len(stream.entries) == 2
    stream.auto_commit = True
    stream.commit()
    answers = await acknowledgements(call, 5)
    assert [answer.base_offset for answer in answers] == [0, 1, 2, 3, 4]
    call.cancel()


async def test_a_tag_that_stands_twice_ends_the_call(native: Native, cluster: Any) -> None:
    cluster.add_topic("orders")
    cluster.stream("orders", 0).auto_commit = False
    call = native.publish_stream()
    publishes = [pb.Publish(tag=1, topic="orders", batch=batch(b"a"))] * 2
    await call.write(pb.PublishStreamRequest(publishes=publishes))
    assert await refusal(call) == ("INVALID_ARGUMENT", "BAD_REQUEST")


async def test_what_is_on_its_way_is_answered_after_the_client_has_ended_its_side(native: Native, cluster: Any) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.auto_commit = False
    call = native.publish_stream()
    await call.write(pb.PublishStreamRequest(publishes=[pb.Publish(tag=1, topic="orders", batch=batch(b"a"))]))
    await call.done_writing()
    while not stream.entries:
        await asyncio.sleep(0.001)
    stream.commit()
    assert (await acknowledgements(call, 1))[0].outcome == pb.OUTCOME_STORED
    assert await call.read() is grpc.aio.EOF


# --- subscribing ----------------------------------------------------------------------------------


def start(*positions: Any, credit: int = 1 << 20, **settings: Any) -> Any:
    return pb.SubscribeRequest(
        start=pb.SubscribeStart(positions=pb.StartPositions(positions=positions), credit_bytes=credit, **settings)
    )


async def response(call: Any, kind: str) -> Any:
    """Return the next response, which is of this kind."""
    async with asyncio.timeout(SECONDS):
        found = await call.read()
    assert found is not grpc.aio.EOF, await call.code()
    assert found.WhichOneof("response") == kind, found
    return getattr(found, kind)


async def opened(call: Any) -> Any:
    """Return the starts of a subscription that was just begun."""
    assert (await response(call, "opened")).region == "us"
    return (await response(call, "started")).starts


async def test_batches_are_delivered_as_they_are_stored(native: Native, cluster: Any) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.add(b"a", b"b")
    stream.add(b"c")
    call = native.subscribe()
    await call.write(start(pb.StartPosition(stream="orders", earliest=True, cursor=5)))
    (begun,) = await opened(call)
    assert (begun.standing, begun.offset, begun.high_watermark, begun.cursor) == (pb.STANDING_OK, 0, 3, 5)
    delivery = await response(call, "delivery")
    assert list(delivery.batches) == [bytes(entry.payload) for entry in stream.entries]
    assert (delivery.stream, delivery.partition, delivery.cursor, delivery.next_offset) == ("orders", 0, 5, 3)
    stream.add(b"d")
    assert (await response(call, "delivery")).next_offset == 4
    call.cancel()


async def test_records_are_delivered_unfolded_from_the_offset_on(native: Native, cluster: Any) -> None:
    cluster.add_topic("orders")
    cluster.stream("orders", 0).add(b"a", b"b", b"c")
    call = native.subscribe()
    place = pb.StartPosition(stream="orders", partition=0, position=pb.Position(epoch=-1, offset=1))
    await call.write(start(place, records=True))
    assert (await opened(call))[0].offset == 1
    delivery = await response(call, "delivery")
    assert [(record.offset, record.value) for record in delivery.records] == [(1, b"b"), (2, b"c")]
    assert list(delivery.batches) == []
    call.cancel()


async def test_nothing_is_delivered_beyond_the_credit(native: Native, cluster: Any) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    for number in range(3):
        stream.add(b"%d" % number * (partition_pump.READ_BYTES_MIN + 1))
    call = native.subscribe()
    await call.write(start(pb.StartPosition(stream="orders", earliest=True), credit=1))
    await opened(call)
    assert (await response(call, "delivery")).next_offset == 1
    reading = asyncio.ensure_future(call.read())
    done, _ = await asyncio.wait((reading,), timeout=0.1)
    assert not done
    await call.write(pb.SubscribeRequest(credit_bytes=2 * partition_pump.READ_BYTES_MIN))
    assert (await reading).delivery.next_offset == 2
    call.cancel()


@pytest.mark.parametrize(
    ("epoch", "offset", "standing"),
    [
        (1, 2, pb.STANDING_OK),
        (-1, 1, pb.STANDING_OK),
        (1, 7, pb.STANDING_OUT_OF_RANGE),  # this broker leads the home: nothing is there
        (3, 2, pb.STANDING_DIVERGED),
    ],
)
async def test_a_position_is_answered_with_how_it_stands(
    native: Native, cluster: Any, epoch: int, offset: int, standing: int
) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.add(b"a", b"b")
    stream.epoch_ends = {1: (1, 2), 3: (2, 1)}
    call = native.subscribe()
    place = pb.StartPosition(stream="orders", partition=0, position=pb.Position(epoch=epoch, offset=offset))
    await call.write(start(place))
    (begun,) = await opened(call)
    assert begun.standing == standing
    if standing == pb.STANDING_DIVERGED:
        assert (begun.epoch, begun.offset) == (2, 1)
    call.cancel()


async def test_a_position_that_a_mirror_has_not_reached_is_waited_for(native: Native, cluster: Any) -> None:
    cluster.add_topic("eu.clicks", homes=Homes.EVERY, mirror_of="clicks")
    stream = cluster.stream("eu.clicks", 0)
    stream.add(b"a")
    call = native.subscribe()
    place = pb.StartPosition(stream="eu.clicks", partition=0, position=pb.Position(epoch=1, offset=3))
    await call.write(start(place))
    (begun,) = await opened(call)
    assert (begun.standing, begun.behind) == (pb.STANDING_BEHIND, 2)
    stream.add(b"b", b"c")
    stream.add(b"d")
    assert (await response(call, "delivery")).next_offset == 4
    call.cancel()


async def test_a_seek_moves_the_partition_and_marks_what_follows(native: Native, cluster: Any) -> None:
    cluster.add_topic("orders")
    cluster.stream("orders", 0).add(b"a")
    call = native.subscribe()
    await call.write(start(pb.StartPosition(stream="orders", earliest=True)))
    await opened(call)
    await response(call, "delivery")
    place = pb.StartPosition(stream="orders", partition=0, earliest=True, cursor=2)
    await call.write(pb.SubscribeRequest(seek=pb.Seek(positions=[place])))
    assert (await response(call, "started")).starts[0].cursor == 2
    assert (await response(call, "delivery")).cursor == 2
    call.cancel()


async def test_a_paused_partition_is_not_read_until_it_goes_on(native: Native, cluster: Any) -> None:
    cluster.add_topic("orders", 2)
    stream = cluster.stream("orders", 0)
    call = native.subscribe()
    await call.write(start(pb.StartPosition(stream="orders", latest=True)))
    await opened(call)
    key = [pb.StreamPartition(stream="orders", partition=0)]
    await call.write(pb.SubscribeRequest(pause=pb.Pause(partitions=key)))
    other = pb.StartPosition(stream="orders", partition=1, latest=True)
    await call.write(pb.SubscribeRequest(seek=pb.Seek(positions=[other])))  # answered after the pause was taken
    await response(call, "started")
    stream.add(b"seen")  # the read that was waiting when the pause came
    assert (await response(call, "delivery")).next_offset == 1
    stream.add(b"unseen")
    reading = asyncio.ensure_future(call.read())
    done, _ = await asyncio.wait((reading,), timeout=0.1)
    assert not done
    await call.write(pb.SubscribeRequest(pause=pb.Pause(partitions=key, resume=True)))
    assert (await reading).delivery.next_offset == 2
    call.cancel()


async def test_a_topic_of_every_region_is_read_from_all_its_streams(native: Native, cluster: Any) -> None:
    cluster.add_topic("clicks", homes=Homes.EVERY)
    cluster.add_topic("us.clicks", homes=Homes.EVERY, mirror_of="clicks")
    cluster.add_topic("eu.clicks", homes=Homes.EVERY, mirror_of="clicks")
    call = native.subscribe()
    await call.write(start(pb.StartPosition(stream="clicks", earliest=True)))
    assert {begun.stream for begun in await opened(call)} == {"us.clicks", "eu.clicks"}
    call.cancel()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (pb.SubscribeRequest(credit_bytes=5), ("INVALID_ARGUMENT", "BAD_REQUEST")),
        (pb.SubscribeRequest(start=pb.SubscribeStart()), ("INVALID_ARGUMENT", "BAD_REQUEST")),
        (start(pb.StartPosition(stream="nowhere", earliest=True)), ("NOT_FOUND", "UNKNOWN_TOPIC")),
        (start(pb.StartPosition(stream="orders")), ("INVALID_ARGUMENT", "BAD_REQUEST")),
        (start(pb.StartPosition(stream="orders", position=pb.Position())), ("INVALID_ARGUMENT", "BAD_REQUEST")),
        (start(pb.StartPosition(stream="orders", earliest=True), credit=-1), ("INVALID_ARGUMENT", "BAD_REQUEST")),
        (
            pb.SubscribeRequest(start=pb.SubscribeStart(group=pb.GroupMembership(group="g", topics=["orders"]))),
            ("UNAVAILABLE", "UNAVAILABLE"),
        ),
    ],
)
async def test_a_subscription_that_cannot_be_ends_with_its_status(
    native: Native, cluster: Any, request_: Any, status: tuple[str, str]
) -> None:
    cluster.add_topic("orders")
    call = native.subscribe()
    await call.write(request_)
    assert await refusal(call) == status


async def test_a_partition_that_breaks_ends_the_subscription(
    native: Native, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    call = native.subscribe()
    await call.write(start(pb.StartPosition(stream="orders", latest=True)))
    await opened(call)

    def broken(*_: Any) -> Any:
        raise BadRequest("broken on purpose")

    monkeypatch.setattr(stream, "read", broken)
    stream.add(b"a")
    assert await refusal(call) == ("INVALID_ARGUMENT", "BAD_REQUEST")


async def test_leaving_ends_the_readers(native: Native, cluster: Any) -> None:
    cluster.add_topic("orders", 3)
    call = native.subscribe()
    await call.write(start(pb.StartPosition(stream="orders", latest=True)))
    await opened(call)
    streams = [cluster.stream("orders", partition) for partition in range(3)]
    async with asyncio.timeout(SECONDS):
        while not all(stream.waiter_count for stream in streams):
            await asyncio.sleep(0.01)
        call.cancel()
        while any(stream.waiter_count for stream in streams):
            await asyncio.sleep(0.01)
