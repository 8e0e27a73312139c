"""The part of control that keeps homes: its commands, what it refuses, and what regions ask each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from georelay.durability import GEO_REGIONS_MIN
from georelay.errors import BadRequest, Fenced, NotHome, NotLeader, PolicyViolation, Unavailable
from georelay.fields import FieldError, JsonObject
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from mesh.home.home_book_core import Ending
from mesh.home.home_row import HomeRow, MoveKind
from mesh.replication.ports import EpochRow
from region.controller.geo_settings import INSYNC_RAISED
from region.controller.topic import Homes, TopicDefinition
from region.coordination.coordinators import INTERNAL_TOPIC
from region.homes.agent import HomeAgent
from region.homes.home_requests import (
    ENDS_METHOD,
    PROMISE_METHOD,
    SEAL_METHOD,
    EndAsked,
    LogEnds,
    PrefixEnd,
    PromiseAsked,
    SealAsked,
    Told,
    answer_json,
    asked_json,
    read_answers,
    read_question,
)
from region.homes.levels import may_fail_over, needs_lease, protected_level
from region.homes.part import HomesPart, begin_command, end_command, leased_command

TOPIC_ID = b"t" * 16
ONE, TWO, THREE = RegionNumber(1), RegionNumber(2), RegionNumber(3)


def topic(homes: Homes = Homes.ONE, **config: str) -> TopicDefinition:
    return TopicDefinition(
        name="orders", topic_id=TOPIC_ID, partitions=3, replication_factor=1, homes=homes,
        home=ONE if homes is Homes.ONE else RegionNumber(0), retention_ms=-1, retention_bytes=-1,
        config=tuple(sorted((name.replace("_", "."), value) for name, value in config.items())), index=1,
    )  # fmt: skip


class Topics:
    def __init__(self, definition: TopicDefinition | None = None) -> None:
        self.definition: TopicDefinition | None = definition or topic()
        self.held: tuple[RegionNumber, ...] = (ONE, TWO, THREE)
        self.removed: tuple[RegionNumber, ...] = ()

    def find(self, topic_id: bytes) -> TopicDefinition | None:
        return self.definition if topic_id == TOPIC_ID else None

    def topics(self) -> Iterator[TopicDefinition]:
        return iter([] if self.definition is None else [self.definition])

    def holders(self, definition: TopicDefinition) -> tuple[RegionNumber, ...]:
        return tuple(region for region in self.held if region not in self.removed)

    def may_be_home(self, region: RegionNumber) -> bool:
        return region in self.held

    def is_removed(self, region: RegionNumber) -> bool:
        return region in self.removed


def key(partition: int = 0) -> StreamKey:
    return StreamKey(TOPIC_ID, RegionNumber(0), partition)


def ending(partition: int, *, home: RegionNumber = TWO, start: int = 5, move_id: str = "m") -> Ending:
    return Ending(key=key(partition), move_id=move_id, home=home, start=Offset(start), digest=b"d" * 16)


def begun(part: HomesPart, *partitions: int, index: int = 5) -> JsonObject:
    command = begin_command([key(p) for p in partitions], move_id="m", kind=MoveKind.PLANNED, target=TWO)
    return part.apply(command, index=index, append_us=0)


def test_the_streams_of_one_command_share_its_index_and_come_in_order() -> None:
    part = HomesPart(Topics())
    assert begun(part, 2, 0, 1) == {"refused": []}
    assert [(row.index, row.partition) for row in part.since((0, b"", -1, -1), limit=9)] == [(5, 0), (5, 1), (5, 2)]
    part.apply(end_command([ending(1)]), index=6, append_us=0)
    row = part.row(key(1))
    assert row is not None and (row.home, row.epoch, row.start, row.index) == (TWO, 2, 5, 6)


def test_one_refused_stream_does_not_hold_up_the_others() -> None:
    part = HomesPart(Topics())
    begun(part, 0)
    command = begin_command([key(0), key(1)], move_id="other", kind=MoveKind.PLANNED, target=THREE)
    refused = part.read_refused(part.apply(command, index=6, append_us=0))
    assert [(stream.partition, code) for stream, code, _ in refused] == [(0, "BUSY")]
    row = part.row(key(1))
    assert row is not None and row.moving is not None


def test_a_stream_whose_home_never_moved_has_its_first_row() -> None:
    row = HomesPart(Topics()).row(key(2))
    assert row is not None and (row.home, row.epoch, row.index, row.regions) == (ONE, 1, 0, (ONE, TWO, THREE))


@pytest.mark.parametrize("stream", [key(3), StreamKey(b"x" * 16, RegionNumber(0), 0), StreamKey(TOPIC_ID, ONE, 0)])
def test_what_has_no_home_that_could_move_has_no_row(stream: StreamKey) -> None:
    assert HomesPart(Topics()).row(stream) is None


def test_a_topic_that_every_region_is_home_of_does_not_move() -> None:
    part = HomesPart(Topics(topic(Homes.EVERY)))
    (refusal,) = part.read_refused(begun(part, 0))
    assert refusal[1] == "BAD_REQUEST"


def test_a_region_that_came_since_is_one_more_to_ask_and_one_that_left_is_not() -> None:
    topics = Topics()
    part = HomesPart(topics)
    begun(part, 0)
    part.apply(end_command([ending(0)]), index=6, append_us=0)
    topics.held, topics.removed = (ONE, TWO, THREE, RegionNumber(4)), (THREE,)
    part.apply(begin_command([key(0)], move_id="f", kind=MoveKind.FORCED), index=7, append_us=0)
    row = part.row(key(0))
    assert row is not None and row.regions == (ONE, TWO, RegionNumber(4))


def test_rows_of_a_deleted_topic_are_forgotten() -> None:
    topics = Topics()
    part = HomesPart(topics)
    begun(part, 0)
    topics.definition = None
    part.apply(leased_command(ONE), index=6, append_us=0)
    assert len(part.book) == 0


def test_the_part_survives_its_snapshot() -> None:
    topics = Topics()
    part, again = HomesPart(topics), HomesPart(topics)
    begun(part, 0, 1)
    part.apply(leased_command(TWO), index=6, append_us=0)
    again.restore(part.snapshot())
    assert again.snapshot() == part.snapshot()
    assert again.leased == {TWO}


@pytest.mark.parametrize(
    "command",
    [
        {}, {"kind": "other"}, {"kind": "begin"}, {"kind": "end", "ends": [1]}, {"kind": "leased", "region": 0},
        {"kind": "begin", "move_id": "m", "move": "planned", "target": 1, "streams": [["00", 0]]},
        {"kind": "begin", "move_id": "m", "move": "planned", "target": 1, "streams": [[TOPIC_ID.hex(), 0]] * 2},
    ],
)  # fmt: skip
def test_what_is_no_command_is_refused_whole(command: JsonObject) -> None:
    part = HomesPart(Topics())
    with pytest.raises(BadRequest):
        part.apply(command, index=5, append_us=0)
    assert len(part.book) == 0


# --- levels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "level", "automatic"),
    [
        ({}, 2, False),
        ({"min_insync_regions": "3"}, 3, False),
        ({"min_insync_regions": "3", INSYNC_RAISED: "1"}, 2, False),  # records of before have two
        ({"failover": "auto"}, 2, False),  # nobody waits for a second region: control moves nothing by itself
        ({"failover": "auto", "min_insync_regions": "2"}, 2, True),
        ({"failover": "auto", "min_insync_regions": "3", "protect_k": "2"}, 2, True),
    ],
)
def test_what_a_forced_move_has_to_keep(config: dict[str, str], level: int, automatic: bool) -> None:
    definition = topic(Homes.ONE, **config)
    assert protected_level(definition, regions=3) == level
    assert may_fail_over(definition) is automatic
    assert needs_lease(definition) is ("failover" in config)


def test_of_two_regions_both_are_protected_and_of_one_it_alone() -> None:
    assert protected_level(topic(), regions=2) == 2
    assert protected_level(topic(min_insync_regions="3"), regions=2) == 2
    assert protected_level(topic(), regions=1) == 1


@pytest.mark.parametrize("regions", [3, 4, 5, 9])
def test_of_a_topic_that_says_nothing_every_geo_acknowledgement_is_kept_however_many_regions_joined(
    regions: int,
) -> None:
    assert protected_level(topic(), regions=regions) == GEO_REGIONS_MIN


def test_of_coordinators_a_majority_is_asked_since_nobody_waits_for_their_copies() -> None:
    coordinators = replace(topic(Homes.EVERY), name=INTERNAL_TOPIC)
    assert [protected_level(coordinators, regions=count) for count in (1, 2, 3, 5)] == [1, 2, 2, 3]


# --- what regions ask each other --------------------------------------------------------------------


def test_questions_survive_their_json() -> None:
    for method, row in (
        (ENDS_METHOD, EndAsked(key=key(), until=Offset(3))),
        (ENDS_METHOD, EndAsked(key=key(), with_transactions=True)),
        (SEAL_METHOD, SealAsked(key=key(), epoch=Epoch(1), new_epoch=Epoch(2), move_id="m")),
        (PROMISE_METHOD, PromiseAsked(key=key(), new_epoch=Epoch(2), table=((Epoch(1), Offset(0)),))),
    ):
        question = read_question(method, asked_json([row], wait_ms=5))
        assert question.rows == (row,) and question.wait_ms == 5 and not question.local


@pytest.mark.parametrize(
    "told",
    [
        LogEnds(epoch=Epoch(2), next_offset=Offset(9), high_watermark=Offset(8), log_start=Offset(1)),
        NotLeader("elsewhere", leader=1002), NotHome("moved", epoch=3, home=2), Fenced("over"), Unavailable("later"),
    ],
)  # fmt: skip
def test_answers_and_faults_survive_their_json(told: Told) -> None:
    again = read_answers(ENDS_METHOD, answer_json({key(): told}), asked=[key()])[key()]
    assert type(again) is type(told) and str(again) == str(told)
    assert getattr(again, "leader", 0) == getattr(told, "leader", 0)
    assert getattr(again, "home", 0) == getattr(told, "home", 0)


@pytest.mark.parametrize("is_open", [None, True, False])
def test_whether_transactions_are_open_is_told_or_left_out(*, is_open: bool | None) -> None:
    told = LogEnds(
        epoch=Epoch(2),
        next_offset=Offset(9),
        high_watermark=Offset(8),
        log_start=Offset(1),
        has_open_transactions=is_open,
    )
    assert read_answers(ENDS_METHOD, answer_json({key(): told}), asked=[key()])[key()] == told
    assert ("open_transactions" in told.to_json()) is (is_open is not None)


def test_an_answer_about_something_else_is_refused() -> None:
    body = answer_json({key(1): PrefixEnd(offset=Offset(1), digest=b"d" * 16)})
    with pytest.raises(FieldError, match="not asked for"):
        read_answers(SEAL_METHOD, body, asked=[key(0)])


def test_a_question_that_names_a_stream_twice_is_refused() -> None:
    with pytest.raises(FieldError, match="twice"):
        read_question(ENDS_METHOD, asked_json([EndAsked(key=key()), EndAsked(key=key())]))


class Led:
    """A stream that this broker leads."""

    def __init__(self, hwm: int = 4) -> None:
        self.is_leader = True
        self.was_replaced = False  # without having heard of it
        self.epoch = Epoch(1)
        self.high_watermark = Offset(hwm)
        self.log_start = Offset(0)
        self.has_open_transactions = False
        self.callbacks: dict[int, Callable[[], None]] = {}

    @property
    def next_offset(self) -> Offset:
        return self.high_watermark

    async def confirm_leader(self) -> None:
        if self.was_replaced:
            raise NotLeader(leader=-1)

    async def seal(self, *, epoch: Epoch, new_epoch: Epoch, move_id: str) -> PrefixEnd:
        if epoch != self.epoch:
            raise Fenced("another epoch")
        return PrefixEnd(offset=self.high_watermark, digest=b"s" * 16)

    async def promise(self, *, new_epoch: Epoch, table: Sequence[EpochRow]) -> PrefixEnd:
        return PrefixEnd(offset=self.high_watermark, digest=b"p" * 16)

    def add_waiter(self, callback: Callable[[], None]) -> int:
        self.callbacks[1] = callback
        return 1

    def remove_waiter(self, handle: int) -> None:
        del self.callbacks[handle]


class Region:
    """Two brokers of region 1; the second leads partition 1."""

    def __init__(self) -> None:
        self.streams = {(1001, 0): Led(), (1002, 1): Led(7)}
        self.asked: list[BrokerId] = []
        self.agents = {number: self.agent(BrokerId(number)) for number in (1001, 1002)}

    def agent(self, me: BrokerId) -> HomeAgent:
        return HomeAgent(
            me=me,
            hosted=lambda stream: self.streams.get((me, stream.partition)),
            leader_of=lambda stream: {0: 1001, 1: 1002}.get(stream.partition, -1),
            ask=self.ask,
        )

    async def ask(self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float) -> JsonObject:
        self.asked.append(broker)
        return await self.agents[broker].handle(method, body, from_broker=BrokerId(1001))


async def test_a_region_answers_for_each_stream_with_one_question_per_broker() -> None:
    region = Region()
    rows = [EndAsked(key=key(partition)) for partition in (0, 1, 2)]
    body = await region.agents[1001].handle(ENDS_METHOD, asked_json(rows), from_broker=BrokerId(2001))
    told = read_answers(ENDS_METHOD, body, asked=[row.key for row in rows])
    assert isinstance(told[key(0)], LogEnds) and isinstance(told[key(1)], LogEnds)
    assert isinstance(told[key(2)], NotLeader)
    assert region.asked == [1002]


async def test_a_leader_that_was_replaced_without_hearing_of_it_tells_no_end() -> None:
    region = Region()
    region.streams[1001, 0].was_replaced = True
    rows = [EndAsked(key=key(partition)) for partition in (0, 1)]
    body = await region.agents[1001].handle(ENDS_METHOD, asked_json(rows), from_broker=BrokerId(2001))
    told = read_answers(ENDS_METHOD, body, asked=[row.key for row in rows])
    assert isinstance(told[key(0)], NotLeader) and isinstance(told[key(1)], LogEnds)


async def test_a_broker_answers_only_its_own_region_for_itself() -> None:
    region = Region()
    body = asked_json([EndAsked(key=key(0))], local=True)
    with pytest.raises(PolicyViolation):
        await region.agents[1001].handle(ENDS_METHOD, body, from_broker=BrokerId(2001))


async def test_a_question_that_is_none_is_refused() -> None:
    region = Region()
    with pytest.raises(BadRequest):
        await region.agents[1001].handle("home.other", asked_json([]), from_broker=BrokerId(2001))
    with pytest.raises(BadRequest):
        await region.agents[1001].handle(ENDS_METHOD, {"rows": 1}, from_broker=BrokerId(2001))
    assert await region.agents[1001].handle("home.ping", {}, from_broker=BrokerId(2001)) == {}


@pytest.mark.parametrize("is_open", [True, False])
async def test_whether_transactions_are_open_is_said_to_who_asks_for_it(*, is_open: bool) -> None:
    region = Region()
    region.streams[1001, 0].has_open_transactions = is_open
    told = []
    for asks in (True, False):
        rows = [EndAsked(key=key(0), with_transactions=asks)]
        body = await region.agents[1002].handle(ENDS_METHOD, asked_json(rows), from_broker=BrokerId(2001))
        ends = read_answers(ENDS_METHOD, body, asked=[key(0)])[key(0)]
        assert isinstance(ends, LogEnds)
        told.append(ends.has_open_transactions)
    assert told == [is_open, None]


async def test_a_seal_that_is_refused_is_told_as_a_fault() -> None:
    region = Region()
    rows = [SealAsked(key=key(0), epoch=Epoch(9), new_epoch=Epoch(10), move_id="m")]
    body = await region.agents[1001].handle(SEAL_METHOD, asked_json(rows), from_broker=BrokerId(2001))
    assert isinstance(read_answers(SEAL_METHOD, body, asked=[key(0)])[key(0)], Fenced)


async def test_who_asks_for_an_offset_is_answered_when_it_is_committed() -> None:
    region = Region()
    stream = region.streams[1001, 0]
    body = asked_json([EndAsked(key=key(0), until=Offset(6))], wait_ms=5_000)
    asking = asyncio.ensure_future(region.agents[1001].handle(ENDS_METHOD, body, from_broker=BrokerId(2001)))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not asking.done()
    stream.high_watermark = Offset(6)
    stream.callbacks[1]()
    told = read_answers(ENDS_METHOD, await asking, asked=[key(0)])[key(0)]
    assert isinstance(told, LogEnds) and told.high_watermark == 6
    assert stream.callbacks == {}


# --- coordinators -------------------------------------------------------------------------------------------------


def coordinators() -> TopicDefinition:
    return replace(topic(Homes.EVERY), name=INTERNAL_TOPIC)


def of(origin: RegionNumber, partition: int = 0) -> StreamKey:
    return StreamKey(TOPIC_ID, origin, partition)


def test_coordinators_of_every_region_can_move_and_begin_where_their_region_is() -> None:
    part = HomesPart(Topics(coordinators()))
    rows = [(row.key.origin, row.partition, row.home, row.epoch) for row in part.rows()]
    assert rows == [(origin, partition, origin, 1) for origin in (1, 2, 3) for partition in range(3)]
    assert part.streams_of(TWO) == [of(TWO, partition) for partition in range(3)]
    assert part.row(key(0)) is None and part.row(of(RegionNumber(9))) is None


def test_the_coordinators_of_one_partition_move_each_for_itself() -> None:
    topics = Topics(coordinators())
    part = HomesPart(topics)
    command = begin_command([of(ONE), of(TWO)], move_id="m", kind=MoveKind.PLANNED, target=THREE)
    assert part.apply(command, index=5, append_us=0) == {"refused": []}
    ends = [replace(ending(0, home=THREE), key=of(origin)) for origin in (ONE, TWO)]
    part.apply(end_command(ends), index=6, append_us=0)
    homes = {origin: part.row(of(origin)) for origin in (ONE, TWO, THREE)}
    assert {origin: row and row.home for origin, row in homes.items()} == {ONE: THREE, TWO: THREE, THREE: THREE}
    assert [row.key for row in part.foreign()] == [of(ONE), of(TWO)]
    assert [row.origin for row in part.since((6, TOPIC_ID, 0, 1), limit=9)] == [TWO]
    again = HomesPart(topics)
    again.restore(part.snapshot())
    assert list(again.book.rows()) == list(part.book.rows())
    topics.removed = (ONE,)
    row = part.row(of(ONE))
    assert row is not None and row.home == THREE, "what was taken over stays when its region leaves"


def test_streams_that_every_region_sequences_for_itself_do_not_move() -> None:
    part = HomesPart(Topics(topic(Homes.EVERY)))
    assert list(part.rows()) == []
    outcome = part.apply(begin_command([of(ONE)], move_id="m", kind=MoveKind.PLANNED, target=TWO), index=5, append_us=0)
    assert [(stream, code) for stream, code, _ in part.read_refused(outcome)] == [(of(ONE), BadRequest.code)]


def test_an_origin_of_0_is_nowhere_in_json_and_another_one_is_read_back() -> None:
    plain = HomeRow.first(TOPIC_ID, 0, home=ONE, regions=(ONE,), digest=bytes(16))
    assert "origin" not in plain.to_json() and HomeRow.from_json(plain.to_json()) == plain
    moved = replace(plain, origin=TWO)
    assert moved.to_json()["origin"] == 2 and HomeRow.from_json(moved.to_json()) == moved
    body = asked_json([EndAsked(key=of(TWO)), EndAsked(key=key())])
    assert [row.key for row in read_question(ENDS_METHOD, body).rows] == [of(TWO), key()]
    with pytest.raises(FieldError):
        HomeRow.from_json(moved.to_json() | {"origin": -1})
