"""Three whole brokers: whoever is asked, the leader of the coordinator answers; nothing acknowledged is ever lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import CoordinatorUnavailable, NotCoordinator, PolicyViolation
from georelay.ids import BrokerId
from georelay.wire.batch import RecordDraft, build_batch
from mesh.replication.publish import Publish
from region.controller.topic import Homes, TopicSpec
from region.coordination.coordinators import COORDINATORS, INTERNAL_TOPIC
from region.coordination.part import Part

COMMANDS = 100
VALUE = "x" * 1_200


@pytest.mark.asyncio(loop_scope="module")
async def test_every_broker_answers_for_every_coordinator_once_the_topic_is_made(shared_region: Any) -> None:
    region = shared_region
    assert region.running[1].core.coordinators.leader_of("k") == -1  # nobody needed it so far
    first = await region.add("a", at=1)
    assert [(await region.add(name, at=at))["partition"] for name, at in (("b", 2), ("c", 3))] == [
        first["partition"]
    ] * 2
    leader = region.leader(first["partition"])
    assert region.notes(leader, first["partition"]).commands == ["a", "b", "c"]
    view = region.running[1].cluster.topic(INTERNAL_TOPIC)
    assert (view.partitions, view.homes, view.internal) == (COORDINATORS, Homes.EVERY, True)
    assert {region.running[n].core.coordinators.leader_of("k") for n in (1, 2, 3)} == {1000 + leader}
    assert await region.running[2].core.coordinators.ready("k") == 1000 + leader
    limits = region.running[leader].core.housekeeping._limits_of(region.stream(leader, first["partition"]))
    assert (limits.retention_ms, limits.segment_age_ms) == (-1, None) and limits.retention_bytes > 0  # never by time
    listed = await region.running[2].core.coordinators.gather(Part.GROUPS, "list", {})
    assert sorted(row["partition"] for row in listed) == list(range(COORDINATORS))
    assert [row["commands"] for row in listed if row["commands"]] == [["a", "b", "c"]]


@pytest.mark.asyncio(loop_scope="module")
async def test_only_the_leader_has_the_part(shared_region: Any) -> None:
    region = shared_region
    partition = (await region.add("led", at=1))["partition"]
    leader = region.leader(partition)
    for number, broker in region.running.items():
        coordinators = broker.core.coordinators
        if number == leader:
            assert coordinators.part_here("k", Part.GROUPS).commands[-1] == "led"
            assert coordinators.part_here("k", Part.GROUPS) in list(coordinators.parts_here(Part.GROUPS))
        else:
            with pytest.raises(NotCoordinator) as refused:
                coordinators.part_here("k", Part.GROUPS)
            assert refused.value.leader == 1000 + leader


@pytest.mark.asyncio(loop_scope="module")
async def test_clients_neither_write_nor_change_the_internal_topic(shared_region: Any) -> None:
    region = shared_region
    partition = (await region.add("a", at=1))["partition"]
    before = list(region.notes(region.leader(partition), partition).commands)
    cluster = region.running[region.leader(partition)].cluster
    raw = bytearray(build_batch([RecordDraft(b"forged", key=b"\x01")], timestamps_ms=1))
    with pytest.raises(PolicyViolation):
        await cluster.publish(INTERNAL_TOPIC, partition, Publish.built(raw, received_ns=1, entry_region=1, lane="test"))
    for attempt in (
        cluster.delete_records(INTERNAL_TOPIC, partition, 1),
        cluster.delete_topic(INTERNAL_TOPIC),
        cluster.alter_topic(INTERNAL_TOPIC, {"retention.ms": "1"}),
        cluster.create_topic(TopicSpec(name="__georelay_mine")),
        region.running[1].core.controller.add_partitions(INTERNAL_TOPIC, 9),
    ):
        with pytest.raises(PolicyViolation):
            await attempt
    with pytest.raises(PolicyViolation):
        cluster.check_topic(TopicSpec(name="__georelay_mine"))
    assert region.notes(region.leader(partition), partition).commands == before


@pytest.mark.asyncio(loop_scope="module")
async def test_only_brokers_of_the_own_region_may_call(shared_region: Any) -> None:
    region = shared_region
    await region.add("a", at=1)
    body = {"part": 1, "partition": 0, "operation": "list", "body": {}, "principal": "", "timeout_ms": 1000}
    serve = region.running[1].core.coordinators.serve
    refused = await serve(body, from_broker=BrokerId(2001))
    assert refused["error"]["code"] == "POLICY_VIOLATION"
    of_streams = {**body, "part": 3, "operation": "copy_find"}  # the home of a stream asks, whichever region that is
    assert (await serve(of_streams, from_broker=BrokerId(2001)))["error"]["code"] == "BAD_REQUEST"
    assert (await serve({**of_streams, "part": 1}, from_broker=BrokerId(2001)))["error"]["code"] == "POLICY_VIOLATION"
    for wrong in ({**body, "partition": COORDINATORS}, {**body, "part": 3}, {**body, "body": []}, {"part": 1}):
        assert (await serve(wrong, from_broker=BrokerId(1002)))["error"]["code"] == "BAD_REQUEST"


async def test_a_new_leader_has_everything_that_was_acknowledged(region: Any, until: Any) -> None:
    partition = (await region.add("0", at=1))["partition"]
    for number in range(1, 20):
        await region.add(str(number), at=1 + number % 3)
    old = region.leader(partition)
    story = region.notes(old, partition).story
    await region.stop(old)
    assert story[-2:] == ["deposed", "closed"]
    left = next(iter(region.running))
    await region.add("20", at=left)
    new = await until(lambda: region.leader(partition))
    assert region.notes(new, partition).commands == [str(number) for number in range(21)]
    assert region.notes(new, partition).story[-1].startswith("elected after 20")


async def test_restart_of_all_replays_only_what_is_above_the_manifest(
    small_segments: None, region: Any, until: Any
) -> None:
    partition = (await region.add(VALUE, at=1))["partition"]
    await fill(region, partition)
    before = list(region.notes(region.leader(partition), partition).commands)
    first_index = await shortened(region, partition, until)
    assert first_index > 1
    await region.stop(1, 2, 3)
    await region.start(1, 2, 3)
    await until(lambda: region.leader(partition), 30)
    after = region.notes(region.leader(partition), partition)
    assert after.commands == before
    assert int(after.story[0].removeprefix("restored ")) > COMMANDS / 2
    assert len(after.indexes) < COMMANDS / 2  # the rest came with the manifest


async def test_a_new_replica_gets_the_manifest_and_what_is_above_it(
    small_segments: None, region: Any, until: Any
) -> None:
    partition = (await region.add(VALUE, at=1))["partition"]
    await fill(region, partition)
    assert await shortened(region, partition, until) > 1  # what a new replica would need is gone from every log
    leader = region.leader(partition)
    before = list(region.notes(leader, partition).commands)
    follower = next(number for number in (1, 2, 3) if number != leader)
    await region.stop(follower)
    region.erase(follower)
    await region.start(follower)
    await until(lambda: (notes := region.notes(follower, partition)) and notes.commands == before, 40)
    assert any(row.startswith("restored") for row in region.notes(follower, partition).story)
    other = next(number for number in (1, 2, 3) if number not in (leader, follower))
    await region.stop(other)  # from now on the new replica is needed for every commit
    await region.add("last", at=leader)
    await until(lambda: region.notes(follower, partition).commands[-1] == "last")


async def test_a_state_that_a_broker_cannot_read_puts_that_coordinator_out_of_use_alone(
    small_segments: None, region: Any, until: Any, make_notes: Any
) -> None:
    class Older(make_notes):  # type: ignore[misc]
        def restore(self, raw: bytes) -> None:
            raise ValueError("version 2 is unknown here")

    partition = (await region.add(VALUE, at=1))["partition"]
    await fill(region, partition)
    leader = region.leader(partition)
    before = list(region.notes(leader, partition).commands)
    follower = next(number for number in (1, 2, 3) if number != leader)
    await region.stop(follower)
    await region.start(follower, part=Older)
    broker = region.running[follower]
    refused = await until(lambda: broker.core.groups.refused)
    assert all("version 2 is unknown here" in reason for reason in refused.values())
    assert not broker.failed.done()
    await region.add("more", at=follower)
    broker.core.coordinators._makes[Part.GROUPS] = make_notes  # a newer version; nobody does anything else
    await until(lambda: (notes := region.notes(follower, partition)) and notes.commands == [*before, "more"], 30)
    assert not broker.failed.done()


async def test_without_a_quorum_a_call_ends_in_time(region: Any) -> None:
    partition = (await region.add("a", at=1))["partition"]
    leader = region.leader(partition)
    await region.stop(*[number for number in (1, 2, 3) if number != leader])
    await asyncio.sleep(0.6)  # it steps down
    with pytest.raises(CoordinatorUnavailable):
        await region.running[leader].core.coordinators.call(Part.GROUPS, "k", "list", {}, timeout_s=0.5)


async def fill(region: Any, partition: int) -> None:
    leader = region.leader(partition)
    for _ in range(COMMANDS // 20):
        await asyncio.gather(*(region.add(VALUE, at=leader) for _ in range(20)))


async def shortened(region: Any, partition: int, until: Any) -> int:
    """Let retention look until the leader's log begins later; return its first index."""
    stream = region.stream(region.leader(partition), partition)
    for _ in range(50):
        for broker in region.running.values():
            await broker.core.housekeeping.retention.tick()
        if all(
            region.stream(number, partition).disk.first_index > 1
            for number in region.running
            if region.stream(number, partition) is not None
        ):
            break
        await asyncio.sleep(0.1)
    return int(stream.disk.first_index)
