"""Batches that unfold to much more than they are: nothing but a chunk of them is held, and the event loop goes on."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from georelay._pb import streams_pb2 as pb
from georelay.errors import Busy, CorruptRecordBatch
from georelay.ids import Epoch
from georelay.limits import MIB
from georelay.wire.batch import HEADER_BYTES, Compression, Record, build_batch
from georelay.wire.control_batch import build_marker
from georelay.wire.records import open_records
from mesh.replication.publish import Publish
from region.api import record_answers, unfolding
from region.api.admin_http import AdminHttp
from region.api.coalescer import Coalescer
from region.api.metrics import BrokerMetrics
from region.api.publishing import RecordPublisher
from region.api.reading import StreamReader
from region.api.record_answers import text_bytes
from region.api.record_json import record_json
from region.api.records_http import RecordsHttp
from region.api.streams.credit import Credit
from region.api.streams.partition_pump import READ_BYTES_MAX, PartitionPump
from region.api.streams.standing_core import Judgement, Standing
from region.api.streams.starting import Place, StartPoint
from region.api.unfolding import CHUNK_RECORDS, record_chunks
from region.api.unfolding_memory import UnfoldingMemory
from region.kafka.counters import KafkaCounters


class _Entry:
    def __init__(self, payload: bytes) -> None:
        self.payload = payload


def batch(count: int, size_bytes: int, compression: Compression) -> bytes:
    rows = [(bytes(size_bytes), None, ()) for _ in range(count)]
    return build_batch(rows, timestamps_ms=1, compression=compression)


def damaged(raw: bytes, *, record: int) -> bytes:
    """Return a batch of empty records, one of which says that it is longer than it is."""
    rows = bytearray(raw)
    position = HEADER_BYTES
    for _ in range(record):
        position += 1 + rows[position] // 2
    rows[position] += 2
    return bytes(rows)


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.NONE])
@pytest.mark.parametrize("count", [1, CHUNK_RECORDS, 2 * CHUNK_RECORDS + 1])
async def test_all_records_come_in_their_order_a_chunk_at_a_time(compression: Compression, count: int) -> None:
    entry: Any = _Entry(batch(count, 100, compression))
    chunks = [chunk async for chunk in record_chunks(entry)]
    assert [record.offset for chunk in chunks for record in chunk] == list(range(count))
    assert all(len(chunk) <= CHUNK_RECORDS for chunk in chunks)


async def test_what_is_compressed_is_unfolded_off_the_event_loop_however_small_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: set[int] = set()

    def noted(payload: Any, *, validated: bool) -> Any:
        threads.add(threading.get_ident())
        return open_records(payload, validated=validated)

    monkeypatch.setattr(unfolding, "open_records", noted)
    entry: Any = _Entry(batch(20_000, 0, Compression.GZIP))
    assert len(entry.payload) < 128 * 1024
    assert sum([len(chunk) async for chunk in record_chunks(entry)]) == 20_000
    assert threads and threading.get_ident() not in threads


async def test_batches_are_unfolded_in_threads_that_sign_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[Any] = []
    loop = asyncio.get_running_loop()
    plain = loop.run_in_executor

    def noted(pool: Any, work: Any, *given: Any) -> Any:
        pools.append(pool)
        return plain(pool, work, *given)

    monkeypatch.setattr(loop, "run_in_executor", noted)
    raw = batch(10, 10, Compression.GZIP)
    entry: Any = _Entry(raw)
    assert [len(chunk) async for chunk in record_chunks(entry)] == [10]
    assert await unfolding.off_loop(raw, lambda: len(list(open_records(raw)[1]))) == 10
    assert pools == [unfolding.POOL, unfolding.POOL]


async def test_what_is_unfolded_for_somebody_who_left_counts_until_its_thread_is_done() -> None:
    memory = UnfoldingMemory()
    raw = batch(10, 10, Compression.GZIP)
    may_end = threading.Event()
    waiting = asyncio.ensure_future(unfolding.off_loop(raw, may_end.wait, memory))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert memory.used_bytes > 0
    may_end.set()
    async with asyncio.timeout(5):
        while memory.used_bytes:
            await asyncio.sleep(0)


async def test_a_chunk_is_cut_where_its_headers_take_much_and_what_stands_before_a_flaw_comes_first() -> None:
    headers = (("h", None),) * 1_000
    rows = [(b"", None, headers) for _ in range(40)]
    raw = build_batch(rows, timestamps_ms=1, compression=Compression.GZIP)
    entry: Any = _Entry(raw)
    assert [len(chunk) async for chunk in record_chunks(entry)] == [33, 7]

    flawed: Any = _Entry(damaged(batch(2_500, 0, Compression.NONE), record=1_500))
    seen: list[int] = []

    async def read() -> None:
        async for chunk in record_chunks(flawed):
            seen.append(len(chunk))

    with pytest.raises(CorruptRecordBatch, match="record 1500"):
        await read()
    assert seen == [1_000, 500]


def records_pump(
    cluster: Any, put: Any, *, credit: Credit, end: int, as_records: bool = True, partition: int = 0, **settings: Any
) -> PartitionPump:
    """Return what delivers the records of a partition of `orders`, from the first one on."""
    asked = pb.StartPosition(stream="orders", earliest=True)
    point = StartPoint(
        place=Place(stream="orders", partition=partition, asked=asked),
        judgement=Judgement(standing=Standing.OK, offset=0),
        log_start=0,
        high_watermark=end,
    )
    return PartitionPump(
        point,
        reader=StreamReader(cluster),
        credit=credit,
        put=put,
        trace=lambda _: None,  # type: ignore[arg-type,return-value]
        wall_ns=lambda: 1,
        delivered=lambda _: None,
        as_records=as_records,
        **settings,
    )


@pytest.mark.parametrize("as_records", [True, False])
async def test_who_stands_behind_a_marker_of_a_later_epoch_has_that_epoch(cluster: Any, as_records: bool) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.add(b"a")
    stream.epoch = Epoch(2)
    stream.add_raw(build_marker(producer_id=8, producer_epoch=0, is_commit=False, coordinator_epoch=1, timestamp_ms=1))
    delivered: list[pb.Delivery] = []

    async def put(response: pb.SubscribeResponse) -> None:
        delivered.append(response.delivery)
        raise StopAsyncIteration

    pump = records_pump(cluster, put, credit=Credit(MIB), end=2, as_records=as_records)
    with pytest.raises((StopAsyncIteration, RuntimeError)):
        await pump.run()
    (last,) = delivered
    assert (last.next_offset, last.epoch) == (2, 2)


async def test_records_of_one_batch_leave_in_deliveries_that_credit_and_quota_count(cluster: Any) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.publish(_published(batch(40, MIB // 8, Compression.GZIP)))
    delivered: list[pb.Delivery] = []
    counted: list[int] = []

    async def put(response: pb.SubscribeResponse) -> None:
        delivered.append(response.delivery)
        credit.give(0 if response.delivery.next_offset == 40 else 2 * MIB)

    def throttle(size_bytes: int) -> int:
        counted.append(size_bytes)
        if sum(len(delivery.records) for delivery in delivered) == 40:
            raise StopAsyncIteration
        return 0

    credit = Credit(2 * MIB)
    pump = records_pump(cluster, put, credit=credit, end=40, throttle_ms=throttle)
    with pytest.raises((StopAsyncIteration, RuntimeError)):
        await pump.run()
    assert [record.offset for delivery in delivered for record in delivery.records] == list(range(40))
    assert all(delivery.ByteSize() < READ_BYTES_MAX + MIB // 4 for delivery in delivered)
    assert [delivery.next_offset for delivery in delivered[:2]] == [8, 16]
    assert sum(counted) >= 5 * MIB


def _published(raw: bytes) -> Publish:
    return Publish.built(raw, received_ns=1, entry_region=1)


@pytest.fixture
async def http(cluster: Any, credentials: Any, recorder: Any) -> AsyncIterator[Any]:
    metrics = BrokerMetrics(cluster, KafkaCounters())
    coalescer = Coalescer(cluster, entry_region=1, wall_ns=lambda: 1, monotonic_ns=lambda: 1)
    records = RecordsHttp(
        cluster=cluster,
        publisher=RecordPublisher(cluster, coalescer),
        reader=StreamReader(cluster),
        recorder=recorder,
        metrics=metrics,
        wall_ns=lambda: 1,
    )
    app = AdminHttp(cluster=cluster, credentials=credentials, metrics=metrics, records=records).app()
    async with TestClient(TestServer(app)) as client:
        yield client
    await coalescer.close()


async def test_an_answer_over_http_is_bounded_by_what_records_unfold_to(
    http: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_answers, "ANSWER_BYTES_MAX", 6_700)  # 10 records as JSON: a zero byte takes six there
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.publish(_published(batch(100, 100, Compression.GZIP)))
    found: list[int] = []
    offset = 0
    while offset < 100:
        async with http.get("/v1/topics/orders/records", params={"offset": str(offset)}) as answer:
            document = await answer.json()
        assert len(document["records"]) == 10
        found += [record["offset"] for record in document["records"]]
        offset = document["next_offset"]
    assert found == list(range(100))


def spoilt(raw: bytes) -> bytes:
    """Return a compressed batch of which nothing unfolds."""
    return raw[:HEADER_BYTES] + bytes(len(raw) - HEADER_BYTES)


async def ask(http: Any, **parameters: int) -> dict[str, Any]:
    given = {name: str(value) for name, value in parameters.items()}
    async with http.get("/v1/topics/orders/records", params=given) as answer:
        assert answer.status == 200
        assert answer.content_type == "application/json"
        document: dict[str, Any] = await answer.json()
        return document


async def test_over_http_a_batch_that_cannot_be_read_is_passed_over_and_hides_no_good_record(
    http: Any, cluster: Any
) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    good = batch(2, 1, Compression.GZIP)
    for raw in (good, spoilt(batch(3, 1, Compression.GZIP)), damaged(batch(4, 0, Compression.NONE), record=1), good):
        stream.publish(_published(raw))
    document = await ask(http, offset=0)
    assert [record["offset"] for record in document["records"]] == [0, 1, 5, 9, 10]
    assert [(row["first"], row["following"]) for row in document["passed_over"]] == [(2, 5), (6, 9)]
    assert document["next_offset"] == 11
    document = await ask(http, offset=3)
    assert [(row["first"], row["following"]) for row in document["passed_over"]] == [(3, 5), (6, 9)]
    assert "passed_over" not in await ask(http, offset=9)


async def test_a_record_that_is_too_large_as_json_is_passed_over_however_small_its_batch_is(
    http: Any, cluster: Any
) -> None:
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    bomb = batch(1, 60 * MIB, Compression.ZSTD)
    assert len(bomb) < 4_096
    escaped = batch(1, 3 * MIB, Compression.ZSTD)  # three MiB of zero bytes are eighteen as JSON
    for raw in (bomb, escaped, batch(1, 2 * MIB, Compression.ZSTD)):
        stream.publish(_published(raw))
    document = await ask(http, offset=0)
    assert [record["offset"] for record in document["records"]] == [2]
    assert [row["first"] for row in document["passed_over"]] == [0, 1]
    assert all("Kafka protocol" in row["reason"] for row in document["passed_over"])


async def test_headers_and_escapes_count_in_an_answer_and_the_rest_is_the_next_answers(
    http: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_answers, "ANSWER_BYTES_MAX", MIB)
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    headers = tuple((f"{at:03}", bytes(100)) for at in range(1_000))
    rows = [(b"", None, headers)] * 4
    raw = build_batch(rows, timestamps_ms=1, compression=Compression.ZSTD)
    stream.publish(_published(raw))
    sizes: list[int] = []
    offset = 0
    while offset < 4:
        async with http.get("/v1/topics/orders/records", params={"offset": str(offset)}) as answer:
            sizes.append(len(await answer.read()))
            offset = (await answer.json())["next_offset"]
    assert len(sizes) == 4
    assert max(sizes) <= MIB + 1_000


async def test_the_text_of_large_records_is_made_off_the_event_loop(
    http: Any, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()

    def noted(record: Any) -> Any:
        threads.add(threading.get_ident())
        return record_json(record)

    monkeypatch.setattr(record_answers, "record_json", noted)
    cluster.add_topic("orders")
    stream = cluster.stream("orders", 0)
    stream.publish(_published(batch(20, MIB // 8, Compression.ZSTD)))
    assert (await ask(http, offset=0))["next_offset"] == 20
    assert threads
    assert threading.get_ident() not in threads


def test_how_large_a_record_is_as_json_is_known_before_it_is_made() -> None:
    for value in (bytes(range(128)) * 9, b"plain text", b'"\\\n' * 50):
        record = Record(0, 1, value, value, (("name", value),))
        made = len(json.dumps(record_json(record), ensure_ascii=False).encode())
        assert 0 <= made - text_bytes(record) < 200


class ThreadClock:
    """The time that threads have worked: each look takes a while."""

    def __init__(self, step_s: float) -> None:
        self.step_ns = round(step_s * 1e9)
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


async def test_a_batch_that_takes_too_long_to_unfold_is_refused_and_its_thread_and_its_room_come_back() -> None:
    memory = UnfoldingMemory()
    entry: Any = _Entry(batch(20 * CHUNK_RECORDS, 0, Compression.GZIP))
    seen: list[int] = []

    async def read(clock: ThreadClock) -> None:
        async with aclosing(record_chunks(entry, memory, thread_ns=clock)) as chunks:
            async for chunk in chunks:
                seen.append(len(chunk))

    refused = unfolding.OVERDUE.count
    with pytest.raises(Busy, match=r"took more than 10 s of work.*ask again"):
        await read(ThreadClock(0.6))
    assert 0 < len(seen) < 20
    assert memory.used_bytes == 0
    assert unfolding.OVERDUE.count == refused + 1
    seen.clear()
    await read(ThreadClock(0.05))
    assert sum(seen) == 20 * CHUNK_RECORDS


async def test_work_is_given_up_in_the_middle_of_what_was_read_before() -> None:
    memory = UnfoldingMemory()
    entry: Any = _Entry(batch(40 * CHUNK_RECORDS, 0, Compression.GZIP))
    clock = ThreadClock(0)
    chunks = record_chunks(entry, memory, thread_ns=clock)
    for _ in range(30):
        await anext(chunks)
    for share in list(memory._shares):  # somebody else needs the room: the batch is dropped and unfolded again
        share.is_lost = True
        share.drop()
        memory.give(share)
    clock.step_ns = 1_000_000_000
    before_ns = clock.now_ns
    with pytest.raises(Busy):
        await anext(chunks)
    assert clock.now_ns - before_ns <= 13e9  # of about 60 looks a second apart: it stops where the time is over
    assert memory.used_bytes == 0


async def test_a_subscription_goes_on_behind_what_it_has_when_a_batch_took_too_long(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_topic("orders")
    cluster.stream("orders", 0).publish(_published(batch(2, 1, Compression.GZIP)))
    refusals = iter([Busy("it took more than 10 s")])

    async def chunks(entry: Any, where: str) -> AsyncIterator[list[Record]]:
        del entry, where
        yield [Record(0, 1, None, b"a", ())]
        for refusal in refusals:
            raise refusal
        yield [Record(1, 1, None, b"b", ())]

    monkeypatch.setattr("region.api.streams.partition_pump.readable_chunks", chunks)
    monkeypatch.setattr("region.api.streams.partition_pump.RETRY_S", 0)
    delivered: list[int] = []

    async def put(response: pb.SubscribeResponse) -> None:
        delivered.extend(record.offset for record in response.delivery.records)
        if len(delivered) == 2:
            raise StopAsyncIteration

    pump = records_pump(cluster, put, credit=Credit(2 * MIB), end=2)
    with pytest.raises((StopAsyncIteration, RuntimeError)):
        await pump.run()
    assert delivered == [0, 1]
