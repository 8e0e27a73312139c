"""Publishers and readers of a campaign: what is due is sent, noted and counted, whatever the protocol is."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from loadtest.history.history_file import read_history
from loadtest.history.operation import Kind, Operation, Outcome
from loadtest.load import kafka_publisher, wire_publisher
from loadtest.load import reader as reader_module
from loadtest.load.books_core import books_of, differences_to_locust
from loadtest.load.campaign import Campaign, Readers, Stage, Topic, Users
from loadtest.load.engine_values import Plan, WallClock, value_of
from loadtest.load.kafka_publisher import ONCE_TIMEOUT_MS, settings_of
from loadtest.load.publisher import Outgoing
from loadtest.load.reader import Progress, Reader, readers_of
from loadtest.load.sources import SOURCES, Source, Spot, Taken
from loadtest.load.wires import SERIAL, Aborted, Answer, NativeWire, Refused, Wire

TOPIC = Topic(name="orders", partitions=2)
SPOTS = [("orders", 0), ("orders", 1)]
WAIT_S = 5.0


def plan_of(folder: Path, users: Users, *readers: Readers) -> Plan:
    (folder / "histories").mkdir()
    campaign = Campaign(
        name="unit",
        about="",
        topics=(TOPIC, Topic(name="stock")),
        stages=(Stage(seconds=1, users=1, rate=1),),
        users=(users,),
        readers=readers,
    )
    return Plan(campaign=campaign, endpoints={}, regions=("us",), folder=folder, worker="w1", settings={})


def histories(folder: Path) -> list[Operation]:
    return read_history(sorted((folder / "histories").glob("*.history")))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class FakeWire(Wire):
    """Answers with what `outcomes` says, one after the other."""

    outcomes: list[Any]
    opened = 0

    async def open(self) -> None:
        type(self).opened += 1

    async def publish(self, records: Sequence[Outgoing]) -> Answer:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        answer: Answer = outcome
        return answer


class Published:
    """What came of so many sends over one wire."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop, users: Users, outcomes: list[Any]) -> None:
        sends = sum(not isinstance(outcome, Refused) for outcome in outcomes)
        self.wire: Any = type("ThisWire", (FakeWire,), {"outcomes": outcomes, "opened": 0})
        clock = WallClock()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wire_publisher, "AGAIN_S", 0.0)
            patch.setattr(wire_publisher, "TransactionWire", lambda *words, **_: self.wire(*words))
            patch.setitem(SERIAL, "rest", self.wire)
            publisher = wire_publisher.WirePublisher(plan_of(folder, users), 0, "us", clock, loop=loop)
            for _ in range(sends):
                publisher.send(clock.now_ns(), in_flight_max=100)
            assert publisher.finish(WAIT_S) == 0
        self.done = [(method, topic, latency_ms is not None) for method, topic, latency_ms in publisher.done]
        self.operations = histories(folder)


REST = Users(kind="rest", topics=("orders",), connections=1)
BOTH = Users(kind="transactions", topics=("orders", "stock"), connections=1)


def test_a_refused_record_is_sent_again_over_a_new_connection(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    told = Published(tmp_path, loop, REST, [Refused("no leader"), [7]])
    assert [(row.outcome, row.offset) for row in told.operations] == [(Outcome.OK, 7)]
    assert (told.done, told.wire.opened) == ([("publish", "orders", True)], 2)


def test_who_does_not_know_goes_on_as_another_process(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> None:
    told = Published(tmp_path, loop, REST, [ConnectionError("reset"), [3]])
    assert [row.outcome for row in told.operations] == [Outcome.UNKNOWN, Outcome.OK]
    assert [row.process for row in told.operations] == ["w1-0-us.0", "w1-0-us.0.1"]
    assert [row[2] for row in told.done] == [False, True]


def test_the_epoch_of_an_acknowledgement_stands_in_the_history(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(FakeWire):
        async def publish(self, records: Sequence[Outgoing]) -> Answer:
            future: Answer = asyncio.get_running_loop().create_future()
            future.set_result(SimpleNamespace(offset=7, epoch=3))  # type: ignore[union-attr]
            return future

    asked: list[str] = []

    def wire_of(plan: Plan, region: str, rng: random.Random, *, durability: str) -> Wire:
        asked.append(durability)
        return Told(plan, region, rng)

    monkeypatch.setattr(wire_publisher, "NativeWire", wire_of)
    users = Users(kind="native", topics=("orders",), durability="geo:2")
    publisher = wire_publisher.WirePublisher(plan_of(tmp_path, users), 0, "us", WallClock(), loop=loop)
    publisher.send(1, in_flight_max=1)
    assert publisher.finish(WAIT_S) == 0
    (operation,) = histories(tmp_path)
    assert (operation.offset, operation.note, asked) == (7, "epoch 3", ["geo:2"])


@pytest.mark.parametrize(("durability", "deadline_s"), [("region", 0.0), ("geo:2", 30.0)])
async def test_native_publishers_ask_for_the_durability_of_their_campaign(
    durability: str, deadline_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    async def producer_of(_: object, settings: dict[str, Any]) -> None:
        asked.append(settings)

    monkeypatch.setattr(NativeWire, "_producer_of", producer_of)
    users = Users(kind="native", topics=("orders",), durability=durability)
    await NativeWire(plan_of(tmp_path, users), "us", random.Random(1), durability=durability).open()
    assert (str(asked[0]["durability"]), asked[0]["deadline_s"]) == (durability, deadline_s)


def test_a_transaction_writes_to_every_topic_and_is_kept_or_left_as_a_whole(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    told = Published(tmp_path, loop, BOTH, [[0, 0], Aborted(), ConnectionError("lost")])
    by_outcome = [(row.key.partition("/")[0], row.outcome) for row in told.operations]
    assert by_outcome == [
        (topic, outcome) for outcome in (Outcome.OK, Outcome.FAIL, Outcome.UNKNOWN) for topic in ("orders", "stock")
    ]
    books = books_of(told.operations)
    assert (books.acked["orders"], books.aborted["orders"], books.failed["orders"]) == (1, 1, 1)
    entries = [{"method": "publish", "name": topic, "n": 2, "failed": 1} for topic in ("orders", "stock")] + [
        {"method": "abort", "name": topic, "n": 1, "failed": 0} for topic in ("orders", "stock")
    ]
    assert differences_to_locust(books, entries) == []


def test_what_there_is_no_room_for_has_failed_and_stands_in_the_history(
    tmp_path: Path, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire: Any = type("ThisWire", (FakeWire,), {"outcomes": [], "opened": 0})
    monkeypatch.setitem(SERIAL, "rest", wire)
    publisher = wire_publisher.WirePublisher(plan_of(tmp_path, REST), 0, "us", WallClock(), loop=loop)
    publisher.send(1, in_flight_max=0)
    assert publisher.finish(WAIT_S) == 0
    (operation,) = histories(tmp_path)
    assert (operation.outcome, operation.process) == (Outcome.FAIL, "w1-0-us.unsent")
    assert (
        differences_to_locust(books_of([operation]), [{"method": "publish", "name": "orders", "n": 1, "failed": 1}])
        == []
    )


class FakeSource(Source):
    """Gives what `batches` says, then nothing; a batch that is an error is raised."""

    batches: list[Any]
    opened: list[dict[Spot, int]]

    def open(self, positions: Mapping[Spot, int]) -> None:
        self.opened.append(dict(positions))

    def take(self) -> list[Taken]:
        batch = self.batches.pop(0) if self.batches else []
        if isinstance(batch, Exception):
            raise batch
        taken: list[Taken] = batch
        return taken

    def finish(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def record(partition: int, offset: int) -> Taken:
    return Taken("orders", partition, offset, value_of("w1-0-eu", offset * 10 + partition, 1, 64))


def read(
    folder: Path, readers: Readers, batches: list[Any], until: Mapping[Spot, int], *, is_final: bool = False
) -> tuple[Reader, Any]:
    source: Any = type("ThisSource", (FakeSource,), {"batches": batches, "opened": []})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SOURCES, readers.kind, source)
        patch.setattr(reader_module, "AGAIN_S", 0.0)
        users = Users(kind="kafka", topics=("orders",))
        (reader,) = readers_of(plan_of(folder, users, readers), WallClock(), is_final=is_final)
        reader.start()
        while not reader.progress.has(until):
            threading.Event().wait(0.001)
        reader.stop()
    return reader, source


def test_a_reader_goes_on_where_it_was_when_its_source_broke(tmp_path: Path) -> None:
    batches = [[record(1, 0), record(0, 0)], ConnectionError("gone"), [record(0, 1)]]
    reader, source = read(tmp_path, Readers(topics=("orders",)), batches, {("orders", 0): 2, ("orders", 1): 1})
    assert source.opened == [{("orders", 0): 0, ("orders", 1): 0}, {("orders", 0): 1, ("orders", 1): 1}]
    rows = [(row.key, row.position, [offset for offset, _ in row.records]) for row in histories(tmp_path)]
    assert sorted(rows[:2]) == [("orders/0", 0, [0]), ("orders/1", 0, [0])]
    assert rows[2:] == [("orders/0", None, [1])]
    assert [(method, pair) for method, pair, _ in reader.done] == [("deliver", "eu->us")] * 3


def test_a_complete_read_says_so_of_partitions_too_where_nothing_is(tmp_path: Path) -> None:
    read(tmp_path, Readers(topics=("orders",)), [[record(1, 0)]], {("orders", 1): 1}, is_final=True)
    rows = [(row.key, row.final, len(row.records), row.position) for row in histories(tmp_path)]
    assert sorted(rows) == [("orders/0", True, 0, 0), ("orders/1", True, 1, 0), ("stock/0", True, 0, 0)]


def test_a_slow_reader_is_counted_apart_and_hurries_when_the_load_is_over(tmp_path: Path) -> None:
    slow = Readers(topics=("orders",), pause_ms=3_600_000)
    reader, _ = read(tmp_path, slow, [[record(0, 0)], [record(0, 1)]], {("orders", 0): 1})
    assert {method for method, _, _ in reader.done} == {"late"}
    assert books_of(histories(tmp_path)).pairs.keys() == {("late", "eu", "us")}


def test_members_of_a_group_ask_for_each_piece_that_they_get(tmp_path: Path) -> None:
    batch = [record(0, 0), record(0, 1), record(0, 5), record(0, 6)]
    gap = [record(0, offset) for offset in (2, 3, 4)]
    read(tmp_path, Readers(topics=("orders",), kind="group"), [batch, gap], {("orders", 0): 7})
    rows = [(row.position, [offset for offset, _ in row.records]) for row in histories(tmp_path)]
    assert sorted(rows) == [(0, [0, 1]), (2, [2, 3, 4]), (5, [5, 6])]
    assert all(row.kind is Kind.FETCH for row in histories(tmp_path))


def test_members_have_everything_when_together_they_have_no_gap() -> None:
    alone, together = Progress(SPOTS, is_shared=False), Progress(SPOTS, is_shared=True)
    for progress in (alone, together):
        progress.take(("orders", 0), [0, 2])
    assert (alone.has({("orders", 0): 3}), together.has({("orders", 0): 3})) == (True, False)
    together.take(("orders", 0), [1, 2])
    assert together.has({("orders", 0): 3})
    alone.reach(("orders", 0), 5)
    assert alone.has({("orders", 0): 5})


def test_members_share_their_group_in_turn(tmp_path: Path) -> None:
    readers = Readers(topics=("orders",), kind="group", count=4, groups=2)
    made = readers_of(plan_of(tmp_path, Users(kind="kafka", topics=("orders",)), readers), WallClock(), is_final=False)
    assert [id(reader.progress) for reader in made[:2]] == [id(reader.progress) for reader in made[2:]]
    assert made[0].progress is not made[1].progress


@pytest.mark.parametrize(("sends_again", "timeout_ms"), [(True, 0), (False, ONCE_TIMEOUT_MS)])
def test_who_sends_again_gives_nothing_up_as_its_client_would_store_twice_what_came_before(
    sends_again: bool, timeout_ms: int
) -> None:
    settings = settings_of(Users(kind="kafka", topics=("orders",), sends_again=sends_again), "a:1")
    assert (settings["enable.idempotence"], settings["message.timeout.ms"]) == (sends_again, timeout_ms)


class LostProducer:
    """A client of librdkafka that loses track with its second record."""

    def __init__(self, _: object) -> None:
        self._sent = 0

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None)})

    def produce(self, *_: object, **__: object) -> None:
        self._sent += 1
        if self._sent == 2:
            raise KafkaException(KafkaError(KafkaError._FATAL))

    def poll(self, seconds: float) -> None:
        time.sleep(0)

    def flush(self, seconds: float) -> int:
        assert seconds == 0
        return 1


def test_what_a_client_that_lost_track_had_sent_is_known_of_nobody_and_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_publisher, "Producer", LostProducer)
    plan = plan_of(tmp_path, Users(kind="kafka", topics=("orders",)))
    plan = replace(plan, endpoints={"regions": {"us": {"kafka": ["a:1"]}}})
    made = kafka_publisher.KafkaPublisher(plan, 0, "us", WallClock())
    for _ in range(2):
        made.send(WallClock().now_ns(), in_flight_max=10)
    assert made.finish(60) == 0
    assert [operation.outcome for operation in histories(tmp_path)] == [Outcome.UNKNOWN, Outcome.FAIL]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_reader_whose_source_breaks_as_none_should_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source: Any = type("Odd", (FakeSource,), {"batches": [KeyError("no such key")], "opened": []})
    monkeypatch.setitem(SOURCES, "kafka", source)
    plan = plan_of(tmp_path, REST, Readers(topics=("orders",)))
    (reader,) = readers_of(plan, WallClock(), is_final=False)
    reader.start()
    reader._thread.join(WAIT_S)
    assert not reader.is_alive
    reader.stop()
