"""Failover without an operator beyond the loss of one whole region: majorities lost, and losses while a home moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import BadRequest, Busy, GeorelayError, Unavailable
from georelay.ids import BrokerId, Offset, RegionNumber
from mesh.home.home_book_core import Ending
from mesh.home.move_core import Stage
from region.controller.topic import Homes, TopicDefinition
from region.coordination.coordinators import INTERNAL_TOPIC
from region.homes.agent import HomeAgent
from region.homes.move_desk import MoveAsked
from region.homes.part import HomesPart, begin_command, end_command
from region.homes.reports import MoveReport
from region.homes.takeover import AGAIN_NS, Takeovers

World = Any
Play = Callable[..., None]
ONE, TWO, THREE = RegionNumber(1), RegionNumber(2), RegionNumber(3)


async def settle(world: World) -> None:
    await world.until(lambda: world.leader is not None)
    await world.until(lambda: all(not world.states[world.leader].part.row(key).moving for key in world.keys))
    world.is_publishing = False
    for state in world.states.values():
        state.catch_up()
    await world.until(
        lambda: all(
            len(
                {
                    (len(world.streams[region, key].entries), world.streams[region, key].epoch)
                    for region in world.regions
                }
            )
            == 1
            for key in world.keys
        )
    )
    world.check()


def is_home_nowhere(world: World, lost: int | None) -> bool:
    return world.leader is not None and all(world.home(key) != lost for key in world.keys)


async def published(world: World) -> None:
    await world.until(lambda: len(world.acks.get(world.keys[0], [])) > 20)


# --- a majority is lost -----------------------------------------------------------------------------


def test_the_home_of_a_region_without_its_majority_moves_though_a_broker_of_it_lives(play: Play) -> None:
    async def story(world: World) -> None:
        await published(world)
        begun = world.loop.time()
        world.states[ONE].is_led = False
        await world.until(lambda: is_home_nowhere(world, ONE))
        await world.until(lambda: world.acks[world.keys[0]][-1].epoch == 2)
        assert world.loop.time() - begun < 8.0
        world.states[ONE].is_led = True
        await settle(world)

    play(story, automatic=True)


def test_a_region_without_its_majority_is_taken_over_when_its_broker_leads_mesh_control(play: Play) -> None:
    async def story(world: World) -> None:
        leader = world.leader
        if leader != ONE:
            await world.operate("home.move", {"streams": world.streams_json(), "target": leader})
        await world.until(lambda: all(world.home(key) == leader for key in world.keys))
        await asyncio.sleep(3.0)
        world.states[leader].is_led = False
        await world.until(lambda: is_home_nowhere(world, leader))
        assert world.leader == leader
        world.states[leader].is_led = True
        await settle(world)

    play(story, automatic=True)


def test_a_moment_without_a_leader_moves_nothing(play: Play) -> None:
    async def story(world: World) -> None:
        await published(world)
        world.states[ONE].is_led = False
        await asyncio.sleep(1.2)
        world.states[ONE].is_led = True
        await asyncio.sleep(4.0)
        assert all(world.home(key) == ONE for key in world.keys)

    play(story, automatic=True)


async def test_a_broker_that_knows_no_leader_of_its_region_gives_no_sign_of_life_for_it() -> None:
    nobody: Any = None
    agent = HomeAgent(
        me=BrokerId(1003), hosted=lambda _: None, leader_of=lambda _: -1, ask=nobody, is_led=lambda: False
    )
    with pytest.raises(Unavailable, match="no leader"):
        await agent.handle("home.ping", {}, from_broker=BrokerId(2001))


def test_a_lease_that_is_asked_for_without_a_leader_is_no_sign_of_life(play: Play) -> None:
    async def story(world: World) -> None:
        leader = world.states[world.leader].leader
        other = next(region for region in world.regions if region != world.leader)
        heard: list[int] = []
        leader.silence.heard = lambda region, _now_ns: heard.append(region)
        for body in ({"led": False}, {"led": True}, {}):
            for method in ("home.lease", "home.hear"):
                await leader.methods()[method](body, BrokerId(other * 1000 + 3))
        assert heard.count(other) == 4
        with pytest.raises(BadRequest):
            await leader.methods()["home.hear"]({"led": 1}, BrokerId(other * 1000 + 3))

    play(story)


# --- one more region is lost ------------------------------------------------------------------------


def protect_three_of_five(world: World) -> None:
    settings = {"min.insync.regions": "3", "protect.k": "3", "failover": "auto"}
    world.topic = replace(world.topic, config=tuple(sorted(settings.items())))


def the_chosen(world: World) -> int | None:
    """Return which region the attempt for the first stream chose, while its end is not committed."""
    if world.leader is None:
        return None
    move = world.states[world.leader].leader._driver.carried(world.keys[0])
    return move.choice.home if move is not None and move.stage is Stage.FENCING else None


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_region_that_is_lost_after_it_was_chosen_is_left_out_or_taken_over(seed: int, play: Play) -> None:
    async def story(world: World) -> None:
        protect_three_of_five(world)
        await published(world)
        world.crash(ONE)
        await world.until(lambda: world.leader not in (None, ONE))
        await world.begin("home.failover", {"region": ONE, "streams": [], "accept_loss": False})
        await world.until(lambda: the_chosen(world) is not None)  # the leases of the lost region are waited for
        second = the_chosen(world)
        world.crash(second)
        await world.until(lambda: is_home_nowhere(world, ONE) and is_home_nowhere(world, second))
        world.restart(ONE)
        world.restart(second)
        await settle(world)

    play(story, seed=seed, regions=5, automatic=True)


def test_what_attempts_wait_for_is_told(play: Play) -> None:
    async def story(world: World) -> None:
        world.want_level(2)
        await published(world)
        lost, silent = (region for region in world.regions if region != world.leader)
        here = world.states[world.leader]
        await world.operate("home.move", {"streams": world.streams_json(), "target": lost})
        world.crash(lost)
        world.states[silent].is_led = False
        here.leader.desk.check_answers = lambda _asked: asyncio.sleep(0)  # it answered when the operator asked
        await world.begin("home.failover", {"region": lost, "streams": [], "accept_loss": False})
        await asyncio.sleep(3.0)
        rows = (await world.begin("home.waiting", {}))["rows"]
        assert [(row["stage"], row["needed"], row["promised"]) for row in rows] == [
            ("promising", 2, [world.leader])
        ] * len(world.keys)
        assert all(set(row["regions"]) == {lost, silent} and "did not promise" in row["fault"] for row in rows)
        world.states[silent].is_led = True
        await world.until(lambda: is_home_nowhere(world, lost))
        assert (await world.begin("home.waiting", {}))["rows"] == []
        world.restart(lost)
        await settle(world)

    play(story)


def test_a_failover_that_control_could_not_begin_is_begun_again(play: Play) -> None:
    async def story(world: World) -> None:
        await published(world)
        proposals = 0
        real = world.propose

        async def propose(number: int, command: Any) -> Any:
            nonlocal proposals
            if command["kind"] == "begin" and (proposals := proposals + 1) <= 2:
                raise Unavailable("the log of control is busy")
            return await real(number, command)

        world.propose = propose
        world.crash(ONE)
        await world.until(lambda: is_home_nowhere(world, ONE))
        assert proposals >= 3
        world.restart(ONE)
        await settle(world)

    play(story, automatic=True)


# --- what is taken, and how often --------------------------------------------------------------------


class Topics:
    """One topic that fails over by itself, and the coordinators. Implements MeshTopics."""

    def __init__(self, **config: str) -> None:
        common: dict[str, Any] = {"replication_factor": 1, "retention_ms": -1, "retention_bytes": -1, "index": 1}
        settings = {"min.insync.regions": "2", "failover": "auto"} | config
        self.orders = TopicDefinition(
            name="orders", topic_id=b"o" * 16, partitions=2, homes=Homes.ONE, home=ONE,
            config=tuple(sorted(settings.items())), **common,
        )  # fmt: skip
        self.groups = TopicDefinition(
            name=INTERNAL_TOPIC, topic_id=b"c" * 16, partitions=1, homes=Homes.EVERY, home=RegionNumber(0), config=(),
            **common,
        )  # fmt: skip

    def find(self, topic_id: bytes) -> TopicDefinition | None:
        return next((topic for topic in self.topics() if topic.topic_id == topic_id), None)

    def topics(self) -> Iterator[TopicDefinition]:
        return iter((self.orders, self.groups))

    def holders(self, topic: TopicDefinition) -> tuple[RegionNumber, ...]:
        return (ONE, TWO, THREE)

    def may_be_home(self, region: RegionNumber) -> bool:
        return True

    def is_removed(self, region: RegionNumber) -> bool:
        return False


class Desk:
    """Takes down what is begun; `ends` moves homes as a driver would."""

    def __init__(self, part: HomesPart) -> None:
        self.part = part
        self.begun: list[MoveReport] = []
        self.fault: GeorelayError | None = None
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def begin(self, asked: MoveAsked) -> MoveReport:
        if self.fault is not None:
            raise self.fault
        move_id = f"m{len(self.begun)}"
        self._apply(begin_command(list(asked.keys), move_id=move_id, kind=asked.kind))
        self.begun.append(MoveReport(move_id=move_id, kind="forced", keys=asked.keys))
        return self.begun[-1]

    def ends(self, home: RegionNumber) -> None:
        """End the newest attempts at a home."""
        report = self.begun[-1]
        ends = [
            Ending(key=key, move_id=report.move_id, home=home, start=Offset(5), digest=b"d" * 16) for key in report.keys
        ]
        self._apply(end_command(ends))
        report.end()

    def _apply(self, command: Any) -> None:
        index = 1 + max((row.index for row in self.part.book.rows()), default=0)
        assert self.part.apply(command, index=index, append_us=0) == {"refused": []}


class Bench:
    def __init__(self, **config: str) -> None:
        topics = Topics(**config)
        self.part = HomesPart(topics)
        self.desk = Desk(self.part)
        desk: Any = self.desk
        self.takeovers = Takeovers(part=self.part, topics=topics, desk=desk, clock=desk)

    def taken(self) -> list[list[tuple[int, int]]]:
        return [[(key.origin, key.partition) for key in report.keys] for report in self.desk.begun]


def test_topics_and_groups_of_a_lost_region_are_taken_once() -> None:
    bench = Bench()
    for _ in range(3):
        bench.takeovers.look([ONE])
    assert bench.taken() == [[(0, 0), (0, 1), (1, 0)]]


def test_nothing_of_a_region_is_taken_whose_topics_do_not_say_so() -> None:
    bench = Bench(failover="manual")
    bench.takeovers.look([ONE])
    assert bench.taken() == []


def test_what_becomes_a_lost_regions_later_is_taken_too() -> None:
    bench = Bench()
    bench.takeovers.look([ONE, THREE])
    bench.desk.ends(THREE)
    bench.takeovers.look([ONE, THREE])
    assert bench.taken()[1:] == [[(0, 0), (0, 1), (1, 0)]]


def test_a_region_that_answered_and_stays_home_is_left_alone_until_it_was_heard() -> None:
    bench = Bench()
    bench.takeovers.look([ONE])
    bench.desk.ends(ONE)
    for _ in range(3):
        bench.takeovers.look([ONE])
    assert len(bench.taken()) == 1
    bench.takeovers.look([])
    bench.takeovers.look([ONE])
    assert len(bench.taken()) == 2


def test_what_could_not_be_begun_is_tried_again_after_a_pause() -> None:
    bench = Bench()
    bench.desk.fault = Busy("too many moves")
    bench.takeovers.look([ONE])
    bench.desk.fault = None
    bench.takeovers.look([ONE])
    assert bench.taken() == []
    bench.desk.now_ns += AGAIN_NS
    bench.takeovers.look([ONE])
    assert len(bench.taken()) == 1
    report = bench.desk.begun[0]
    report.refused = {key: Unavailable("the log is busy") for key in report.keys}
    bench.part.restore(HomesPart(Topics()).snapshot())  # nothing of it is in the book
    report.end()
    bench.takeovers.look([ONE])
    bench.desk.now_ns += AGAIN_NS
    bench.takeovers.look([ONE])
    assert len(bench.taken()) == 2
