"""What mesh control says, as brokers follow it over real links: failover policies, regions that drain, new epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from georelay.errors import PolicyViolation
from mesh.home.epoch_core import COUNT_BITS
from region.controller.topic import Homes, TopicSpec

Make = Callable[..., Any]
AUTO = {"failover": "auto", "min.insync.regions": "2", "protect.k": "2"}


def spec(name: str, home: str = "", homes: Homes = Homes.ONE) -> TopicSpec:
    return TopicSpec(name=name, home=home, homes=homes, replication_factor=1)


async def test_a_policy_that_becomes_auto_is_in_force_once_its_home_was_heard(make_mesh: Make) -> None:
    mesh = make_mesh(us=1, eu=1, ap=1)
    await mesh.start_all()
    await mesh.voters(3)
    eu = mesh.cores["eu", 1]
    await eu.controller.create_topic(spec("pay", "us"))
    await mesh.known("pay")
    stream = await mesh.until(lambda: mesh.cores["us", 1].cluster.stream("pay", 0), "the stream in us")
    await mesh.until(lambda: stream.is_leader, "its leader")
    await eu.controller.alter_topic("pay", AUTO)
    leader = await mesh.voters(3)
    await mesh.until(lambda: leader.homes.part.obeyed.get(1), "us to say that it follows the policy")
    answer = await eu.control.call("home.policies", {})
    assert all(row["home"] != 1 for row in answer["waiting"])
    assert stream.lease()


async def test_a_region_that_drains_takes_no_records_of_its_own(make_mesh: Make) -> None:
    mesh = make_mesh(us=1, eu=1, ap=1)
    await mesh.start_all()
    await mesh.voters(3)
    eu, ap = mesh.cores["eu", 1], mesh.cores["ap", 1]
    await eu.controller.create_topic(spec("every", homes=Homes.EVERY))
    await mesh.known("every")
    assert await mesh.publish(eu, "every", b"one") == 0
    await ap.control.call("region.drain", {"number": 2})
    await mesh.until(eu.groups.leaving, "eu to hear of it")
    with pytest.raises(PolicyViolation, match="publish to every in another region"):
        await mesh.publish(eu, "every", b"two")
    assert await mesh.publish(ap, "every", b"elsewhere") == 0
    await ap.control.call("region.keep", {"number": 2})
    await mesh.until(lambda: not eu.groups.leaving(), "eu to hear that it stays")
    assert await mesh.publish(eu, "every", b"two") == 1


async def test_homes_that_move_after_a_recovery_get_epochs_of_the_new_generation(make_mesh: Make) -> None:
    mesh = make_mesh(us=1, eu=1)
    await mesh.start_all()
    await mesh.voters(2)
    eu = mesh.cores["eu", 1]
    await eu.controller.create_topic(spec("orders", "us"))
    await mesh.known("orders")
    mirror = await mesh.until(lambda: eu.cluster.stream("orders", 0), "the mirror")
    await mesh.until(lambda: mirror.epoch == 1, "its first epoch")
    await mesh.until(lambda: eu.control.definitions.topic_by_name("orders"), "the topic in eu's replica")
    await mesh.stop("us")
    await mesh.until(lambda: eu.control.replica.leader is None, "no leader")
    await eu.control.recover()
    await eu.control.call("home.failover", {"region": 1, "streams": [], "accept_loss": False})
    await mesh.until(lambda: mirror.is_home and mirror.epoch > 1 << COUNT_BITS, "an epoch of the second generation")
    assert await mesh.publish(eu, "orders", b"goes on") == 0
