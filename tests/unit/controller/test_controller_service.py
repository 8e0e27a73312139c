"""Controllers of two regions, joined by function calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from georelay.errors import (
    BadRequest,
    DataDirectoryError,
    HomeUnreachable,
    InvalidTopic,
    OutcomeUnknown,
    PolicyViolation,
    TopicExists,
    Unavailable,
    UnknownTopic,
)
from georelay.ids import RaftIndex
from region.controller import answers
from region.controller.topic import Homes, TopicDefaults, TopicSpec

Mesh = Any
US_LEADER, US_FOLLOWER, EU_LEADER, EU_FOLLOWER = 1001, 1002, 2001, 2002


@pytest.mark.parametrize("broker", [US_LEADER, US_FOLLOWER, EU_LEADER, EU_FOLLOWER])
async def test_topic_is_created_through_any_broker_of_the_mesh(mesh: Mesh, broker: int) -> None:
    view = await mesh.services[broker].create_topic(TopicSpec(name="orders", partitions=2))
    assert view == mesh.services[broker].catalog.topic("orders")
    assert view.home == broker // 1000  # the region that asked
    await mesh.until(lambda: all(service.catalog.topic("orders") for service in mesh.services.values()))
    assert len({service.catalog.topic("orders").topic_id for service in mesh.services.values()}) == 1


async def test_topic_is_deleted_everywhere_and_its_name_is_free(mesh: Mesh) -> None:
    await mesh.services[EU_FOLLOWER].create_topic(TopicSpec(name="orders"))
    await mesh.services[EU_FOLLOWER].delete_topic("orders")
    assert mesh.services[EU_FOLLOWER].catalog.topic("orders") is None
    again = await mesh.services[US_FOLLOWER].create_topic(TopicSpec(name="orders"))
    assert again.definition.index == 3


async def test_existing_name_is_refused_in_every_region(mesh: Mesh) -> None:
    await mesh.services[US_LEADER].create_topic(TopicSpec(name="orders"))
    with pytest.raises(TopicExists):
        await mesh.services[EU_FOLLOWER].create_topic(TopicSpec(name="orders"))


async def test_invalid_definition_is_refused_across_regions_with_its_reason(mesh: Mesh) -> None:
    with pytest.raises(InvalidTopic, match=r"use 1\.\.2"):
        await mesh.services[EU_FOLLOWER].create_topic(TopicSpec(name="orders", replication_factor=3))
    with pytest.raises(InvalidTopic, match="1000 characters"):
        await mesh.services[US_LEADER].create_topic(TopicSpec(name="x" * 2000))


async def test_creation_is_refused_while_the_definitions_home_is_unreachable(mesh: Mesh) -> None:
    mesh.cut = {1}
    with pytest.raises(HomeUnreachable):
        await mesh.services[EU_LEADER].create_topic(TopicSpec(name="orders"))
    assert mesh.services[US_LEADER].catalog.topic("orders") is None


async def test_region_that_was_cut_off_catches_up_after_the_heal(mesh: Mesh) -> None:
    mesh.cut = {2}
    for number in range(5):
        await mesh.services[US_LEADER].create_topic(TopicSpec(name=f"t{number}"))
    await mesh.services[US_LEADER].delete_topic("t3")
    assert mesh.services[EU_LEADER].catalog.topics() == []
    mesh.cut = set()
    await mesh.until(lambda: mesh.services[EU_FOLLOWER].state.definitions_index == 6)
    assert [view.name for view in mesh.services[EU_FOLLOWER].catalog.topics()] == ["t0", "t1", "t2", "t4"]


async def test_creation_whose_answer_was_lost_makes_one_topic(mesh: Mesh) -> None:
    mesh.lose_answers = 1
    view = await mesh.services[US_FOLLOWER].create_topic(TopicSpec(name="orders"))
    assert view.definition.index == 1
    assert mesh.services[US_LEADER].state.definitions_index == 1


async def test_deletion_whose_answer_was_lost_succeeds(mesh: Mesh) -> None:
    await mesh.services[US_FOLLOWER].create_topic(TopicSpec(name="orders"))
    mesh.lose_answers = 1
    await mesh.services[US_FOLLOWER].delete_topic("orders")
    assert mesh.services[US_FOLLOWER].catalog.topic("orders") is None


def name_of(mesh: Mesh, broker: int) -> object:
    return mesh.services[broker].catalog.topic("orders")


async def wish(mesh: Mesh, broker: int, kind: str) -> object:
    """Ask for one change of the topic `orders`."""
    service = mesh.services[broker]
    if kind == "delete":
        return await service.delete_topic("orders")
    if kind == "alter":
        return await service.alter_topic("orders", {"retention.ms": "60000"})
    if kind == "grow":
        return await service.add_partitions("orders", 3)
    return await service.create_topic(TopicSpec(name="more"))


@pytest.mark.parametrize("kind", ["delete", "alter", "grow", "create"])
@pytest.mark.parametrize("then", ["no leader", "home away"])
async def test_what_was_done_and_not_answered_is_never_called_not_done(mesh: Mesh, kind: str, then: str) -> None:
    await mesh.services[US_LEADER].create_topic(TopicSpec(name="orders"))
    asker = US_FOLLOWER if then == "no leader" else EU_LEADER
    await mesh.until(lambda: name_of(mesh, asker))
    before = mesh.services[US_LEADER].state.definitions_index

    def lost() -> None:
        """The region is gone right after it has done what was asked, with the answer on its way."""
        if then == "no leader":
            mesh.leaders[1] = 0
        else:
            mesh.cut = {1}

    mesh.lose_answers, mesh.lost = 1, lost
    with pytest.raises(OutcomeUnknown, match="it may be done"):
        await wish(mesh, asker, kind)
    assert mesh.services[US_LEADER].state.definitions_index == before + 1


@pytest.mark.parametrize("kind", ["delete", "alter", "grow", "create"])
async def test_what_is_done_while_the_broker_shuts_down_is_not_called_not_done(mesh: Mesh, kind: str) -> None:
    await mesh.services[US_LEADER].create_topic(TopicSpec(name="orders"))
    await mesh.until(lambda: name_of(mesh, EU_FOLLOWER))
    before = mesh.services[US_LEADER].state.definitions_index
    mesh.behind.add(EU_FOLLOWER)  # it does not get to know
    asking = asyncio.create_task(wish(mesh, EU_FOLLOWER, kind))
    await mesh.until(lambda: mesh.services[US_LEADER].state.definitions_index == before + 1)
    await mesh.until(lambda: mesh.services[EU_FOLLOWER]._waiting)
    await mesh.services[EU_FOLLOWER].close()
    with pytest.raises(OutcomeUnknown, match="may be done"):
        await asking


async def test_creation_waits_for_a_new_leader(mesh: Mesh) -> None:
    mesh.leaders[1] = 0
    creating = asyncio.create_task(mesh.services[US_FOLLOWER].create_topic(TopicSpec(name="orders")))
    await asyncio.sleep(0.02)
    assert not creating.done()
    mesh.leaders[1] = US_FOLLOWER
    assert (await creating).name == "orders"


async def test_without_a_leader_creation_gives_up_in_bounded_time(mesh: Mesh) -> None:
    mesh.leaders[1] = 0
    with pytest.raises(Unavailable, match="no controller leader"):
        await mesh.services[US_FOLLOWER].create_topic(TopicSpec(name="orders"))


async def test_unknown_topic_is_created_once_for_all_who_ask(mesh: Mesh) -> None:
    services = mesh.services.values()
    views = await asyncio.gather(*(service.ensure_topic("clicks") for service in services for _ in range(5)))
    assert {view.definition.index for view in views} == {1}
    assert views[0].partitions == 1 and views[0].replication_factor == 2


async def test_a_topic_whose_creator_names_no_numbers_gets_those_of_the_broker_that_is_asked(
    mesh_of: Callable[..., Any],
) -> None:
    mesh = await mesh_of(topic_defaults=TopicDefaults(partitions=4, replication_factor=1))
    await mesh.until(lambda: all(service.is_settled for service in mesh.services.values()))
    asked = mesh.services[US_FOLLOWER]
    used, made = await asked.ensure_topic("used"), await asked.create_topic(TopicSpec(name="made"))
    named = await asked.create_topic(TopicSpec(name="named", partitions=2, replication_factor=2))
    assert [(view.partitions, view.definition.replication_factor) for view in (used, made, named)] == [
        (4, 1),
        (4, 1),
        (2, 2),
    ]


async def test_wishes_for_one_topic_that_race_to_the_log_make_one_topic(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = mesh.services[US_LEADER]
    propose = leader._propose

    async def propose_later(command: bytes) -> RaftIndex:
        await asyncio.sleep(0.01)  # every wish is judged before the first of them is in the log
        index: RaftIndex = await propose(command)
        return index

    monkeypatch.setattr(leader, "_propose", propose_later)
    asked = list(mesh.services.values())
    views = await asyncio.gather(*(service.ensure_topic("clicks") for service in asked))
    assert len({view.topic_id for view in views}) == 1


async def test_mirror_names_are_never_created(mesh: Mesh) -> None:
    with pytest.raises(UnknownTopic):
        await mesh.services[US_LEADER].ensure_topic("eu.orders")


async def test_qualified_name_is_not_deleted(mesh: Mesh) -> None:
    await mesh.services[US_LEADER].create_topic(TopicSpec(name="orders", homes=Homes.EVERY))
    with pytest.raises(PolicyViolation, match="plain name"):
        await mesh.services[US_LEADER].delete_topic("eu.orders")
    with pytest.raises(UnknownTopic):
        await mesh.services[EU_FOLLOWER].delete_topic("nothing")


async def test_producer_ids_of_the_whole_mesh_are_unique(mesh: Mesh) -> None:
    allocated = await asyncio.gather(
        *(service.allocate_producer_id() for service in mesh.services.values() for _ in range(10))
    )
    assert len(set(allocated)) == 40
    assert {identity >> 48 for identity in allocated} == {1, 2}


async def test_hint_brings_a_definition_before_the_next_pull(mesh: Mesh) -> None:
    await mesh.services[US_LEADER].create_topic(TopicSpec(name="orders"))
    await mesh.until(lambda: (2, "definitions.hint") in mesh.calls)


async def test_calls_are_not_forwarded_for_ever(mesh: Mesh) -> None:
    answer = await mesh.services[US_FOLLOWER].handle(
        "definitions.create", {"hops": 2, "spec": TopicSpec(name="x").to_json(), "topic_id": "00" * 16}
    )
    assert answer["error"]["code"] == "NOT_LEADER"


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("definitions.melt", {}),
        ("definitions.create", {}),
        ("definitions.create", {"hops": "many"}),
        ("definitions.since", {"since": -1}),
        ("controller.allocate_producer_ids", {"broker": 1001, "count": 10**9}),
        ("controller.register_broker", {"registration": []}),
    ],
)
async def test_garbage_in_a_call_is_a_bad_request(mesh: Mesh, method: str, body: dict[str, object]) -> None:
    answer = await mesh.services[US_LEADER].handle(method, body)
    with pytest.raises(BadRequest):
        answers.result_of(answer)


async def test_broker_on_a_foreign_disk_is_stopped(mesh: Mesh) -> None:
    stranger = mesh.add(1, US_FOLLOWER, disk="another")
    with pytest.raises(DataDirectoryError, match="own data directory"):
        async with asyncio.timeout(2):
            await stranger.run()


async def test_only_the_definitions_home_orders(mesh: Mesh) -> None:
    answer = await mesh.services[EU_LEADER].handle(
        "definitions.create", {"spec": TopicSpec(name="x").to_json(), "topic_id": "00" * 16}
    )
    with pytest.raises(PolicyViolation, match="not the definitions home"):
        answers.result_of(answer)


@pytest.mark.parametrize(
    "answer", [{}, {"ok": 3}, {"error": {}}, {"error": {"code": "FROM_THE_FUTURE", "text": "?"}}], ids=str
)
def test_of_an_unreadable_answer_nobody_knows_what_was_done(answer: dict[str, object]) -> None:
    with pytest.raises(OutcomeUnknown):
        answers.result_of(answer)
