"""Topic settings about regions: what they may be, alone and together, and what a topic without them says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import InvalidTopic, PolicyViolation
from georelay.ids import BrokerId, RegionNumber
from region.controller import definition_orders
from region.controller.definition_orders import DefinitionOrders
from region.controller.definition_rules import alter
from region.controller.effects import Done
from region.controller.geo_settings import GEO_DEFAULTS, FailoverPolicy, check_together
from region.controller.topic import TopicDefinition, TopicSpec
from region.controller.topology import RegionInfo, Topology


@pytest.fixture
def plain(definition: Any) -> TopicDefinition:
    made = definition()
    assert isinstance(made, TopicDefinition)
    return replace(made, config=())


def test_a_topic_without_settings_asks_for_its_home_only(plain: TopicDefinition) -> None:
    assert (plain.min_insync_regions, plain.max_geo_lag_ms, plain.max_geo_lag_records) == (1, 0, 0)
    assert (plain.failover, plain.protect_k) == (FailoverPolicy.MANUAL, 0)


def test_settings_are_kept_and_read_back(plain: TopicDefinition) -> None:
    given = {
        "min.insync.regions": "3",
        "max.geo.lag.ms": "500",
        "max.geo.lag.records": "0010",
        "failover": "auto",
        "protect.k": "2",
    }
    topic = alter(plain, given, regions=3)
    assert (topic.min_insync_regions, topic.max_geo_lag_ms, topic.max_geo_lag_records) == (3, 500, 10)
    assert (topic.failover, topic.protect_k) == (FailoverPolicy.AUTO, 2)
    assert TopicDefinition.from_json(topic.to_json()) == topic


def test_a_default_is_not_kept_so_that_an_unchanged_topic_stays_equal(plain: TopicDefinition) -> None:
    assert alter(plain, GEO_DEFAULTS, regions=3) == plain
    changed = alter(plain, {"min.insync.regions": "2"}, regions=3)
    assert changed != plain
    assert alter(changed, {"min.insync.regions": None}, regions=3) == plain


def test_that_more_regions_were_asked_for_is_remembered_while_several_are(plain: TopicDefinition) -> None:
    def asking(topic: TopicDefinition, regions: int | None) -> TopicDefinition:
        return alter(topic, {"min.insync.regions": None if regions is None else str(regions)}, regions=3)

    made_so = replace(plain, config=(("min.insync.regions", "2"),))
    assert not made_so.insync_raised
    assert asking(made_so, 2) == made_so
    raised = asking(made_so, 3)
    assert raised.insync_raised
    assert asking(raised, 2).insync_raised  # what was shown before the raise is still not told by two
    assert alter(raised, {"retention.ms": "5"}, regions=3).insync_raised
    assert TopicDefinition.from_json(raised.to_json()) == raised
    for regions in (1, None):
        assert not asking(raised, regions).insync_raised
    with pytest.raises(InvalidTopic, match="is unknown"):
        alter(plain, {"min.insync.regions.raised": "true"}, regions=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min.insync.regions", "0"),
        ("min.insync.regions", "65"),
        ("min.insync.regions", "two"),
        ("min.insync.regions", "-1"),
        ("max.geo.lag.ms", "1.5"),
        ("max.geo.lag.records", ""),
        ("failover", "automatic"),
        ("protect.k", "²"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidTopic, match=name.replace(".", r"\.")):
        TopicSpec(name="t").with_settings({name: value})


def test_more_regions_than_hold_the_topic_and_more_protection_than_is_waited_for_are_refused(
    plain: TopicDefinition,
) -> None:
    with pytest.raises(InvalidTopic, match="3 region"):
        alter(plain, {"min.insync.regions": "4"}, regions=3)
    with pytest.raises(InvalidTopic, match=r"protect\.k=2 is over"):
        alter(plain, {"protect.k": "2"}, regions=3)
    both = alter(plain, {"protect.k": "2", "min.insync.regions": "2"}, regions=3)
    with pytest.raises(InvalidTopic, match=r"protect\.k=2"):
        alter(both, {"min.insync.regions": "1"}, regions=3)


def test_a_topic_goes_on_to_be_altered_when_there_are_fewer_regions_than_it_asks_for(plain: TopicDefinition) -> None:
    topic = alter(plain, {"min.insync.regions": "3"}, regions=3)
    assert alter(topic, {"retention.ms": "5"}, regions=2).min_insync_regions == 3
    with pytest.raises(InvalidTopic):
        check_together(topic.config, regions=2)


def test_a_value_of_a_newer_version_is_read_within_our_bounds(plain: TopicDefinition) -> None:
    odd = replace(plain, config=(("failover", "never"), ("min.insync.regions", "999"), ("protect.k", "most")))
    assert (odd.min_insync_regions, odd.failover, odd.protect_k) == (64, FailoverPolicy.MANUAL, 0)


class Books:
    """What an orderer knows: one topic."""

    feature_level = 4
    own_brokers = None
    security: Any = None

    def __init__(self, topic: TopicDefinition) -> None:
        self.topic = topic

    def topic_by_name(self, name: str) -> TopicDefinition | None:
        return self.topic if name == self.topic.name else None


class Orders:
    """Orders of definitions in a mesh where some regions are older."""

    def __init__(self, topic: TopicDefinition, topology: Topology) -> None:
        self.older: list[str] = []
        self.books = Books(topic)
        self.orders = DefinitionOrders(
            books=self.books,
            topology=lambda: topology,
            commit=self.commit,
            ordered=lambda _: None,
            older_regions=lambda _level: self.older,
        )

    async def commit(self, command: Any) -> Done:
        self.books.topic = command.definition
        return Done(definition=command.definition)

    async def alter(self, **settings: str) -> TopicDefinition:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        await self.orders.alter({"name": self.books.topic.name, "settings": given, "partitions": 0, "defaults": []})
        return self.books.topic


@pytest.fixture
def orders(plain: TopicDefinition) -> Orders:
    regions = tuple(RegionInfo(number=RegionNumber(n), name=f"r{n}", brokers=(BrokerId(n * 1000 + 1),)) for n in (1, 2))
    topology = Topology(mesh_id="m", region=RegionNumber(1), definitions_home=RegionNumber(1), regions=regions)
    return Orders(plain, topology)


async def test_settings_about_regions_wait_until_every_region_understands_them(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(definition_orders, "LEVELS_WAIT_S", 0.2)
    orders.older = ["r2"]
    with pytest.raises(PolicyViolation, match=r"min\.insync\.regions.*r2"):
        await orders.alter(min_insync_regions="2")
    assert orders.books.topic.min_insync_regions == 1
    orders.older = []
    assert (await orders.alter(min_insync_regions="2")).min_insync_regions == 2


async def test_what_was_set_before_and_what_goes_back_to_its_default_asks_no_region(orders: Orders) -> None:
    await orders.alter(min_insync_regions="2")
    orders.older = ["r2"]
    assert (await orders.alter(retention_ms="1000")).retention_ms == 1000
    assert (await orders.alter(min_insync_regions="1")).min_insync_regions == 1


async def test_a_region_that_has_just_begun_to_say_what_it_understands_is_waited_for(orders: Orders) -> None:
    orders.older = ["r2"]
    asyncio.get_running_loop().call_later(0.05, orders.older.clear)
    assert (await orders.alter(failover="auto")).failover is FailoverPolicy.AUTO
