"""Every schedule of a small mesh that a region leaves, and whose home is lost afterwards or before: no record that two
regions acknowledged is given up by a forced move that claims to keep them.

Three regions: us is home of a stream, eu leaves, ap stays. Two records; each is published, copied, and acknowledged
once us counts a copy elsewhere (k = 2). Brokers hear of the drain one by one. The shipping departure decides whether
eu may go, the shipping parts of mesh control which regions a forced move asks, the shipping rule what it chooses.

Two other rules are shown to lose records: to compare nothing, as if only streams that began in the leaving region
mattered, and to compare while a home may still count the copies of the region that leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import pytest

from georelay.fields import JsonObject
from georelay.ids import BrokerId, Epoch, Offset, RegionNumber, StreamKey
from mesh.home.home_row import MoveKind
from mesh.home.promise_core import PromiseAnswer, choose
from region.control import drain_heard
from region.control.departure import Departure
from region.control.drain_heard import DrainHeard, answer_heard
from region.control.regions_part import RegionsPart, founded
from region.controller.mesh_rows import RegionRow, RegionState
from region.controller.topic import Homes, TopicDefinition
from region.homes.home_requests import LogEnds, answer_json, read_question
from region.homes.levels import protected_level
from region.homes.mesh_topics import ControlTopics
from region.homes.part import HomesPart, begin_command

US, EU, AP = (RegionNumber(number) for number in (1, 2, 3))
NAMES = {US: "us", EU: "eu", AP: "ap"}
RECORDS_MAX = 2
TOPIC = TopicDefinition(
    name="orders", topic_id=b"t" * 16, partitions=1, replication_factor=1, homes=Homes.ONE, home=US,
    retention_ms=-1, retention_bytes=-1, config=(("min.insync.regions", "2"),), index=1,
)  # fmt: skip
KEY = StreamKey(TOPIC.topic_id, RegionNumber(0), 0)


class World(NamedTuple):
    us: int = 0  # records that the home has committed
    eu: int = 0
    ap: int = 0
    acked: int = 0  # records that were acknowledged in two regions
    state: str = "active"  # of eu
    heard: frozenset[RegionNumber] = frozenset()  # regions whose brokers know that eu drains


MayRemove = Callable[[World], bool]


class Definitions:
    """The one topic."""

    def topic_by_id(self, topic_id: bytes) -> TopicDefinition | None:
        return TOPIC if topic_id == TOPIC.topic_id else None

    def topics(self) -> Iterator[TopicDefinition]:
        return iter([TOPIC])


def regions_of(world: World) -> RegionsPart:
    """Return mesh control's regions."""
    rows = [
        RegionRow(
            number=number,
            name=name,
            brokers=(BrokerId(number * 1000 + 1),),
            level=4,
            state=RegionState(world.state) if number == EU else RegionState.ACTIVE,
        )
        for number, name in NAMES.items()
    ]
    part = RegionsPart()
    part.restore(founded("mesh", rows))
    return part


def departure_of(world: World, *, asks_who_heard: bool = True) -> Departure:
    """Return the shipping decision over what the regions of a world would answer."""
    regions = regions_of(world)
    rows = {row.number: row for row in regions.rows()}
    length = {US: world.us, EU: world.eu, AP: world.ap}

    async def ask(region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
        end = Offset(length[region])
        ends = LogEnds(epoch=Epoch(1), next_offset=end, high_watermark=end, log_start=Offset(0))
        return answer_json({row.key: ends for row in read_question(method, body).rows})

    async def ask_broker(broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float) -> JsonObject:
        knows = not asks_who_heard or RegionNumber(broker // 1000) in world.heard
        return {"ok": answer_heard(rows if knows else {}, body["body"])}

    heard = DrainHeard(me=BrokerId(9001), rows=dict, ask=ask_broker, envelope=lambda body: {"body": body})
    return Departure(topics=lambda: iter([TOPIC]), regions=regions, ask=ask, moved=lambda _: None, heard=heard)


def copied(world: World) -> Iterator[World]:
    """Bring one record to a mirror; the home counts it unless it knows that the mirror leaves."""
    if world.eu < world.us:
        counts = US not in world.heard
        yield world._replace(eu=world.eu + 1, acked=max(world.acked, world.eu + 1) if counts else world.acked)
    if world.ap < world.us:
        yield world._replace(ap=world.ap + 1, acked=max(world.acked, world.ap + 1))


def next_worlds(world: World, may_remove: MayRemove) -> Iterator[World]:
    if world.us < RECORDS_MAX:
        yield world._replace(us=world.us + 1)
    yield from copied(world)
    if world.state == "active":
        yield world._replace(state="draining")
    for region in NAMES:
        if world.state != "active" and region not in world.heard:
            yield world._replace(heard=world.heard | {region})
    if world.state == "draining" and may_remove(world):
        yield world._replace(state="removed")


def kept(world: World) -> Iterator[int]:
    """Return where the new epoch may begin once us is lost, for every set of promises that is said to be enough."""
    part = HomesPart(ControlTopics(Definitions(), regions_of(world)))
    refused = part.apply(begin_command([KEY], move_id="m", kind=MoveKind.FORCED), index=9, append_us=0)["refused"]
    row = part.row(KEY)
    assert not refused
    assert row is not None
    level = protected_level(TOPIC, regions=len(row.regions))
    held = {EU: world.eu, AP: world.ap}
    answering = [region for region in row.regions if region in held]
    for count in range(1, len(answering) + 1):
        for regions in combinations(answering, count):
            answers = {
                region: PromiseAnswer(region=region, length=Offset(held[region]), digest=bytes([held[region]] * 16))
                for region in regions
            }
            choice = choose(row, answers, regions=row.regions, level=level)
            if choice is not None and choice.is_enough:
                yield choice.start


def visited(may_remove: MayRemove) -> set[World]:
    """Return every world that can be reached."""
    seen, frontier = {World()}, [World()]
    while frontier:
        for following in next_worlds(frontier.pop(), may_remove):
            if following not in seen:
                seen.add(following)
                frontier.append(following)
    return seen


def losses(worlds: set[World]) -> list[World]:
    """Return the worlds in which a forced move gives up an acknowledged record and says that it keeps all."""
    return [world for world in worlds if any(start < world.acked for start in kept(world))]


@pytest.fixture
def ships(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., MayRemove]]:
    """Returns a rule that asks the shipping departure."""
    monkeypatch.setattr(drain_heard, "WAIT_S", 0.0)
    with asyncio.Runner() as runner:

        def rule(**settings: bool) -> MayRemove:
            return lambda world: not runner.run(departure_of(world, **settings).lacking(EU))

        yield rule


def test_no_acknowledged_record_is_lost_with_a_region_that_left(ships: Callable[..., MayRemove]) -> None:
    worlds = visited(ships())
    assert losses(worlds) == []
    gone = [world for world in worlds if world.state == "removed"]
    assert any(world.acked == RECORDS_MAX for world in gone)  # it does leave, and records are acknowledged without it
    assert any(list(kept(world)) for world in gone)  # and its absence keeps no move from having enough promises


def test_to_remove_it_without_a_look_at_streams_of_other_homes_loses_records() -> None:
    assert losses(visited(lambda _: True))


def test_to_compare_before_every_home_heard_of_the_drain_loses_records(ships: Callable[..., MayRemove]) -> None:
    assert losses(visited(ships(asks_who_heard=False)))
