"""To whom control's leader grants a lease: only while it is sure to lead, and not where homes are being taken away."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from georelay.clock import SystemClock
from georelay.errors import Fenced, NotLeader
from georelay.fields import JsonObject
from georelay.ids import BrokerId, RegionNumber, StreamKey
from mesh.home.home_row import MoveKind
from mesh.home.move_core import Move
from region.controller.topic import Homes, TopicDefinition
from region.homes.leader import HomeLeader
from region.homes.part import HomesPart, begin_command

REGIONS = (RegionNumber(1), RegionNumber(2), RegionNumber(3))
ONE, TWO = BrokerId(1001), BrokerId(2001)
TOPIC = TopicDefinition(
    name="orders", topic_id=b"l" * 16, partitions=1, replication_factor=1, homes=Homes.ONE, home=REGIONS[0],
    retention_ms=-1, retention_bytes=-1, config=(("failover", "auto"), ("min.insync.regions", "2")), index=1,
)  # fmt: skip
MANUAL = replace(TOPIC, name="logs", topic_id=b"m" * 16, config=())
KEY, MANUAL_KEY = (StreamKey(topic.topic_id, RegionNumber(0), 0) for topic in (TOPIC, MANUAL))


class Mesh:
    """Control with one voter, which may find that it leads no more. Implements MeshTopics and Control."""

    is_leader = True

    def __init__(self) -> None:
        self.part = HomesPart(self)
        self.commands = 0
        self.leads = True

    def find(self, topic_id: bytes) -> TopicDefinition | None:
        return next((topic for topic in self.topics() if topic.topic_id == topic_id), None)

    def topics(self) -> Iterator[TopicDefinition]:
        return iter([TOPIC, MANUAL])

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
        raise AssertionError("a lease asks no region")

    async def confirm(self) -> None:
        if not self.leads:
            raise NotLeader("another broker leads control")

    def leader(self) -> HomeLeader:
        clock = SystemClock()
        leader = HomeLeader(
            part=self.part, topics=self, control=self, confirm=self.confirm, ask=self.ask, own_region=REGIONS[1],
            regions=lambda: (), voters=lambda: 3, clock=clock, rng=random.Random(1),
        )  # fmt: skip
        leader.leases.elected(clock.monotonic_ns())
        leader._leads = True
        return leader


async def test_a_leader_that_cannot_confirm_that_it_leads_grants_nothing() -> None:
    mesh = Mesh()
    leader = mesh.leader()
    await leader.methods()["home.lease"]({}, ONE)
    granted_ns = leader.leases.newest_ns(REGIONS[0])
    mesh.leads = False
    with pytest.raises(NotLeader):
        await leader.methods()["home.lease"]({}, ONE)
    assert leader.leases.newest_ns(REGIONS[0]) == granted_ns


async def test_a_region_whose_home_is_being_taken_away_gets_no_lease_and_others_do() -> None:
    mesh = Mesh()
    leader = mesh.leader()
    await mesh.propose("homes", begin_command([KEY], move_id="m", kind=MoveKind.FORCED))
    with pytest.raises(Fenced):
        await leader.methods()["home.lease"]({}, ONE)
    assert leader.leases.newest_ns(REGIONS[0]) is None
    await leader.methods()["home.lease"]({}, TWO)
    assert leader.leases.newest_ns(REGIONS[1]) is not None


async def test_a_topic_without_leases_that_is_taken_away_costs_its_region_no_lease() -> None:
    mesh = Mesh()
    leader = mesh.leader()
    await mesh.propose("homes", begin_command([MANUAL_KEY], move_id="m", kind=MoveKind.FORCED))
    await leader.methods()["home.lease"]({}, ONE)
    assert leader.leases.newest_ns(REGIONS[0]) is not None


async def test_an_attempt_that_waits_for_leases_ends_them_although_its_topic_needs_none_any_more() -> None:
    mesh = Mesh()
    leader = mesh.leader()
    await mesh.propose("homes", begin_command([MANUAL_KEY], move_id="m", kind=MoveKind.FORCED))
    row = mesh.part.row(MANUAL_KEY)
    assert row is not None
    leader._driver._carried[MANUAL_KEY] = Move(row, level=2, needs_lease=True)
    with pytest.raises(Fenced):
        await leader.methods()["home.lease"]({}, ONE)
