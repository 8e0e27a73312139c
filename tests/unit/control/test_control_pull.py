"""A region pulls everything that control ordered, in order, and holds the same afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import BadRequest, Unavailable
from georelay.fields import Fields
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.home.home_row import HomeRow
from region.controller import mesh_pull
from region.controller.catalog import TopicCatalog
from region.controller.commands import Command, DefineHome, DefineTopic, DropTopic, decode, encode
from region.controller.effects import Done, HomeChanged
from region.controller.home_book import HomeBook, HomePosition, position_of
from region.controller.mesh_rows import RegionState
from region.controller.mesh_rules import with_regions
from region.controller.state_core import ControllerState
from region.controller.topic import Homes, Tombstone

Make = Callable[..., Any]


def home_row(topic: int, partition: int, *, index: int, home: int = 2) -> HomeRow:
    return HomeRow(
        topic_id=topic.to_bytes(16, "big"),
        partition=partition,
        home=RegionNumber(home),
        epoch=Epoch(2),
        start=Offset(10),
        digest=bytes(16),
        table=((Epoch(1), Offset(0)), (Epoch(2), Offset(10))),
        homes=((Epoch(1), RegionNumber(1)), (Epoch(2), RegionNumber(home))),
        regions=tuple(RegionNumber(number) for number in sorted({1, 2, 3, home})),
        last_epoch=Epoch(2),
        moving=None,
        index=index,
    )


class Books:
    """Control's lists: its parts, and homes of its own."""

    def __init__(self, control: Any) -> None:
        self.control = control
        self.homes = HomeBook()

    @property
    def security(self) -> Any:
        return self.control.definitions.security

    @property
    def forgotten_to(self) -> Any:
        return self.control.definitions.forgotten_to

    def topic_by_id(self, topic_id: bytes) -> Any:
        return self.control.definitions.topic_by_id(topic_id)

    def definitions_since(self, index: int, *, limit: int) -> Any:
        return self.control.definitions.definitions_since(index, limit=limit)

    def homes_since(self, position: HomePosition, *, limit: int) -> list[HomeRow]:
        return self.homes.since(position, limit=limit)

    def regions_since(self, index: int) -> Any:
        return self.control.regions.regions_since(index)

    def control_since(self, index: int) -> Any:
        row = self.control.state.row()
        return row if row.index > index else None


async def pull(region: Any, books: Books) -> bool:
    answer = mesh_pull.give(books, Fields(mesh_pull.question(region.state), "pull"))

    async def commit(command: Command) -> Done:
        outcome = region.apply(decode(encode(command)))
        assert isinstance(outcome, Done), outcome
        return outcome

    return await mesh_pull.take(answer, region.state, commit)


async def test_a_region_learns_regions_topics_and_who_control_is(control: Any, make_region: Make) -> None:
    region = make_region(2)
    assert not await pull(region, Books(control))
    assert region.state.topic_by_name("before") == control.definitions.topic_by_name("before")
    assert region.state.mesh.control == control.state.row()
    assert set(region.state.mesh.regions) == {1, 2, 3}
    assert region.state.mesh.has_ceded


async def test_a_second_pull_brings_nothing(control: Any, make_region: Make) -> None:
    region, books = make_region(2), Books(control)
    await pull(region, books)
    before = region.index
    await pull(region, books)
    assert region.index == before


async def test_a_region_that_joined_gets_streams_for_topics_that_every_region_is_home_of(
    control: Any, make_region: Make, make_topic: Make
) -> None:
    control.define(DefineTopic(definition=make_topic("every", 5, homes=Homes.EVERY)))
    region, books = make_region(2), Books(control)
    await pull(region, books)
    control.append("regions", {"do": "add", "number": 4, "name": "sa", "seeds": [], "witness": False})
    control.append("regions", {"do": "add", "number": 5, "name": "quorum", "seeds": [], "witness": True})
    await pull(region, books)
    every = (5).to_bytes(16, "big")
    assert region.state.assignment(StreamKey(every, RegionNumber(4), 0)) is not None
    assert region.state.assignment(StreamKey(every, RegionNumber(5), 0)) is None  # a witness is no origin
    assert TopicCatalog(region.state).topic("sa.every") is not None
    control.append("regions", {"do": "drain", "number": 4})
    control.append("regions", {"do": "remove", "number": 4})
    await pull(region, books)
    assert region.state.assignment(StreamKey(every, RegionNumber(4), 0)) is not None  # still read
    assert [info.number for info in region.state.topology.data_regions] == [1, 2, 3]


async def test_a_thousand_homes_of_one_command_come_in_several_pulls_and_are_all_there(
    control: Any, make_region: Make
) -> None:
    region, books = make_region(2), Books(control)
    rows = [home_row(topic, partition, index=50) for topic in range(1, 701) for partition in (0, 1)]
    for row in rows:
        books.homes.remember(row)
    pulls = 1
    while await pull(region, books):
        pulls += 1
    assert pulls > 1
    assert list(region.state.homes.rows()) == rows
    assert region.state.homes.position == position_of(rows[-1])


async def test_the_home_of_a_stream_is_what_control_says(control: Any, make_region: Make) -> None:
    region, books = make_region(2), Books(control)
    await pull(region, books)
    key = StreamKey((1).to_bytes(16, "big"), RegionNumber(0), 1)
    catalog = TopicCatalog(region.state)
    assert catalog.home_of(key) == 1
    (name,) = [view.name for view in catalog.topics() if view.topic_id == key.topic_id]
    before = catalog.place(name, 1)
    assert before is not None and before.home == 1
    books.homes.remember(home_row(1, 1, index=60))
    epoch = region.state.metadata_epoch
    await pull(region, books)
    after = catalog.place(name, 1)
    assert after is not None and catalog.home_of(key) == after.home == 2
    assert region.state.home_row(key).index == 60
    assert region.state.metadata_epoch > epoch


async def test_a_home_says_so_once_and_older_rows_change_nothing(control: Any, make_region: Make) -> None:
    region = make_region(2)
    effects = region.state.apply(DefineHome(rows=(home_row(1, 0, index=60),)), region.index + 1)
    assert HomeChanged(key=StreamKey((1).to_bytes(16, "big"), RegionNumber(0), 0)) in effects
    again = DefineHome(rows=(home_row(1, 0, index=60), home_row(1, 0, index=59, home=3)))
    assert region.state.apply(again, region.index + 2) == []
    assert region.state.homes.find((1).to_bytes(16, "big"), 0).home == 2


async def test_homes_of_a_deleted_topic_are_forgotten_and_late_rows_passed_over(
    control: Any, make_region: Make
) -> None:
    region, books = make_region(2), Books(control)
    books.homes.remember(home_row(1, 0, index=60))
    await pull(region, books)
    control.define(DropTopic(tombstone=Tombstone(name="before", topic_id=(1).to_bytes(16, "big"), index=0)))
    books.homes.remember(home_row(1, 1, index=61))
    await pull(region, books)
    assert len(region.state.homes) == 0
    assert region.state.homes.index == 61


async def test_homes_are_in_the_snapshot(control: Any, make_region: Make) -> None:
    region, books = make_region(2), Books(control)
    books.homes.remember(home_row(1, 0, index=60))
    await pull(region, books)
    again = ControllerState.from_snapshot(region.state.to_snapshot())
    assert again.to_snapshot() == region.state.to_snapshot()
    assert again.homes.position == region.state.homes.position
    assert again.mesh.regions == region.state.mesh.regions


async def test_rows_out_of_order_are_not_taken(control: Any, make_region: Make) -> None:
    region = make_region(2)
    answer = mesh_pull.give(Books(control), Fields(mesh_pull.question(region.state), "pull"))
    answer["homes"] = [home_row(1, 1, index=60).to_json(), home_row(1, 0, index=60).to_json()]

    async def commit(command: Command) -> Done:
        region.apply(command)
        return Done()

    with pytest.raises(BadRequest, match="not in order"):
        await mesh_pull.take(answer, region.state, commit)
    assert len(region.state.homes) == 0


