"""Questions about very many streams: what a frame carries, and that no answer ends the work on the others."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.errors import GeorelayError, NotLeader, OutcomeUnknown, TooLarge, Unavailable
from georelay.fields import JsonObject
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from mesh.home.home_row import HOME_EPOCHS_MAX, NOT_CHOSEN, HomeRow, MoveKind
from mesh.replication.frames import REQUEST_BODY_BYTES_MAX, FrameError, Reply, Request, decode_frame, encode_frame
from region.controller.topic import Homes, TopicDefinition
from region.homes.agent import HomeAgent
from region.homes.asking import RegionAsker, pages
from region.homes.driver import MoveDriver
from region.homes.home_requests import (
    PROMISE_METHOD,
    WAVE_STREAMS_MAX,
    Asked,
    EndAsked,
    PrefixEnd,
    PromiseAsked,
    Told,
    answer_json,
    asked_json,
    read_answers,
    read_question,
)
from region.homes.move_desk import MoveAsked, MoveDesk
from region.homes.part import HomesPart
from region.homes.reports import MoveReport
from tests.conditions import until
from tests.tiers import first

ONE, TWO, THREE = REGIONS = (RegionNumber(1), RegionNumber(2), RegionNumber(3))
TOPIC_ID = b"p" * 16
PARTITIONS = 1_000
PREFIX = PrefixEnd(offset=Offset(5), digest=b"d" * 16)
STUCK = StreamKey(bytes([1]) * 16, RegionNumber(0), 7)


def key(partition: int) -> StreamKey:
    return StreamKey(TOPIC_ID, RegionNumber(0), partition)


def question(partition: int, *, epochs: int) -> PromiseAsked:
    far = 10**15
    table = tuple((Epoch(1 + row), Offset(far + row)) for row in range(epochs))
    return PromiseAsked(key=key(partition), new_epoch=Epoch(epochs + 1), table=table)


def carried(part: Any) -> Any:
    """Return a part as the other end of a link reads it."""
    return decode_frame(encode_frame(part))[0]


# --- pages ------------------------------------------------------------------------------------------


def test_a_question_is_cut_into_pages_that_a_frame_carries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh.replication.frames.REQUEST_BODY_BYTES_MAX", REQUEST_BODY_BYTES_MAX // 8)  # less to make
    asked = [question(partition, epochs=HOME_EPOCHS_MAX) for partition in range(60)]
    with pytest.raises(FrameError, match="over"):
        encode_frame(Request(1, PROMISE_METHOD, asked_json(asked)))
    cut = list(pages(asked))
    assert [row for page in cut for row in page] == asked
    for page in cut:
        assert read_question(PROMISE_METHOD, carried(Request(1, PROMISE_METHOD, asked_json(page))).body)


def test_a_thousand_short_questions_are_one_page_and_one_more_begins_the_next() -> None:
    asked = [question(partition, epochs=2) for partition in range(WAVE_STREAMS_MAX + 1)]
    assert [len(page) for page in pages(asked)] == [WAVE_STREAMS_MAX, 1]
    assert list(pages([])) == []


def test_no_row_of_a_question_is_longer_than_it_says() -> None:
    rows: list[Asked] = [question(2**31 - 1, epochs=HOME_EPOCHS_MAX), question(0, epochs=1), EndAsked(key=key(9))]
    for row in rows:
        body = carried(Request(1, "home.x", {"rows": [row.to_json()]})).body
        assert len(encode_frame(Request(1, "", body))) < row.bytes_max + 50


@pytest.mark.parametrize("text", ["x" * 5_000, "\U0001f30d" * 5_000])
def test_a_thousand_faults_fit_into_one_answer_however_long_they_are(text: str) -> None:
    answers: dict[StreamKey, Told] = {key(partition): Unavailable(text) for partition in range(WAVE_STREAMS_MAX)}
    body = carried(Reply(1, answer_json(answers), b"")).body
    assert set(read_answers(PROMISE_METHOD, body, asked=answers)) == set(answers)


def test_a_body_over_the_limit_is_refused_where_it_is_made() -> None:
    with pytest.raises(FrameError, match="over"):
        encode_frame(Reply(1, {"text": "x" * REQUEST_BODY_BYTES_MAX}, b""))


# --- one region -------------------------------------------------------------------------------------


async def test_a_region_with_large_tables_answers_for_every_stream() -> None:
    asked = [question(partition, epochs=HOME_EPOCHS_MAX) for partition in range(60)]
    requests = 0

    async def ask(region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
        nonlocal requests
        requests += 1
        rows = read_question(method, carried(Request(1, method, body)).body).rows
        return dict(carried(Reply(1, answer_json({row.key: PREFIX for row in rows}), b"")).body)

    told = await RegionAsker(TWO, ask).about(PROMISE_METHOD, asked)
    assert told == {row.key: PREFIX for row in asked}
    assert requests == len(list(pages(asked))) > 2


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(FrameError("too long"), TooLarge), (OutcomeUnknown("no answer"), OutcomeUnknown), (None, Unavailable)],
)
async def test_whatever_goes_wrong_with_a_page_is_the_answer_of_its_streams(
    raised: Exception | None, kind: type[GeorelayError]
) -> None:
    async def ask(region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
        if raised is not None:
            raise raised
        return {"rows": 1}

    told = await RegionAsker(TWO, ask).about(PROMISE_METHOD, [question(0, epochs=1)])
    assert isinstance(told[key(0)], kind)


async def test_a_silent_region_costs_one_wait_not_one_per_page() -> None:
    asked = [question(partition, epochs=HOME_EPOCHS_MAX) for partition in range(200)]
    requests = 0

    async def ask(region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
        nonlocal requests
        requests += 1
        await asyncio.sleep(0)
        raise OutcomeUnknown("no answer in time")

    told = await RegionAsker(TWO, ask).about(PROMISE_METHOD, asked)
    assert len(told) == len(asked) and all(isinstance(answer, OutcomeUnknown) for answer in told.values())
    assert requests < len(list(pages(asked))) // 2


async def test_a_promise_that_is_never_committed_is_answered_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region.homes.agent.COMMIT_TIMEOUT_S", 0.01)

    class WithoutMajority:
        is_leader = True

        async def promise(self, **_: Any) -> PrefixEnd:
            await asyncio.Event().wait()
            raise AssertionError

    stream: Any = WithoutMajority()
    nobody: Any = None
    agent = HomeAgent(me=BrokerId(2001), hosted=lambda _: stream, leader_of=lambda _: 2001, ask=nobody)
    body = await agent.handle(PROMISE_METHOD, asked_json([question(0, epochs=1)]), from_broker=BrokerId(1001))
    assert isinstance(read_answers(PROMISE_METHOD, body, asked=[key(0)])[key(0)], OutcomeUnknown)


# --- thousands of streams ----------------------------------------------------------------------------


def topic(number: int, partitions: int) -> TopicDefinition:
    return TopicDefinition(
        name=f"orders-{number}", topic_id=bytes([number]) * 16, partitions=partitions, replication_factor=1,
        homes=Homes.ONE, home=ONE, retention_ms=-1, retention_bytes=-1, config=(), index=1,
    )  # fmt: skip


class Mesh:
    """Control with one voter, and regions behind frames; the first is lost. Implements MeshTopics and Control."""

    is_leader = True

    def __init__(self, topics: int, partitions: int = PARTITIONS) -> None:
        self.part = HomesPart(self)
        self.commands = 0
        self.asked: Counter[int] = Counter()
        self.stuck: set[StreamKey] = set()
        self.fault: Exception | None = None
        definitions = [topic(number, partitions) for number in range(1, topics + 1)]
        self.known = {definition.topic_id: definition for definition in definitions}

    def find(self, topic_id: bytes) -> TopicDefinition | None:
        return self.known.get(topic_id)

    def topics(self) -> Iterator[TopicDefinition]:
        return iter(self.known.values())

    def holders(self, topic: TopicDefinition) -> tuple[RegionNumber, ...]:
        return REGIONS

    def may_be_home(self, region: RegionNumber) -> bool:
        return True

    def is_removed(self, region: RegionNumber) -> bool:
        return False

    async def propose(self, part: str, command: JsonObject) -> JsonObject:
        self.commands += 1
        return self.part.apply(command, index=self.commands, append_us=0)

    async def call(self, method: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        raise AssertionError("the leader asks nobody")

    async def ask(self, region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
        self.asked[region] += 1
        await asyncio.sleep(0)
        if region == ONE:
            raise Unavailable("region 1 is lost")
        if self.fault is not None:
            raise self.fault
        rows = read_question(method, carried(Request(1, method, body)).body).rows
        faults: dict[StreamKey, Told] = dict.fromkeys(self.stuck, NotLeader("no leader"))
        answers = {row.key: faults.get(row.key, PREFIX) for row in rows}
        return dict(carried(Reply(1, answer_json(answers), b"")).body)

    def keys(self) -> tuple[StreamKey, ...]:
        return tuple(self.part.streams_of(ONE))


def driver_of(mesh: Mesh, *, over: Callable[[StreamKey], None]) -> MoveDriver:
    return MoveDriver(
        part=mesh.part, topics=mesh, control=mesh, ask=mesh.ask, clock=SystemClock(),
        is_heard=lambda region: region != ONE, leases_over=lambda _: True, over=over,
    )  # fmt: skip


class Running:
    """A desk and its driver."""

    def __init__(self, mesh: Mesh) -> None:
        self.driver = driver_of(mesh, over=lambda _: self.desk.look())
        self.desk = MoveDesk(
            part=mesh.part, topics=mesh, control=mesh, ask=mesh.ask, driver=self.driver, clock=SystemClock(),
            rng=random.Random(1),
        )  # fmt: skip

    async def __aenter__(self) -> MoveDesk:
        self.driver.start()
        return self.desk

    async def __aexit__(self, *_: object) -> None:
        self.desk.stop()
        self.driver.stop()


def forced(mesh: Mesh, desk: MoveDesk) -> MoveReport:
    return desk.begin(MoveAsked(keys=mesh.keys(), kind=MoveKind.FORCED, target=NOT_CHOSEN))


@pytest.mark.parametrize("topics", first(1, [2, 10]))
async def test_a_region_with_thousands_of_streams_fails_over_though_one_of_them_cannot(topics: int) -> None:
    mesh = Mesh(topics=topics)
    mesh.stuck = {STUCK}
    async with Running(mesh) as desk:
        forced(mesh, desk)
        await until(lambda: len(mesh.keys()) == 1)
        assert mesh.keys() == (STUCK,)
        mesh.stuck = set()
        await until(lambda: mesh.keys() == ())


async def test_a_report_of_very_many_streams_fits_into_an_answer() -> None:
    row = HomeRow.first(TOPIC_ID, 0, home=ONE, regions=REGIONS, digest=bytes(16))
    report = MoveReport(move_id="m", kind="forced", keys=())
    report.ended = {key(partition): (row, 1) for partition in range(100_000)}
    report.refused = {key(partition): Unavailable("x" * 3_000) for partition in range(100_000)}
    answer = carried(Reply(1, report.to_json(), b"")).body
    assert (answer["moved_count"], answer["refused_count"]) == (100_000, 100_000)


async def test_a_fault_nobody_foresaw_does_not_end_the_moves_and_is_not_repeated_without_a_pause() -> None:
    mesh = Mesh(topics=1, partitions=10)
    mesh.fault = RuntimeError("our own bug")
    async with Running(mesh) as desk:
        forced(mesh, desk)
        await until(lambda: mesh.asked[TWO] > 0)
        await asyncio.sleep(0.1)
        assert mesh.asked[TWO] <= 2
        mesh.fault = None
        await until(lambda: mesh.keys() == ())
