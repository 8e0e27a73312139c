"""Replicas that are gone: with a disk that was lost, or let go because others have them now."""

from __future__ import annotations

import asyncio
from typing import Any

from georelay.ids import GroupId
from region.multiraft.replica_keeper_core import ReplicaTarget
from region.multiraft.replicas import ReplicaKeeper
from tests.conditions import until

GROUP = GroupId(1)


async def test_an_empty_disk_that_a_leader_still_takes_for_the_former_one_waits_until_it_is_added(
    memory_region: Any,
) -> None:
    brokers = await memory_region.add(3)
    voters = tuple(broker.me for broker in brokers)
    for broker in brokers:
        await broker.open(GROUP, voters)
    leader = await until(lambda: memory_region.leader(GROUP))
    leader.publish(GROUP, b"before")
    await until(lambda: all(broker.machines[GROUP].committed == [b"before"] for broker in brokers))
    lost = next(broker for broker in brokers if broker is not leader)
    await lost.host.close_group(GROUP)
    lost.directory.remove_group(GROUP)
    group = await lost.open(GROUP, ())
    leader.publish(GROUP, b"meanwhile")  # its beats count on what the former disk held
    await until(lambda: group.node.leader_id == leader.me)
    await asyncio.sleep(0.1)
    assert not group.stopped
    rest = tuple(broker.me for broker in brokers if broker is not lost)
    targets = {GROUP: ReplicaTarget(voters=rest, unsafe=frozenset({lost.me}), generation=1)}

    async def told(*_: object) -> None:
        return None

    async def barrier() -> None:
        return None

    keepers = [
        ReplicaKeeper(broker.host, targets=lambda: targets, barrier=barrier, report=told, interval_ms=5)
        for broker in brokers
    ]
    for keeper in keepers:
        keeper.start()
    await until(lambda: lost.me not in leader.host.groups[GROUP].membership.members())
    targets = {GROUP: ReplicaTarget(voters=voters, generation=2)}
    await until(lambda: lost.machines[GROUP].committed == [b"before", b"meanwhile"])
    await until(lambda: set(leader.host.groups[GROUP].membership.voters) == set(voters))
    for keeper in keepers:
        await keeper.stop()
    assert not any(broker.stopped_groups for broker in brokers)


async def test_a_broker_that_lets_a_replica_go_still_knows_who_leads_the_group(memory_region: Any) -> None:
    brokers = await memory_region.add(3)
    for broker in brokers:
        await broker.open(GROUP, tuple(broker.me for broker in brokers))
    leader = await until(lambda: memory_region.leader(GROUP))
    others = [broker for broker in brokers if broker is not leader]
    await until(lambda: all(broker.host.leaders.leader(GROUP) == leader.me for broker in others))
    await others[0].host.close_group(GROUP)
    assert others[0].host.leaders.leader(GROUP) == leader.me
    await leader.host.close_group(GROUP)
    assert leader.host.leaders.leader(GROUP) == -1
