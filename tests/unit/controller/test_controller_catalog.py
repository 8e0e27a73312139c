"""Names of one region: plain and qualified."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from georelay.ids import RaftIndex, RegionNumber, StreamKey
from region.controller.catalog import TopicCatalog
from region.controller.commands import DefineTopic, FormRegion
from region.controller.state_core import ControllerState
from region.controller.topic import Homes

Make = Callable[..., Any]
ONE, EVERY = (1).to_bytes(16, "big"), (2).to_bytes(16, "big")


@pytest.fixture
def catalog(topology: Make, definition: Make) -> TopicCatalog:
    state = ControllerState()
    state.apply(FormRegion(topology=topology(2)), RaftIndex(1))
    state.apply(DefineTopic(definition=definition("one", topic_id=1, index=1)), RaftIndex(2))
    state.apply(DefineTopic(definition=definition("every", topic_id=2, homes=Homes.EVERY, index=2)), RaftIndex(3))
    return TopicCatalog(state)


def test_topic_with_every_home_has_a_name_per_region_and_a_plain_one(catalog: TopicCatalog) -> None:
    assert [view.name for view in catalog.topics()] == ["eu.every", "every", "one", "us.every"]


def test_plain_name_and_own_qualified_name_are_the_same_stream(catalog: TopicCatalog) -> None:
    own = StreamKey(EVERY, RegionNumber(2), 1)
    assert catalog.stream_key("every", 1) == catalog.stream_key("eu.every", 1) == own
    assert catalog.stream_key("us.every", 1) == StreamKey(EVERY, RegionNumber(1), 1)


def test_only_names_of_other_regions_are_mirror_names(catalog: TopicCatalog) -> None:
    assert [view.name for view in catalog.topics() if view.is_mirror_name] == ["us.every"]


def test_home_of_a_stream_is_its_origin_or_the_topics_home(catalog: TopicCatalog) -> None:
    assert catalog.home_of(StreamKey(ONE, RegionNumber(0), 0)) == 1
    assert catalog.home_of(StreamKey(EVERY, RegionNumber(2), 0)) == 2
    assert catalog.home_of(StreamKey(bytes(16), RegionNumber(2), 0)) is None


def test_partition_out_of_range_has_no_stream(catalog: TopicCatalog) -> None:
    assert catalog.stream_key("one", 2) is None
    assert catalog.stream_key("one", -1) is None
    assert catalog.stream_key("nobody", 0) is None


def test_wire_ids_tell_the_names_of_one_topic_apart(catalog: TopicCatalog) -> None:
    views = catalog.topics()
    assert len({view.wire_id for view in views}) == len(views)
    for view in views:
        assert catalog.topic_of_wire_id(view.wire_id) == view


def test_assignment_names_group_and_voters(catalog: TopicCatalog) -> None:
    assignment = catalog.assignment("every", 0)
    assert assignment is not None
    assert assignment.key.origin == 2
    assert len(assignment.voters) == 3


def test_catalog_follows_the_state(topology: Make, definition: Make) -> None:
    state = ControllerState()
    catalog = TopicCatalog(state)
    assert catalog.topics() == []
    state.apply(FormRegion(topology=topology(1)), RaftIndex(1))
    state.apply(DefineTopic(definition=definition("late")), RaftIndex(2))
    assert [view.name for view in catalog.topics()] == ["late"]


def test_a_place_is_found_once_while_nothing_changes(catalog: TopicCatalog) -> None:
    place = catalog.place("us.every", 1)
    assert place is not None and catalog.place("us.every", 1) is place
    assert (place.view.name, place.key, place.home) == ("us.every", StreamKey(EVERY, RegionNumber(1), 1), 1)
    group = catalog.assignment("us.every", 1)
    assert group is not None and place.group_id == group.group_id


def test_there_is_no_place_behind_the_last_partition_or_without_a_topic(catalog: TopicCatalog) -> None:
    assert [catalog.place(*asked) for asked in (("one", 2), ("one", -1), ("none", 0))] == [None] * 3


def test_a_place_that_was_asked_for_too_early_is_found_later(topology: Make, definition: Make) -> None:
    state = ControllerState()
    catalog = TopicCatalog(state)
    state.apply(FormRegion(topology=topology(2)), RaftIndex(1))
    assert catalog.place("late", 0) is None
    state.apply(DefineTopic(definition=definition("late", topic_id=3, index=1)), RaftIndex(2))
    assert catalog.place("late", 0) is not None
