"""A policy that became `auto` is in force for failover once the home is known to acknowledge under a lease only."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.errors import Fenced
from georelay.fields import FieldError, JsonObject
from georelay.ids import BrokerId, RegionNumber
from mesh.home.home_row import HomeRow
from region.control.definitions_part import DefinitionsPart, command_to_json, doubted
from region.control.regions_part import RegionsPart, founded
from region.controller.commands import AlterTopic, Command, DefineTopic, DropTopic
from region.controller.mesh_rows import RegionRow
from region.controller.topic import Homes, Tombstone, TopicDefinition
from region.coordination.coordinators import INTERNAL_TOPIC
from region.homes.leader import HomeLeader
from region.homes.mesh_topics import ControlTopics
from region.homes.part import HomesPart, obeyed_command
from region.homes.policies import ControlPolicies, policies_digest
from region.homes.takeover import AGAIN_NS

US, EU, AP = RegionNumber(1), RegionNumber(2), RegionNumber(3)
FIRST, SECOND = BrokerId(1001), BrokerId(1002)
AUTO = (("failover", "auto"), ("min.insync.regions", "2"), ("protect.k", "2"))
MANUAL = (("failover", "manual"), ("min.insync.regions", "2"), ("protect.k", "2"))


def topic_of(name: str, *, config: tuple[tuple[str, str], ...] = (), index: int = 0) -> TopicDefinition:
    return TopicDefinition(
        name=name, topic_id=name.encode().ljust(16, b"-"), partitions=1, replication_factor=1, homes=Homes.ONE,
        home=US, retention_ms=-1, retention_bytes=-1, config=config, index=index,
    )  # fmt: skip


class Mesh:
    """Control with one voter; us has two brokers."""

    is_leader = True

    def __init__(self) -> None:
        self.regions = RegionsPart()
        rows = [
            RegionRow(number=US, name="us", brokers=(FIRST, SECOND), level=4),
            RegionRow(number=EU, name="eu", brokers=(BrokerId(2001),), level=4),
            RegionRow(number=AP, name="ap", brokers=(BrokerId(3001),), level=4),
        ]
        self.regions.restore(founded("mesh", rows))
        self.definitions = DefinitionsPart(self.regions.topology)
        topics = ControlTopics(self.definitions, self.regions)
        self.part = HomesPart(topics)
        self.index = 0
        self.known: dict[BrokerId, list[TopicDefinition]] = {FIRST: [], SECOND: []}
        self.leader = self.lead(topics)

    def lead(self, topics: ControlTopics) -> HomeLeader:
        clock = SystemClock()
        leader = HomeLeader(
            part=self.part, topics=topics, control=self, confirm=self.confirm, ask=self.ask, own_region=EU,
            regions=lambda: (US, EU, AP), voters=lambda: 3, clock=clock, rng=random.Random(1),
            policies=ControlPolicies(self.definitions, self.regions),
        )  # fmt: skip
        leader.leases.elected(clock.monotonic_ns())
        leader._leads = True
        return leader

    async def confirm(self) -> None: ...

    async def ask(self, region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float) -> Mapping[str, Any]:
        raise AssertionError(method)

    async def call(self, method: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        raise AssertionError(method)

    async def propose(self, part: str, command: JsonObject) -> JsonObject:
        self.index += 1
        return self.part.apply(command, index=self.index, append_us=0)

    def define(self, command: Command) -> None:
        self.index += 1
        self.definitions.apply(command_to_json(command), index=self.index, append_us=0)

    def alter(self, name: str, config: tuple[tuple[str, str], ...]) -> None:
        current = self.definitions.topic_by_name(name)
        assert current is not None
        self.define(AlterTopic(definition=replace(current, config=config)))

    def follow(self, *brokers: BrokerId) -> None:
        """Let brokers hear of everything that was defined."""
        for broker in brokers:
            self.known[broker] = list(self.definitions.topics())

    async def renew(self, *brokers: BrokerId) -> None:
        for broker in brokers:
            body: JsonObject = {"policies": policies_digest(self.known[broker])}
            await self.leader.methods()["home.lease"](body, broker)

    async def in_force(self) -> bool:
        return await self.leader.methods()["home.policies"]({}, FIRST) == {"waiting": []}


async def test_a_topic_that_was_made_with_auto_is_in_force_at_once() -> None:
    mesh = Mesh()
    mesh.define(DefineTopic(definition=topic_of("pay", config=AUTO)))
    assert await mesh.in_force()


async def test_a_topic_that_becomes_auto_waits_for_every_broker_of_its_home() -> None:
    mesh = Mesh()
    mesh.define(DefineTopic(definition=topic_of("pay")))
    mesh.follow(FIRST, SECOND)
    mesh.alter("pay", AUTO)
    await mesh.renew(FIRST, SECOND)  # they have not heard of it
    assert not await mesh.in_force()
    mesh.follow(FIRST)
    await mesh.renew(FIRST, SECOND)
    assert not await mesh.in_force()
    mesh.follow(SECOND)
    await mesh.renew(SECOND)
    assert await mesh.in_force()


async def test_a_home_that_is_cut_off_before_it_heard_of_the_policy_is_not_failed_over() -> None:
    mesh = Mesh()
    mesh.define(DefineTopic(definition=topic_of("first", config=AUTO)))  # so that us asks for leases
    mesh.define(DefineTopic(definition=topic_of("pay")))
    mesh.follow(FIRST, SECOND)
    await mesh.renew(FIRST, SECOND)
    mesh.alter("pay", AUTO)
    assert US in mesh.part.leased
    assert taken(mesh) == {"first"}
    mesh.follow(FIRST, SECOND)
    await mesh.renew(FIRST, SECOND)
    assert taken(mesh) == {"first", "pay"}


def taken(mesh: Mesh) -> set[str]:
    """Return the topics that would be taken from us if it was lost now."""
    rows: Iterator[HomeRow] = mesh.part.rows()
    topics = [topic for row in rows if (topic := mesh.definitions.topic_by_id(row.topic_id)) is not None]
    return {topic.name for topic in topics if mesh.leader._is_in_force(topic, US)}


async def test_whoever_became_manual_and_auto_again_has_to_be_heard_again() -> None:
    mesh = Mesh()
    mesh.define(DefineTopic(definition=topic_of("pay")))
    mesh.alter("pay", AUTO)
    mesh.follow(FIRST, SECOND)
    await mesh.renew(FIRST, SECOND)
    mesh.alter("pay", MANUAL)
    mesh.alter("pay", AUTO)
    await mesh.renew(FIRST, SECOND)  # they may have heard that it is manual, and no more
    assert not await mesh.in_force()


async def test_another_setting_changes_nothing_about_the_policy() -> None:
    mesh = Mesh()
    mesh.define(DefineTopic(definition=topic_of("pay")))
    mesh.alter("pay", AUTO)
    mesh.follow(FIRST, SECOND)
    await mesh.renew(FIRST, SECOND)
    mesh.alter("pay", (*AUTO, ("segment.bytes", "1048576")))
    assert await mesh.in_force()


async def test_the_next_leader_of_control_knows_it_and_so_does_every_replica() -> None:
    mesh = Mesh()
    mesh.define(DefineTopic(definition=topic_of("pay")))
    mesh.alter("pay", AUTO)
    mesh.follow(FIRST, SECOND)
    await mesh.renew(FIRST, SECOND)
    parts = (mesh.definitions.snapshot(), mesh.part.snapshot())
    again = Mesh()
    again.definitions.restore(parts[0])
    again.part.restore(parts[1])
    assert (again.definitions.snapshot(), again.part.snapshot()) == parts
    assert await again.in_force()


async def test_a_recovered_control_believes_nothing_of_what_regions_said() -> None:
    mesh = Mesh()
    mesh.define(DefineTopic(definition=topic_of("made", config=AUTO)))
    mesh.follow(FIRST, SECOND)
    await mesh.renew(FIRST, SECOND)
    mesh.definitions.restore(doubted(mesh.definitions.snapshot()))  # with the lost majority it may have become manual
    mesh.part.restore({name: value for name, value in mesh.part.snapshot().items() if name != "obeyed"})
    assert not await mesh.in_force()
    await mesh.renew(FIRST, SECOND)
    assert await mesh.in_force()


async def test_brokers_of_an_earlier_version_say_nothing_and_are_waited_for() -> None:
    mesh = Mesh()
    mesh.define(DefineTopic(definition=topic_of("pay")))
    mesh.alter("pay", AUTO)
    mesh.follow(FIRST, SECOND)
    await mesh.renew(FIRST)
    await mesh.leader.methods()["home.lease"]({}, SECOND)
    assert not await mesh.in_force()


async def test_what_a_region_obeys_is_committed_once_while_no_policy_changes() -> None:
    mesh = Mesh()
    mesh.define(DefineTopic(definition=topic_of("pay", config=AUTO)))
    mesh.follow(FIRST, SECOND)
    await mesh.renew(FIRST, SECOND)
    assert mesh.part.snapshot()["obeyed"] == [[US, 1]]
    before = mesh.index
    await mesh.renew(FIRST, SECOND)
    assert mesh.index == before


def test_a_deleted_topic_is_not_waited_for() -> None:
    mesh = Mesh()
    mesh.define(DefineTopic(definition=topic_of("pay")))
    mesh.alter("pay", AUTO)
    pay = mesh.definitions.topic_by_name("pay")
    assert pay is not None and mesh.definitions.newest_auto() == pay.index
    mesh.define(DropTopic(tombstone=Tombstone(name="pay", topic_id=pay.topic_id, index=0)))
    assert mesh.definitions.newest_auto() == 0
    assert "auto_since" not in mesh.definitions.snapshot()


@pytest.mark.parametrize("raw", [[[1]], [[1, 2, 3]], [["x", 1]], [1], [[0, 1]]])
def test_what_is_no_pair_is_refused(raw: list[object]) -> None:
    mesh = Mesh()
    with pytest.raises(FieldError):
        mesh.part.restore({**mesh.part.snapshot(), "obeyed": raw})


async def test_what_was_obeyed_never_falls() -> None:
    mesh = Mesh()
    await mesh.propose("homes", obeyed_command(US, index=7))
    await mesh.propose("homes", obeyed_command(US, index=5))
    assert mesh.part.obeyed == {US: 7}


async def test_what_is_not_in_force_is_left_where_it_is_and_the_rest_is_taken_from_a_lost_region() -> None:
    mesh = Mesh()
    mesh.define(DefineTopic(definition=topic_of("made", config=AUTO)))
    mesh.define(DefineTopic(definition=topic_of("pay")))
    mesh.alter("pay", AUTO)
    mesh.leader._takeovers.look([US])
    async with asyncio.timeout(5):
        while not list(mesh.part.book.attempts()):
            await asyncio.sleep(0)
    assert [mesh.definitions.topic_by_id(row.topic_id).name for row in mesh.part.book.attempts()] == ["made"]  # type: ignore[union-attr]
    mesh.leader.deposed()


# --- coordinators -------------------------------------------------------------------------------------


async def attempts_on_us(mesh: Mesh) -> set[str]:
    """Return the topics of which something is taken when us is lost now."""
    mesh.leader._takeovers.look([US])
    for _ in range(100):
        await asyncio.sleep(0)
    names = {topic.topic_id: topic.name for topic in mesh.definitions.topics()}
    found = {names[row.topic_id] for row in mesh.part.book.attempts() if row.home == US}
    mesh.leader.deposed()
    return found


def define_groups(mesh: Mesh) -> None:
    mesh.define(
        DefineTopic(
            definition=replace(topic_of(INTERNAL_TOPIC), topic_id=b"c" * 16, homes=Homes.EVERY, home=RegionNumber(0))
        )
    )


async def test_coordinators_are_not_taken_from_a_region_that_never_said_that_it_knows_a_topic_with_auto() -> None:
    mesh = Mesh()
    define_groups(mesh)
    mesh.follow(FIRST, SECOND)
    mesh.define(DefineTopic(definition=topic_of("made", config=AUTO)))
    mesh.follow(FIRST)
    await mesh.renew(FIRST)  # the second broker was cut off before it heard of it: it commits offsets without a lease
    assert await attempts_on_us(mesh) == {"made"}


async def test_coordinators_are_taken_with_the_topics_once_every_broker_follows_a_topic_with_auto() -> None:
    mesh = Mesh()
    define_groups(mesh)
    mesh.define(DefineTopic(definition=topic_of("made", config=AUTO)))
    mesh.follow(FIRST, SECOND)
    await mesh.renew(FIRST, SECOND)
    assert await attempts_on_us(mesh) == {"made", INTERNAL_TOPIC}


async def test_coordinators_stay_under_lease_while_one_of_the_topics_that_bound_them_does() -> None:
    mesh = Mesh()
    define_groups(mesh)
    mesh.define(DefineTopic(definition=topic_of("made", config=AUTO)))
    mesh.follow(FIRST, SECOND)
    await mesh.renew(FIRST, SECOND)
    mesh.define(DefineTopic(definition=topic_of("later", config=AUTO)))  # us is cut off before it hears of this one
    assert await attempts_on_us(mesh) == {"made", "later", INTERNAL_TOPIC}


async def test_coordinators_that_were_free_for_a_while_have_to_be_bound_again() -> None:
    mesh = Mesh()
    define_groups(mesh)
    mesh.define(DefineTopic(definition=topic_of("made", config=AUTO)))
    mesh.follow(FIRST, SECOND)
    await mesh.renew(FIRST, SECOND)
    mesh.alter("made", MANUAL)  # the last that us hears
    mesh.define(DefineTopic(definition=topic_of("later", config=AUTO)))
    assert await attempts_on_us(mesh) == {"later"}


async def test_coordinators_come_with_a_topic_that_is_in_force_only_after_its_region_was_lost() -> None:
    mesh = Mesh()
    define_groups(mesh)
    mesh.define(DefineTopic(definition=topic_of("pay")))
    mesh.alter("pay", AUTO)
    clock = mesh.leader._takeovers._clock = Stopped()
    mesh.leader._takeovers.look([US])
    mesh.follow(FIRST, SECOND)
    await mesh.renew(FIRST, SECOND)
    assert not list(mesh.part.book.attempts())
    clock.now_ns += AGAIN_NS
    assert await attempts_on_us(mesh) == {"pay", INTERNAL_TOPIC}


async def test_what_comes_into_force_while_a_region_is_lost_is_taken_then() -> None:
    mesh = Mesh()
    define_groups(mesh)
    mesh.define(DefineTopic(definition=topic_of("made", config=AUTO)))
    mesh.define(DefineTopic(definition=topic_of("pay")))
    mesh.alter("pay", AUTO)
    clock = mesh.leader._takeovers._clock = Stopped()
    mesh.leader._takeovers.look([US])
    for _ in range(100):
        await asyncio.sleep(0)
    mesh.follow(FIRST, SECOND)
    with pytest.raises(Fenced):  # homes are being taken from us: no lease, but its brokers say what they follow
        await mesh.renew(FIRST, SECOND)
    with pytest.raises(Fenced):
        await mesh.renew(SECOND)
    clock.now_ns += AGAIN_NS
    assert await attempts_on_us(mesh) == {"made", "pay", INTERNAL_TOPIC}


class Stopped:
    """A clock that is moved by hand."""

    now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns
