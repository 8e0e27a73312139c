"""Brokers come and go, replicas move and are reported, levels rise: through services, from any broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from georelay.errors import (
    BadRequest,
    Busy,
    DataDirectoryError,
    InvalidTopic,
    PolicyViolation,
    Unavailable,
    UnknownTopic,
)
from georelay.ids import BrokerId, GroupId, RaftIndex
from region.controller.barrier import Barrier
from region.controller.brokers import BrokerState
from region.controller.commands import RaiseFeatureLevel
from region.controller.founding import answer_of
from region.controller.hints import BackgroundTasks
from region.controller.topic import TopicSpec

Mesh = Any
LEADER, FOLLOWER, THIRD = 1001, 1002, 1003
EU_FOLLOWER = 2002


def run(mesh: Mesh, service: Any) -> asyncio.Task[None]:
    task: asyncio.Task[None] = asyncio.ensure_future(service.run())
    mesh._tasks.append(task)
    return task


def catch_up(mesh: Mesh, broker: int) -> None:
    """Give a broker that was behind the state of the others, as a snapshot does."""
    mesh.behind.discard(broker)
    mesh.services[broker].restore(mesh.services[LEADER].snapshot())


def leads(mesh: Mesh) -> Any:
    return mesh.services[LEADER]


async def join(mesh: Mesh, **changes: Any) -> Any:
    mesh.behind.add(THIRD)
    service = mesh.add(1, THIRD, **changes)
    run(mesh, service)
    return service


async def test_region_is_raised_to_level_2_when_every_broker_can(mesh: Mesh) -> None:
    assert {service.feature_level for service in mesh.services.values()} == {2}
    assert leads(mesh).state.brokers[BrokerId(FOLLOWER)].peers == "127.0.0.1:1002"


async def test_broker_of_the_first_version_keeps_the_region_at_level_1(mesh_of: Callable[..., Any]) -> None:
    mesh = await mesh_of(levels={FOLLOWER: 1})
    await mesh.until(lambda: all(service.is_settled for service in mesh.services.values()))
    await asyncio.sleep(0.1)
    assert leads(mesh).feature_level == 1
    assert all(row.feature_level_max == 1 and not row.peers for row in leads(mesh).state.brokers.values())
    with pytest.raises(PolicyViolation, match="upgrade them"):
        await mesh.services[FOLLOWER].add_broker(THIRD)


async def test_region_is_raised_to_what_all_of_its_brokers_read_and_no_further(mesh_of: Callable[..., Any]) -> None:
    mesh = await mesh_of(levels={LEADER: 3, FOLLOWER: 2})
    await mesh.until(lambda: all(service.is_settled for service in mesh.services.values()))
    await mesh.until(lambda: leads(mesh).feature_level == 2)
    await asyncio.sleep(0.1)
    assert leads(mesh).feature_level == 2
    await mesh.services[FOLLOWER].add_broker(THIRD, "127.0.0.1:1003")  # brokers come and go meanwhile
    assert BrokerId(THIRD) in leads(mesh).state.records


async def test_broker_of_version_2_that_is_upgraded_raises_the_region(mesh_of: Callable[..., Any]) -> None:
    mesh = await mesh_of(levels={LEADER: 3, FOLLOWER: 2})
    await mesh.until(lambda: leads(mesh).feature_level == 2)
    await mesh.until(lambda: all(service.is_settled for service in mesh.services.values()))
    old = mesh.services[FOLLOWER]
    mesh.behind.add(FOLLOWER)
    upgraded = mesh.add(1, FOLLOWER, level=3)
    upgraded.restore(old.snapshot())
    mesh.behind.discard(FOLLOWER)
    run(mesh, upgraded)
    await mesh.until(lambda: leads(mesh).feature_level == 3)
    await mesh.until(lambda: upgraded.is_settled)


async def test_absent_brokers_are_followed_while_the_region_waits_for_level_3(mesh_of: Callable[..., Any]) -> None:
    mesh = await mesh_of(levels={LEADER: 3, FOLLOWER: 2}, replace_absent_after_s=0.1)
    await mesh.until(lambda: leads(mesh).feature_level == 2)
    await mesh.services[LEADER].add_broker(THIRD, "127.0.0.1:1003")
    third = mesh.add(1, THIRD, level=2)
    third.restore(leads(mesh).snapshot())
    run(mesh, third)
    await mesh.until(lambda: BrokerId(THIRD) in leads(mesh).state.brokers)
    mesh.dead = {THIRD}
    await mesh.until(lambda: leads(mesh).state.records[BrokerId(THIRD)].state is BrokerState.ABSENT)
    assert leads(mesh).feature_level == 2


async def test_broker_that_is_away_for_long_does_not_keep_the_level_down(mesh_of: Callable[..., Any]) -> None:
    mesh = await mesh_of(levels={FOLLOWER: 1}, replace_absent_after_s=0.1)
    await mesh.until(lambda: all(service.is_settled for service in mesh.services.values()))
    mesh.dead = {FOLLOWER}
    await mesh.until(lambda: leads(mesh).feature_level == 2)


async def test_disk_that_was_lost_at_level_1_keeps_neither_the_level_down_nor_its_broker_out(
    mesh_of: Callable[..., Any],
) -> None:
    mesh = await mesh_of(levels={FOLLOWER: 1})
    await mesh.until(lambda: all(service.is_settled for service in mesh.services.values()))
    mesh.behind.add(FOLLOWER)
    mesh.dead = {FOLLOWER}
    run(mesh, mesh.add(1, FOLLOWER, disk="blank", disk_claim_s=5.0))
    await mesh.until(lambda: leads(mesh).state.disk_of(BrokerId(FOLLOWER)) == "blank-1002")
    assert leads(mesh).state.generation_of(BrokerId(FOLLOWER)) == 2


async def test_who_lost_its_disk_at_level_1_waits_for_the_upgrade_of_the_others_and_goes_on_asking(
    mesh_of: Callable[..., Any],
) -> None:
    mesh = await mesh_of(levels={LEADER: 1, FOLLOWER: 1})
    await mesh.until(lambda: all(service.is_settled for service in mesh.services.values()))
    mesh.behind.add(FOLLOWER)
    mesh.dead = {FOLLOWER}
    stranger = mesh.add(1, FOLLOWER, disk="blank", disk_claim_s=0.0)
    for _ in range(3):
        with pytest.raises(PolicyViolation, match="feature level 2"):
            await stranger._registrar.announce()
        assert await stranger._settle()  # said in the log; its process does not end
    assert leads(mesh)._registrar.levels[BrokerId(FOLLOWER)] == 2
    await leads(mesh)._commit(RaiseFeatureLevel(level=2))
    await stranger._registrar.announce()
    assert leads(mesh).state.disk_of(BrokerId(FOLLOWER)) == "blank-1002"


async def test_stranger_is_not_let_in_and_told_what_to_do(mesh: Mesh) -> None:
    service = await join(mesh)
    before = leads(mesh).state.applied_index
    for _ in range(3):
        with pytest.raises(PolicyViolation, match="georelay broker add 3"):
            await service._registrar.announce()
    assert leads(mesh).state.applied_index == before  # who is not let in does not fill the log


async def test_broker_joins_by_itself_where_that_is_allowed(mesh_of: Callable[..., Any]) -> None:
    mesh = await mesh_of(auto_join=True)
    await mesh.until(lambda: leads(mesh).feature_level == 2)
    await join(mesh)
    await mesh.until(lambda: BrokerId(THIRD) in leads(mesh).state.brokers)


async def test_added_broker_with_an_empty_log_registers_through_any_other_and_learns_where_they_listen(
    mesh: Mesh,
) -> None:
    await mesh.services[FOLLOWER].add_broker(THIRD, "127.0.0.1:1003")
    service = await join(mesh)
    await mesh.until(lambda: BrokerId(THIRD) in leads(mesh).state.brokers)
    await mesh.until(lambda: THIRD in mesh.learned)
    assert mesh.learned[THIRD][BrokerId(LEADER)] == "127.0.0.1:1001"
    control = leads(mesh).state.control
    assert control is not None and THIRD in control.wanted
    catch_up(mesh, THIRD)
    await mesh.until(lambda: service.is_settled)


async def test_replicas_spread_to_a_new_broker_as_reports_come_in(mesh: Mesh) -> None:
    await leads(mesh).create_topic(TopicSpec(name="orders", partitions=4))
    assert leads(mesh).catalog.topic("orders").replication_factor == 2
    await leads(mesh).add_broker(THIRD)
    await join(mesh)

    def report_all() -> bool:
        state = leads(mesh).state
        for group in list(state.assignments()):
            if not group.is_settled:
                mesh._tasks.append(
                    asyncio.ensure_future(
                        mesh.services[FOLLOWER].report_replicas(group.group_id, group.target, (), group.generation, 1)
                    )
                )
        return all(group.is_settled and len(group.voters) == 3 for group in state.assignments())

    await mesh.until(report_all)
    assert leads(mesh).catalog.topic("orders").replication_factor == 3
    rows = {row["id"]: row for row in leads(mesh).brokers_status()}
    assert rows[THIRD]["replicas"] == 4 and rows[THIRD]["state"] == "active" and rows[THIRD]["moving"] == 0


async def test_report_under_an_older_wish_is_refused(mesh: Mesh) -> None:
    await leads(mesh).create_topic(TopicSpec(name="orders"))
    with pytest.raises(Busy):
        await mesh.services[FOLLOWER].report_replicas(GroupId(1), (BrokerId(LEADER),), (), 1, 1)


async def test_broker_that_is_silent_for_long_is_absent_until_it_is_heard(mesh_of: Callable[..., Any]) -> None:
    mesh = await mesh_of(replace_absent_after_s=0.1)
    await mesh.until(lambda: leads(mesh).feature_level == 2)

    def life() -> BrokerState:
        state: BrokerState = leads(mesh).state.records[BrokerId(FOLLOWER)].state
        return state

    mesh.dead = {FOLLOWER}
    await mesh.until(lambda: life() is BrokerState.ABSENT)
    mesh.dead = set()
    await mesh.until(lambda: life() is BrokerState.ACTIVE)


async def test_new_disk_is_taken_only_while_the_old_one_is_not_heard(mesh: Mesh) -> None:
    stranger = mesh.add(1, FOLLOWER, disk="blank", disk_claim_s=5.0)
    mesh.behind.add(FOLLOWER)
    task = run(mesh, stranger)
    await asyncio.sleep(0.05)
    assert leads(mesh).state.generation_of(BrokerId(FOLLOWER)) == 1 and not task.done()
    mesh.dead = {FOLLOWER}
    await mesh.until(lambda: leads(mesh).state.generation_of(BrokerId(FOLLOWER)) == 2)
    assert leads(mesh).state.disk_of(BrokerId(FOLLOWER)) == "blank-1002"


async def test_leader_never_gives_its_own_id_away(mesh: Mesh) -> None:
    mesh.dead = {LEADER}
    registration = mesh.services[LEADER]._registration
    body = {"registration": {**registration.at_level(1).to_json(), "disk_uuid": "other"}}
    with pytest.raises(DataDirectoryError, match="alive"):
        await leads(mesh)._registrar.serve(body)


async def test_wishes_through_a_follower_reach_the_leader(mesh: Mesh) -> None:
    follower = mesh.services[FOLLOWER]
    await follower.create_topic(TopicSpec(name="orders"))
    await follower.reassign("orders", 0, [FOLLOWER])
    (row,) = follower.assignments_status("orders")
    assert row["target"] == [FOLLOWER] and row["pinned"] and not row["settled"]
    await follower.reassign("orders", 0, [])
    await mesh.until(lambda: not follower.assignments_status()[0]["pinned"])
    await follower.drain_broker(LEADER)
    assert follower.brokers_status()[0]["state"] == "draining"
    await follower.add_broker(LEADER)
    assert follower.brokers_status()[0]["state"] == "active"


@pytest.mark.parametrize("broker", [2001, 1000, 0, 99_999_999])
async def test_broker_of_another_region_is_a_bad_request(mesh: Mesh, broker: int) -> None:
    for wish in (leads(mesh).add_broker, leads(mesh).drain_broker, leads(mesh).remove_broker):
        with pytest.raises(BadRequest):
            await wish(broker)


async def test_absent_broker_that_is_heard_again_is_not_removed(mesh_of: Callable[..., Any]) -> None:
    mesh = await mesh_of(replace_absent_after_s=0.05, pull_interval_s=0.02)
    await mesh.until(lambda: leads(mesh).feature_level == 2)
    mesh.dead = {FOLLOWER}
    record = leads(mesh).state.records
    await mesh.until(lambda: record[BrokerId(FOLLOWER)].state is BrokerState.ABSENT)
    mesh.dead = set()
    with pytest.raises(PolicyViolation):
        await leads(mesh).remove_broker(FOLLOWER)


async def test_unknown_partition_is_not_reassigned(mesh: Mesh) -> None:
    with pytest.raises(UnknownTopic):
        await leads(mesh).reassign("nothing", 0, [LEADER])
    with pytest.raises(UnknownTopic):
        leads(mesh).assignments_status("nothing")


async def test_topic_is_altered_through_any_broker_of_the_mesh_and_everywhere(mesh: Mesh) -> None:
    await leads(mesh).create_topic(TopicSpec(name="orders", partitions=2))
    view = await mesh.services[EU_FOLLOWER].alter_topic("orders", {"retention.ms": "60000", "segment.bytes": "65536"})
    assert (view.definition.retention_ms, view.definition.segment_bytes) == (60_000, 65_536)
    again = await mesh.services[EU_FOLLOWER].alter_topic("orders", {"retention.ms": "60000"})
    assert again.definition.index == view.definition.index  # the same wish twice changes it once
    back = await leads(mesh).alter_topic("orders", {"retention.ms": None})
    assert back.definition.retention_ms == -1 and back.definition.segment_bytes == 65_536
    await mesh.until(
        lambda: all(s.catalog.topic("orders").definition == back.definition for s in mesh.services.values())
    )


async def test_partitions_are_added_in_every_region(mesh: Mesh) -> None:
    await leads(mesh).create_topic(TopicSpec(name="orders", partitions=2))
    await mesh.services[EU_FOLLOWER].add_partitions("orders", 5)
    await mesh.until(lambda: all(s.catalog.assignment("orders", 4) is not None for s in mesh.services.values()))
    with pytest.raises(InvalidTopic, match="only grow"):
        await leads(mesh).add_partitions("orders", 3)


async def test_alteration_whose_answer_was_lost_is_made_once(mesh: Mesh) -> None:
    await leads(mesh).create_topic(TopicSpec(name="orders"))
    mesh.lose_answers = 1
    view = await mesh.services[FOLLOWER].alter_topic("orders", {"retention.ms": "5"})
    assert view.definition.index == 2


@pytest.mark.parametrize(("name", "error"), [("nothing", UnknownTopic), ("eu.orders", PolicyViolation)])
async def test_what_is_no_topic_is_not_altered(mesh: Mesh, name: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        await leads(mesh).alter_topic(name, {"retention.ms": "5"})


async def test_barrier_waits_until_everything_committed_before_is_applied_here(mesh: Mesh) -> None:
    follower = mesh.services[FOLLOWER]
    before = leads(mesh).state.applied_index
    assert await follower.barrier() >= before
    mesh.leaders[1] = 0
    with pytest.raises(Unavailable):
        await follower.barrier()


async def test_barrier_that_is_not_reached_in_time_is_unavailable(mesh: Mesh) -> None:
    follower = mesh.services[FOLLOWER]
    mesh.services = {broker: service for broker, service in mesh.services.items() if broker != FOLLOWER}
    await leads(mesh).create_topic(TopicSpec(name="orders"))
    with pytest.raises(Unavailable, match="ask again"):
        await follower.barrier()


async def test_barriers_asked_for_during_a_round_share_the_next_one() -> None:
    asked: list[asyncio.Future[RaftIndex]] = []

    async def ask() -> RaftIndex:
        asked.append(asyncio.get_running_loop().create_future())
        return await asked[-1]

    barrier = Barrier(ask, BackgroundTasks())
    first = asyncio.ensure_future(barrier.wait())
    await asyncio.sleep(0.01)
    later = [asyncio.ensure_future(barrier.wait()) for _ in range(10)]
    await asyncio.sleep(0.01)
    assert len(asked) == 1
    asked[0].set_result(RaftIndex(1))
    await asyncio.sleep(0.01)
    assert await first == 1 and len(asked) == 2
    assert not any(waiter.done() for waiter in later)  # an answer from before they asked would prove nothing
    asked[1].set_result(RaftIndex(2))
    assert await asyncio.gather(*later) == [2] * 10


async def test_founding_is_answered_by_any_broker_that_was_told_how(mesh: Mesh) -> None:
    service = mesh.services[FOLLOWER]
    assert "error" in await service.handle("controller.founding", {})
    service.answer_founding = lambda _: answer_of(broker=BrokerId(FOLLOWER), disk="d", record=None, is_formed=True)
    answer = await service.handle("controller.founding", {"hops": 0})
    assert answer["ok"]["standing"] == "formed"


async def test_restored_service_answers_those_who_wait_for_what_came_with_the_snapshot(mesh: Mesh) -> None:
    follower = mesh.services[FOLLOWER]
    mesh.behind.add(FOLLOWER)
    creating = asyncio.ensure_future(leads(mesh).create_topic(TopicSpec(name="orders")))
    await creating
    waiting = asyncio.ensure_future(follower._await_index(1))
    await asyncio.sleep(0)
    effects = follower.restore(leads(mesh).snapshot())
    await waiting
    assert follower.catalog.topic("orders") is not None
    assert any(type(effect).__name__ == "ReplicasWanted" and effect.group_id == 1 for effect in effects)


async def test_lost_replica_is_reported_through_the_leader_only_while_the_others_are_there(mesh: Mesh) -> None:
    await leads(mesh).add_broker(THIRD)
    await join(mesh)
    await mesh.until(lambda: BrokerId(THIRD) in leads(mesh).state.brokers)
    await leads(mesh).create_topic(TopicSpec(name="orders", partitions=1))
    group = GroupId(1)
    generation = leads(mesh).state.group(group).generation
    assert len(leads(mesh).state.group(group).voters) == 3
    mesh.dead = {THIRD}
    with pytest.raises(Busy, match="not there"):
        await mesh.services[FOLLOWER].replica_lost(group, generation)
    mesh.dead = set()
    await mesh.services[FOLLOWER].replica_lost(group, generation)
    assert leads(mesh).state.group(group).unsafe == {BrokerId(FOLLOWER)}
    await mesh.services[FOLLOWER].replica_lost(group, generation)  # the answer was lost
    with pytest.raises(PolicyViolation):
        await leads(mesh).replica_lost(group, leads(mesh).state.group(group).generation)
