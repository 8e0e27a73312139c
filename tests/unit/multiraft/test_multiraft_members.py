"""Groups change their members while they run: a replica moves, a removed one is let go, a new disk starts over."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from georelay.errors import GeorelayError, NotLeader, Unavailable
from georelay.ids import BrokerId, GroupId
from region.multiraft.replica_keeper_core import ReplicaTarget
from region.multiraft.replicas import ReplicaKeeper
from tests.conditions import until

GROUP = GroupId(1)


class Keepers:
    """One keeper per broker, and the controller that they believe in."""

    def __init__(self, brokers: list[Any]) -> None:
        self.targets: dict[GroupId, ReplicaTarget] = {}
        self.reports: list[tuple[Any, ...]] = []
        self.barriers = 0
        self.refuse = False
        self.keepers = [
            ReplicaKeeper(
                broker.host, targets=lambda: self.targets, barrier=self.barrier, report=self.report, interval_ms=5
            )
            for broker in brokers
        ]
        for keeper in self.keepers:
            keeper.start()

    async def barrier(self) -> None:
        self.barriers += 1
        if self.refuse:
            raise Unavailable("no controller")

    async def report(self, group_id: GroupId, voters: Any, learners: Any, generation: int, _index: int) -> None:
        self.reports.append((group_id, frozenset(voters), frozenset(learners), generation))

    async def stop(self) -> None:
        for keeper in self.keepers:
            await keeper.stop()


@pytest.fixture
async def four(memory_region: Any) -> Any:
    """Four brokers; the first three found the group, the fourth knows nothing."""
    brokers = await memory_region.add(4)
    founders = tuple(broker.me for broker in brokers[:3])
    for broker in brokers:
        await broker.open(GROUP, founders if broker.me in founders else ())
    await until(lambda: memory_region.leader(GROUP))
    keepers = Keepers(brokers)
    yield brokers, keepers
    await keepers.stop()


async def settled(region: Any, voters: set[BrokerId]) -> Any:
    def leader_there() -> Any:
        leader = region.leader(GROUP)
        if leader is None:
            return None
        group = leader.host.groups[GROUP]
        membership = group.membership
        done = set(membership.voters) == voters and not membership.outgoing and group.membership_committed
        return leader if done and not membership.learners else None

    return await until(leader_there)


async def test_a_replica_moves_to_another_broker_while_records_flow(memory_region: Any, four: Any) -> None:
    brokers, keepers = four
    wanted = tuple(broker.me for broker in brokers[1:])
    acknowledged: set[bytes] = set()
    for number in range(60):
        leader = memory_region.leader(GROUP)
        if leader is not None:
            acknowledged.update(leader.machines[GROUP].committed)
            with contextlib.suppress(GeorelayError):  # while the leadership moves
                leader.publish(GROUP, b"v%d" % number)
        if number == 10:
            keepers.targets = {GROUP: ReplicaTarget(voters=wanted, generation=7)}
        await asyncio.sleep(0.002)
    leader = await settled(memory_region, set(wanted))
    leader.publish(GROUP, b"end")
    await until(lambda: all(broker.machines[GROUP].committed[-1:] == [b"end"] for broker in brokers[1:]))
    committed = leader.machines[GROUP].committed
    assert acknowledged - set(committed) == set()
    assert all(broker.machines[GROUP].committed == committed for broker in brokers[1:])
    assert len(set(committed)) == len(committed)
    await until(lambda: (GROUP, frozenset(wanted), frozenset(), 7) in keepers.reports)
    assert not any(broker.stopped_groups for broker in brokers)


async def test_a_removed_replica_is_let_go_and_the_rest_goes_on(memory_region: Any, four: Any) -> None:
    brokers, keepers = four
    leader = memory_region.leader(GROUP)
    gone = next(broker for broker in brokers[:3] if broker is not leader)
    wanted = {broker.me for broker in brokers[:3]} - {gone.me}
    keepers.targets = {GROUP: ReplicaTarget(voters=tuple(sorted(wanted)))}
    await settled(memory_region, wanted)
    await gone.host.close_group(GROUP)
    gone.directory.remove_group(GROUP)
    leader = memory_region.leader(GROUP)
    leader.publish(GROUP, b"after")
    await until(lambda: leader.machines[GROUP].committed == [b"after"])
    assert gone.me not in leader.host.groups[GROUP].membership.members()


async def test_a_broker_with_a_new_disk_is_removed_before_it_is_added_again(memory_region: Any, four: Any) -> None:
    brokers, keepers = four
    leader = memory_region.leader(GROUP)
    replaced = next(broker for broker in brokers[:3] if broker is not leader)
    voters = tuple(broker.me for broker in brokers[:3])
    keepers.targets = {GROUP: ReplicaTarget(voters=voters, unsafe=frozenset({replaced.me}), generation=1)}
    rest = frozenset(voters) - {replaced.me}
    await until(lambda: (GROUP, rest, frozenset(), 1) in keepers.reports)
    await replaced.host.close_group(GROUP)
    replaced.directory.remove_group(GROUP)
    await replaced.open(GROUP, ())
    keepers.targets = {GROUP: ReplicaTarget(voters=voters, generation=2)}
    await settled(memory_region, set(voters))
    await until(lambda: (GROUP, frozenset(voters), frozenset(), 2) in keepers.reports)
    assert not any(broker.stopped_groups for broker in brokers)


async def test_a_leader_that_hears_no_controller_changes_and_reports_nothing(memory_region: Any, four: Any) -> None:
    brokers, keepers = four
    keepers.refuse = True
    keepers.targets = {GROUP: ReplicaTarget(voters=tuple(broker.me for broker in brokers[1:]))}
    await until(lambda: keepers.barriers > 5)
    assert keepers.reports == []
    assert memory_region.leader(GROUP).host.groups[GROUP].membership.voters == tuple(b.me for b in brokers[:3])


async def test_members_survive_a_restart_of_everybody(memory_region: Any, four: Any) -> None:
    brokers, keepers = four
    wanted = tuple(broker.me for broker in brokers[1:])
    keepers.targets = {GROUP: ReplicaTarget(voters=wanted)}
    await settled(memory_region, set(wanted))
    await keepers.stop()
    for number, broker in enumerate(brokers[1:]):
        await broker.stop(clean=number == 0)
    for broker in brokers[1:]:
        await broker.start()
        await broker.open(GROUP, tuple(other.me for other in brokers[:3]) if broker is not brokers[3] else ())
    leader = await until(lambda: memory_region.leader(GROUP))
    assert leader in brokers[1:]
    assert set(leader.host.groups[GROUP].membership.voters) == set(wanted)


async def test_a_read_index_covers_what_was_acknowledged_before(memory_region: Any, four: Any) -> None:
    brokers, _ = four
    leader = memory_region.leader(GROUP)
    index = leader.publish(GROUP, b"x")
    await until(lambda: leader.machines[GROUP].applied_index >= index)
    group = leader.host.groups[GROUP]
    reads = await asyncio.gather(*(group.read_index() for _ in range(5)))
    assert all(read >= index for read in reads)
    follower = next(broker for broker in brokers[:3] if broker is not leader)
    with pytest.raises(NotLeader):
        await follower.host.groups[GROUP].read_index()


async def test_a_leader_that_is_cut_off_answers_no_read(memory_region: Any, four: Any) -> None:
    leader = memory_region.leader(GROUP)
    memory_region.wires.cut.add(leader.me)
    read = asyncio.ensure_future(leader.host.groups[GROUP].read_index())
    with pytest.raises(NotLeader):
        await read
    memory_region.wires.cut.clear()


async def test_a_read_of_a_group_that_stops_is_refused(memory_region: Any, four: Any) -> None:
    leader = memory_region.leader(GROUP)
    memory_region.wires.cut.add(leader.me)
    read = asyncio.ensure_future(leader.host.groups[GROUP].read_index())
    await asyncio.sleep(0)
    leader.host.close_group(GROUP)
    with pytest.raises(Unavailable):
        await read