# --- homes and regions at once ------------------------------------------------------------------------


def let_region_three_go(control: Any, books: Books, *, topics: int) -> None:
    """Move all homes from region 3 to region 4, which joins; region 3 leaves."""
    control.append("regions", {"do": "add", "number": 4, "name": "sa", "seeds": [], "witness": False})
    for topic in range(1, topics + 1):
        books.homes.remember(home_row(topic, 0, index=100, home=4))
    control.append("regions", {"do": "drain", "number": 3})
    assert "region" in control.append("regions", {"do": "remove", "number": 3})


def homes_are_somewhere(region: Any, keys: list[StreamKey]) -> bool:
    regions = {info.number for info in region.state.topology.data_regions}
    catalog = TopicCatalog(region.state)
    return all((home := catalog.home_of(key)) is None or home in regions for key in keys)


@pytest.mark.parametrize("topics", [1, 1_500])
async def test_no_home_is_ever_in_a_region_that_is_unknown_or_has_left(
    control: Any, make_region: Make, topics: int
) -> None:
    region, books = make_region(2), Books(control)
    for topic in range(1, topics + 1):
        books.homes.remember(home_row(topic, 0, index=60, home=3))
    while await pull(region, books):
        pass
    keys = [StreamKey(topic.to_bytes(16, "big"), RegionNumber(0), 0) for topic in (1, topics)]
    let_region_three_go(control, books, topics=topics)
    wrong = 0

    async def commit(command: Command) -> Done:
        nonlocal wrong
        region.apply(decode(encode(command)))
        wrong += not homes_are_somewhere(region, keys)
        return Done()

    pulls, has_more = 0, True
    while has_more:
        answer = mesh_pull.give(books, Fields(mesh_pull.question(region.state), "pull"))
        has_more = await mesh_pull.take(answer, region.state, commit)
        pulls += 1
    assert wrong == 0
    assert region.state.mesh.regions[3].state is RegionState.REMOVED
    assert set(region.state.mesh.regions) == {1, 2, 3, 4}
    assert region.state.homes.find((1).to_bytes(16, "big"), 0).home == 4
    assert (pulls > 1) is (topics > 1_000)


@pytest.mark.parametrize("commits", [0, 1, 2, 3])
async def test_a_pull_that_ends_in_the_middle_is_made_up_for_by_the_next_one(
    control: Any, make_region: Make, commits: int
) -> None:
    region, books = make_region(2), Books(control)
    books.homes.remember(home_row(1, 0, index=60, home=3))
    await pull(region, books)
    let_region_three_go(control, books, topics=1)
    left = commits

    async def commit(command: Command) -> Done:
        nonlocal left
        if not left:
            raise Unavailable("the controller of this region has no leader")
        left -= 1
        region.apply(decode(encode(command)))
        return Done()

    answer = mesh_pull.give(books, Fields(mesh_pull.question(region.state), "pull"))
    if commits < 3:  # regions that stay, homes, the region that left
        with pytest.raises(Unavailable):
            await mesh_pull.take(answer, region.state, commit)
    else:
        await mesh_pull.take(answer, region.state, commit)
    assert not await pull(region, books)
    assert region.state.mesh.regions[3].state is RegionState.REMOVED
    assert region.state.mesh.regions[4].name == "sa"
    assert region.state.mesh.control == control.state.row()
    assert region.state.homes.find((1).to_bytes(16, "big"), 0).home == 4


def test_a_region_of_an_earlier_level_asks_for_what_it_can_take(make_region: Make) -> None:
    state = ControllerState()
    assert set(mesh_pull.question(state)) == {"since"}
    assert set(mesh_pull.question(make_region(2).state)) == {"since", "security_since", "mesh_since"}


def test_own_brokers_are_the_regions_own_word(control: Any, make_region: Make) -> None:
    region = make_region(2)
    rows = [replace(row, brokers=()) for row in control.regions.rows()]
    assert with_regions(region.state.topology, rows).own.brokers == (2001,)
