"""What a broker writes down beside its records: expiries, probes, outcomes and clocks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from georelay.errors import OffsetOutOfRange, Unavailable
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from georelay.trace.kinds import Operation, TraceKind
from georelay.trace.schema import RECORDED_COLUMNS
from georelay.wire.api import ErrorCode
from mesh.clock.estimate import Exchange
from mesh.replication.publish import Publish
from mesh.tracing.latency_cells_core import SAME_CLOCK, UNKNOWN_CLOCK, Row
from mesh.tracing.outcome_core import Totals
from region.broker.clocks import BrokerClocks
from region.broker.expiry_watch import ExpiryWatch
from region.broker.outcomes import RequestOutcomes, edge_total, kafka_totals
from region.broker.probes import Prober, probe_topic
from region.kafka.counters import KafkaCounters

S = 1_000_000_000
T0 = 1_700_000_000
REGIONS = {1: "us", 2: "eu"}


class Recorder:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.ranges: list[tuple[str, int, int, int]] = []

    def keep(self, kind: TraceKind, row: Row) -> None:
        self.rows.append(dict(zip(RECORDED_COLUMNS[kind], row, strict=True)))

    def expired(self, *, topic: str, origin: int, partition: int, epoch: int, from_offset: int, to_offset: int) -> None:
        self.ranges.append((topic, partition, from_offset, to_offset))


class Clock:
    """Both clocks, moved by the test."""

    def __init__(self) -> None:
        self.now_ns = T0 * S

    def wall_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns - T0 * S


class HostedStream:
    """A stream with just what is looked at."""

    def __init__(self, topic: str = "orders", *, log_start: int = 0, leads: bool = True) -> None:
        self.key = StreamKey(topic.encode().ljust(16, b"."), RegionNumber(0), 3)
        self.topic = topic
        self.is_leader = leads
        self.epoch = Epoch(1)
        self.log_start = Offset(log_start)


def watch(recorder: Recorder, *streams: HostedStream) -> ExpiryWatch:
    return ExpiryWatch(recorder, lambda: streams)  # type: ignore[arg-type]


def test_what_is_below_a_log_start_is_told_once_and_again_when_it_moves() -> None:
    recorder, stream = Recorder(), HostedStream(log_start=5)
    ours = watch(recorder, stream)
    ours.look()
    ours.look()
    stream.log_start = Offset(9)
    ours.look()
    assert recorder.ranges == [("orders", 3, 0, 5), ("orders", 3, 5, 9)]


def test_followers_and_topics_of_brokers_own_tell_nothing() -> None:
    recorder = Recorder()
    watch(recorder, HostedStream(log_start=5, leads=False), HostedStream("__georelay_probes", log_start=5)).look()
    assert recorder.ranges == []


def test_many_streams_are_looked_at_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region.broker.expiry_watch.STREAMS_PER_TICK", 2)
    recorder = Recorder()
    ours = watch(recorder, *(HostedStream(f"t{number}", log_start=1) for number in range(5)))
    told = []
    for _ in range(3):
        ours.look()
        told.append(len(recorder.ranges))
    assert told == [2, 4, 5]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Totals()),
        (ErrorCode.REQUEST_TIMED_OUT, Totals(timeout=2)),
        (ErrorCode.NOT_ENOUGH_REPLICAS, Totals(server_error=2)),
        (ErrorCode.UNKNOWN_SERVER_ERROR, Totals(server_error=2)),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, Totals(client_error=2)),
    ],
)
def test_an_error_of_the_kafka_protocol_is_somebodys(code: ErrorCode, expected: Totals) -> None:
    assert kafka_totals({int(code): 2}) == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("OK", Totals(ok=2)),
        ("NOT_LEADER", Totals()),
        ("OUTCOME_UNKNOWN", Totals(timeout=2)),
        ("BUSY", Totals(server_error=2)),
        ("ACCESS_DENIED", Totals(client_error=2)),
        ("HTTP_404", Totals(client_error=2)),
        ("INTERNAL", Totals(server_error=2)),
    ],
)
def test_a_code_of_grpc_and_http_is_somebodys(code: str, expected: Totals) -> None:
    assert edge_total(code, 2) == expected


def test_the_listeners_counters_are_attempts_by_operation() -> None:
    kafka = KafkaCounters(publishes_stored=7, records_in=70, connections_accepted=5, sign_ins_refused=2)
    kafka.publish_refused(int(ErrorCode.REQUEST_TIMED_OUT))
    kafka.refused(int(ErrorCode.UNKNOWN_SERVER_ERROR))  # a Fetch
    kafka.answered(1, 1.0)
    kafka.answered(1, 1.0)
    labels = {"listener": "http", "method": "POST /v1/topics/{topic}/records", "code": "OK"}
    request = SimpleNamespace(name="georelay_edge_requests_total", labels=labels, value=3.0)
    records = SimpleNamespace(name="georelay_edge_records_total", labels={"direction": "in"}, value=30.0)
    metrics: Any = SimpleNamespace(
        edge_requests=SimpleNamespace(collect=lambda: [SimpleNamespace(samples=[request])]),
        edge_records=SimpleNamespace(collect=lambda: [SimpleNamespace(samples=[records])]),
    )
    assert RequestOutcomes(kafka=kafka, metrics=metrics).totals() == {
        Operation.PUBLISH: Totals(ok=10, timeout=1, offered=100),
        Operation.CONSUME: Totals(ok=1, server_error=1),
        Operation.CONNECT: Totals(ok=3, client_error=2),
    }


def exchange(*, ahead_ms: int) -> Exchange:
    middle = T0 * S + 5_000_000 + ahead_ms * 1_000_000
    return Exchange(
        t1_ns=T0 * S, t2_ns=middle, t3_ns=middle, t4_ns=T0 * S + 10_000_000, monotonic1_ns=0, monotonic4_ns=10_000_000,
        spread_us=0,
    )  # fmt: skip


def clocks(recorder: Recorder, *, override_us: int | None = None) -> BrokerClocks:
    ours = BrokerClocks(
        region=RegionNumber(1),
        broker=BrokerId(1001),
        regions=lambda: [RegionNumber(1), RegionNumber(2)],
        region_name=REGIONS.__getitem__,
        clock=Clock(),
        override_us=override_us,
    )
    ours.keep = recorder.keep
    return ours


def test_a_latency_that_began_on_a_clock_that_is_ahead_grows_by_the_offset() -> None:
    ours = clocks(Recorder())
    assert ours.correction(2) == UNKNOWN_CLOCK
    assert ours.correction(1) == SAME_CLOCK
    ours.book.exchanged(BrokerId(2001), exchange(ahead_ms=80))
    offset_us, error_us = ours.correction(2)
    assert offset_us == 80_000
    assert error_us is not None
    assert 7_000 <= error_us <= 7_020  # half of 10 ms, and two seconds of drift


def test_an_exchange_is_a_row_and_a_line() -> None:
    recorder = Recorder()
    ours = clocks(recorder)
    ours.book.exchanged(BrokerId(2001), exchange(ahead_ms=80))
    ours._exchanged(BrokerId(2001), exchange(ahead_ms=80))
    (row,) = recorder.rows
    assert (row["region"], row["broker"], row["peer"], row["theta_ns"], row["delta_ns"]) == (
        "us", "1001", "2001", 80_000_000, 10_000_000,
    )  # fmt: skip
    assert (row["host_maxerr_us"], row["host_unsync"]) == (None, True)
    document = ours.document()
    assert [(line["region"], line["broker"], line["offset_us"]) for line in document["clocks"]] == [
        ("us", None, 0),
        ("eu", None, 80_000),
        ("eu", 2001, 80_000),
    ]
    assert (document["region"], document["is_overridden"]) == ("us", False)


class ProbeStream:
    """A stream of probes that a test writes into."""

    def __init__(self, *, leads: bool = True) -> None:
        self.is_leader = leads
        self.entries: list[Any] = []
        self.log_start = Offset(0)
        self.waiters: dict[int, Callable[[], None]] = {}

    @property
    def last_stable_offset(self) -> Offset:
        return Offset(len(self.entries))

    def read(self, offset: int, max_bytes: int) -> list[Any]:
        if offset < self.log_start:
            raise OffsetOutOfRange(f"offset {offset} is below the log start {self.log_start}")
        return self.entries[offset:]

    def skip(self, records: int) -> None:
        """Be told, as the copy in a region that joins, that so many records were deleted before it came."""
        self.entries += [None] * records
        self.log_start = Offset(len(self.entries))
        for waiter in list(self.waiters.values()):
            waiter()

    def add_waiter(self, callback: Callable[[], None]) -> int:
        self.waiters[len(self.waiters)] = callback
        return len(self.waiters) - 1

    def remove_waiter(self, handle: int) -> None:
        del self.waiters[handle]

    def append(self, raw: bytes, append_us: int) -> None:
        header = SimpleNamespace(append_us=append_us)
        self.entries.append(
            SimpleNamespace(
                base_offset=len(self.entries), record_count=1, payload=memoryview(raw), header=lambda: header
            )
        )
        for waiter in list(self.waiters.values()):
            waiter()


class Cluster:
    """Region us of two; what is published goes into its own stream."""

    region, region_number, broker_id = "us", RegionNumber(1), 1001

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.streams = {"us": ProbeStream(), "eu": ProbeStream()}
        self.exists = True
        self.fails = False

    def ready(self) -> bool:
        return True

    def topic(self, name: str) -> object | None:
        return object() if self.exists else None

    def stream(self, name: str, partition: int) -> ProbeStream:
        region, dot, _ = name.partition(".")
        return self.streams[region if dot else "us"]

    def publish(self, name: str, partition: int, publish: Publish) -> asyncio.Future[None]:
        if self.fails:
            raise Unavailable("no leader")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.streams["us"].append(bytes(publish.raw), self.clock.now_ns // 1_000)
        done.set_result(None)
        return done


def prober(cluster: Cluster, recorder: Recorder, ensure: Callable[[Any], Awaitable[Any]] | None = None) -> Prober:
    async def nothing(_: Any) -> Any:
        raise AssertionError

    parts: Any = {"cluster": cluster, "recorder": recorder, "ensure_topic": ensure or nothing}
    return Prober(clock=cluster.clock, regions=lambda: REGIONS, estimate=lambda _region: None, **parts)


def outcomes(recorder: Recorder) -> list[tuple[str, str, int, str]]:
    return [(row["origin"], row["dest"], row["seq"], row["outcome"]) for row in recorder.rows]


async def test_a_probe_of_every_second_is_delivered_here_too() -> None:
    clock, recorder = Clock(), Recorder()
    ours = prober(Cluster(clock), recorder)
    for _ in range(3):
        ours.tick()
        ours.tick()  # twice in a second is once
        clock.now_ns += S
    await ours.stop()
    assert outcomes(recorder) == [("us", "us", T0, "ok"), ("us", "us", T0 + 1, "ok"), ("us", "us", T0 + 2, "ok")]


async def test_probes_of_a_region_that_is_cut_off_are_lost_and_late_when_it_is_back() -> None:
    clock, recorder = Clock(), Recorder()
    cluster, elsewhere = Cluster(clock), Cluster(Clock())
    ours, theirs = prober(cluster, recorder), prober(elsewhere, Recorder())
    ours.tick()
    for _ in range(8):
        clock.now_ns += S
        elsewhere.clock.now_ns += S
        theirs.tick()
        ours.tick()
    assert [seq for origin, _, seq, what in outcomes(recorder) if (origin, what) == ("eu", "lost")] == [T0 + 1, T0 + 2]
    recorder.rows.clear()
    for entry in elsewhere.streams["us"].entries[:1]:
        cluster.streams["eu"].append(bytes(entry.payload), 0)
    await ours.stop()
    await theirs.stop()
    assert outcomes(recorder) == [("eu", "us", T0 + 1, "late")]


async def test_a_probe_that_cannot_be_published_is_refused_for_every_region() -> None:
    recorder, cluster = Recorder(), Cluster(Clock())
    cluster.fails = True
    ours = prober(cluster, recorder)
    ours.tick()
    await ours.stop()
    assert outcomes(recorder) == [("us", "eu", T0, "refused"), ("us", "us", T0, "refused")]


async def test_a_record_that_is_no_probe_is_passed_over() -> None:
    recorder, cluster = Recorder(), Cluster(Clock())
    ours = prober(cluster, recorder)
    ours.tick()
    recorder.rows.clear()
    cluster.streams["eu"].append(b"no batch", 0)
    await ours.stop()
    assert recorder.rows == []


async def test_probes_that_their_origin_deleted_before_this_region_joined_are_passed_over() -> None:
    recorder, cluster = Recorder(), Cluster(Clock())
    ours = prober(cluster, recorder)
    ours.tick()
    recorder.rows.clear()
    cluster.streams["eu"].skip(905)
    cluster.streams["eu"].append(bytes(cluster.streams["us"].entries[0].payload), 0)
    await ours.stop()
    assert [(origin, what) for origin, _, _, what in outcomes(recorder)] == [("eu", "ok")]


async def test_who_leads_no_longer_watches_no_longer() -> None:
    cluster = Cluster(Clock())
    ours = prober(cluster, Recorder())
    ours.tick()
    assert len(cluster.streams["eu"].waiters) == 1
    cluster.streams["eu"].is_leader = False
    ours.tick()
    await ours.stop()
    assert cluster.streams["eu"].waiters == {}


async def test_the_canary_topic_is_created_where_it_is_missing() -> None:
    cluster, asked = Cluster(Clock()), []
    cluster.exists = False

    async def ensure(spec: Any) -> None:
        asked.append(spec)

    ours = prober(cluster, Recorder(), ensure)
    for _ in range(11):
        ours.tick()
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    await ours.stop()
    assert asked == [probe_topic(), probe_topic()]
