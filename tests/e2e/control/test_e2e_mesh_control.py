"""Mesh control over real links: founding, a lost region, a new region, a lost majority, a replaced voter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import ControlUnavailable, OutcomeUnknown, PolicyViolation
from region.controller.topic import Homes, TopicSpec

Make = Callable[..., Any]


def spec(name: str, home: str = "", homes: Homes = Homes.ONE) -> TopicSpec:
    return TopicSpec(name=name, home=home, homes=homes, replication_factor=1)


async def test_topics_are_created_while_the_definitions_home_is_down(make_mesh: Make) -> None:
    mesh = make_mesh(us=1, eu=1, ap=1)
    await mesh.start_all()
    await mesh.voters(3)
    await mesh.cores["eu", 1].controller.create_topic(spec("before", "eu"))
    await mesh.known("before")
    before = mesh.cores["eu", 1].controller.state.topic_by_name("before").index
    await mesh.stop("us")
    await mesh.cores["ap", 1].controller.create_topic(spec("during", "ap"))
    await mesh.known("during")
    assert mesh.cores["eu", 1].controller.state.topic_by_name("during").index > before
    assert await mesh.publish(mesh.cores["eu", 1], "before", b"still") == 0
    us = await mesh.start("us")
    await mesh.known("during")
    assert us.controller.state.topic_by_name("during") == mesh.cores["ap", 1].controller.state.topic_by_name("during")


@pytest.mark.slow
async def test_every_broker_restarts_and_control_goes_on(make_mesh: Make) -> None:
    mesh = make_mesh(us=1, eu=1, ap=1)
    await mesh.start_all()
    leader = await mesh.voters(3)
    row = leader.control.row()
    await mesh.stop_all()
    await mesh.start_all()
    leader = await mesh.voters(3)
    assert (leader.control.generation, leader.control.control_id) == (1, row.control_id)
    await mesh.cores["ap", 1].controller.create_topic(spec("after", "eu"))
    await mesh.known("after")


async def test_a_region_that_is_cut_off_refuses_changes_and_goes_on_publishing(make_mesh: Make) -> None:
    mesh = make_mesh(us=1, eu=1, ap=1)
    await mesh.start_all()
    await mesh.voters(3)
    await mesh.cores["eu", 1].controller.create_topic(spec("orders", "eu"))
    await mesh.known("orders")
    await mesh.publish(mesh.cores["eu", 1], "orders", b"one")
    await mesh.stop("us")
    await mesh.stop("ap")
    eu = mesh.cores["eu", 1]
    publishing = [asyncio.ensure_future(mesh.publish(eu, "orders", b"x")) for _ in range(5)]
    with pytest.raises(ControlUnavailable, match="publishing and consuming go on"):
        await eu.controller.create_topic(spec("refused", "eu"))
    assert [await each for each in publishing] == [1, 2, 3, 4, 5]
    answer = await eu.cluster.read_records("orders", 0, 0, 1 << 20, 0)
    assert answer.high_watermark == 6


@pytest.mark.slow
async def test_a_fourth_region_joins_under_load_and_gets_everything_from_the_log_start(make_mesh: Make) -> None:
    mesh = make_mesh(us=1, eu=1, ap=1)
    await mesh.start_all()
    await mesh.voters(3)
    eu = mesh.cores["eu", 1]
    await eu.controller.create_topic(spec("orders", "eu"))
    await eu.controller.create_topic(spec("every", homes=Homes.EVERY))
    await mesh.known("every")
    for number in range(200):
        await mesh.publish(eu, "orders", b"%d" % number)
    stop = asyncio.Event()

    async def load() -> int:
        count = 200
        while not stop.is_set():
            await mesh.publish(eu, "orders", b"%d" % count)
            count += 1
        return count

    loading = asyncio.create_task(load())
    seed = mesh.add_region("sa")
    await mesh.cores["ap", 1].control.call("region.add", {"number": 4, "name": "sa", "seeds": [seed], "witness": False})
    joined = {"mode": "auto", "election_ms": 300, "join": [mesh.seed("ap")]}
    sa = await mesh.start("sa", known=["sa"], definitions_home="", control=joined)
    await mesh.known("orders")
    await mesh.known("sa.every")
    await asyncio.sleep(0.5)
    stop.set()
    count = await loading
    mirror = await mesh.until(lambda: sa.cluster.stream("orders", 0), "the mirror")
    await mesh.until(lambda: mirror.high_watermark == count, f"{count} records in sa")
    ours = await eu.cluster.read_records("orders", 0, 0, 1 << 24, 0)
    theirs = await sa.cluster.read_records("orders", 0, 0, 1 << 24, 0)
    assert b"".join(bytes(entry.payload) for entry in theirs.entries) == b"".join(
        bytes(entry.payload) for entry in ours.entries
    )
    await mesh.until(lambda: len(sa.control.state.members.rows()) == 4, "a replica of control in sa")
    await sa.controller.create_topic(spec("insa", "sa"))
    await mesh.known("insa")
    with pytest.raises(PolicyViolation, match="home of 1 streams"):
        await eu.control.call("region.drain", {"number": 4})
    await eu.controller.delete_topic("insa")
    await eu.control.call("region.drain", {"number": 4})
    await eu.control.call("region.remove", {"number": 4})
    await mesh.until(lambda: len(eu.control.state.members.rows()) == 3, "sa's replica gone")


async def test_one_survivor_begins_a_new_generation_and_the_others_are_overwritten(make_mesh: Make) -> None:
    mesh = make_mesh(us=1, eu=1, ap=1)
    await mesh.start_all()
    await mesh.voters(3)
    await mesh.cores["us", 1].controller.create_topic(spec("kept", "ap"))
    await mesh.known("kept")
    ap = mesh.cores["ap", 1]
    with pytest.raises(PolicyViolation, match="has a leader"):
        await ap.control.recover()
    await mesh.until(lambda: ap.control.definitions.topic_by_name("kept"), "the topic in ap's replica")
    await mesh.stop("us")
    await mesh.stop("eu")
    await mesh.until(lambda: ap.control.replica.leader is None, "no leader")
    said = await ap.control.recover()
    assert said["generation"] == 2
    await ap.controller.create_topic(spec("new", "ap"))
    await mesh.start("us")
    await mesh.start("eu")
    leader = await mesh.voters(3)
    assert leader.control.generation == 2
    await mesh.known("new")
    await mesh.known("kept")
    assert {core.control.replica.name.generation for core in mesh.cores.values()} == {2}
    await mesh.cores["us", 1].controller.create_topic(spec("again", "us"))
    await mesh.known("again")


async def test_a_voter_whose_broker_is_gone_for_good_is_replaced_by_another_of_its_region(make_mesh: Make) -> None:
    mesh = make_mesh(us=3, eu=1, ap=1)
    await mesh.start_all(replace_absent_after_ms=700)
    await mesh.voters(3)
    members = mesh.cores["eu", 1].control.state.members
    before = members.of_region(1)
    await mesh.stop("us", before.broker % 1000)
    await mesh.until(
        lambda: (row := members.of_region(1)) is not None and row.replica != before.replica, "another replica in us"
    )
    leader = await mesh.voters(3)
    after = leader.control.state.members.of_region(1)
    assert after.broker != before.broker
    assert after.replica > 3


async def test_two_regions_and_a_witness_survive_the_loss_of_one(make_mesh: Make) -> None:
    mesh = make_mesh(us=1, eu=1, quorum=1)
    await mesh.start_all(witnesses=["quorum"])
    await mesh.voters(3)
    await mesh.cores["eu", 1].controller.create_topic(spec("orders", "eu"))
    await mesh.known("orders")
    assert not mesh.cores["quorum", 1].streams
    assert [r.name for r in mesh.cores["eu", 1].controller.state.topology.data_regions] == ["us", "eu"]
    await mesh.stop("us")
    await mesh.cores["eu", 1].controller.create_topic(spec("during", "eu"))
    await mesh.known("during")


@pytest.mark.slow
async def test_without_any_replica_a_region_begins_anew_with_what_its_controller_pulled(make_mesh: Make) -> None:
    mesh = make_mesh(us=3)
    await mesh.start_all()
    await mesh.voters(1)
    await mesh.cores["us", 1].controller.create_topic(spec("kept", "us"))
    await mesh.known("kept")
    (only,) = mesh.cores["us", 1].control.voters()
    number = only.broker % 1000
    await mesh.stop("us", number)
    for path in sorted((mesh.directory / f"us-{number}").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    other = mesh.cores["us", number % 3 + 1]
    with pytest.raises(ControlUnavailable):
        await other.controller.create_topic(spec("refused", "us"))
    assert (await other.control.recover())["generation"] == 2
    await other.controller.create_topic(spec("new", "us"))
    await mesh.start("us", number)
    await mesh.known("kept")
    await mesh.known("new")


async def test_replicas_find_each_other_again_when_the_manifest_of_one_is_older_than_the_others(
    make_mesh: Make,
) -> None:
    mesh = make_mesh(us=1, eu=1, ap=1)
    us = await mesh.start("us")
    await mesh.until(lambda: us.control.is_leader, "the founder alone")
    await mesh.stop("us")  # its manifest knows one replica
    await mesh.start_all()
    row = (await mesh.voters(3)).control.row()
    await mesh.power_cut()
    await mesh.start_all()
    leader = await mesh.voters(3)
    assert (leader.control.generation, leader.control.control_id) == (1, row.control_id)
    await mesh.until(lambda: len(leader.control.replica.host.beats.alive) == 2, "every replica heard by the leader")
    await mesh.cores["us", 1].controller.create_topic(spec("after", "eu"))
    await mesh.known("after")
    await mesh.until(
        lambda: {core.control.state.index for core in mesh.cores.values()} == {leader.control.state.index},
        "the same state everywhere",
    )


@pytest.mark.slow
async def test_of_two_survivors_that_recovered_the_one_that_recovers_again_wins(make_mesh: Make) -> None:
    mesh = make_mesh(us=1, eu=1, ap=1)
    await mesh.start_all()
    await mesh.voters(3)
    for region in ("us", "eu"):
        await mesh.stop(region)
    ap = mesh.cores["ap", 1]
    await mesh.until(lambda: ap.control.replica.leader is None, "no leader")
    await ap.control.recover()
    await mesh.stop("ap")
    us = await mesh.start("us")
    await mesh.until(lambda: us.control.replica.leader is None, "no leader")
    await us.control.recover()
    ap = await mesh.start("ap")
    await mesh.until(lambda: ap.control.has_rival and us.control.has_rival, "the alarm at both")
    assert (await us.control.recover())["generation"] == 3
    await mesh.start("eu")
    leader = await mesh.voters(3)
    assert (leader.control.generation, leader.control.control_id) == (3, us.control.control_id)
    await mesh.until(lambda: not any(core.control.alarms for core in mesh.cores.values()), "no alarm")


@pytest.mark.slow
async def test_control_recovers_also_where_it_was_led_before_the_others_were_lost(make_mesh: Make) -> None:
    mesh = make_mesh(us=1, eu=1, ap=1)
    await mesh.start_all()
    leader = await mesh.voters(3)
    for region in [region for region, _ in mesh.cores if mesh.cores[region, 1] is not leader]:
        await mesh.stop(region)
    await mesh.until(lambda: not leader.control.is_leader, "the leader to step down")
    await mesh.until(lambda: leader.control.replica.leader is None, "no leader")
    assert (await leader.control.recover())["generation"] == 2


async def test_a_crash_in_the_middle_of_a_recovery_leaves_what_there_was(make_mesh: Make) -> None:
    mesh = make_mesh(us=1)
    us = await mesh.start("us")
    await mesh.voters(1)
    await us.controller.create_topic(spec("kept", "us"))
    before = us.control.replica.name
    half = replace(before, generation=2, control_id="e" * 32)

    async def crash(_: object) -> None:
        raise OutcomeUnknown("the broker ended here")

    us.control._begin = crash
    with pytest.raises(OutcomeUnknown):
        await us.control.begin_anew(half, us.control.state.members.row(1), b"", instead_of=us.control.replica)
    assert us.control.replica.name == half
    await mesh.stop("us")
    us = await mesh.start("us")
    await mesh.voters(1)
    assert us.control.replica.name == before
    await us.controller.create_topic(spec("after", "us"))
    assert us.control.definitions.topic_by_name("kept") is not None
