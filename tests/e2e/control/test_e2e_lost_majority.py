"""A region that lost the majority of its brokers: one of them lives and answers, and its homes move all the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from georelay.errors import HomeUnreachable, NotHome, Unavailable
from georelay.ids import RegionNumber, StreamKey
from region.controller.topic import TopicSpec

Make = Callable[..., Any]
AUTOMATIC = {"failover": "auto", "min.insync.regions": "2", "protect.k": "2"}
US, EU = RegionNumber(1), RegionNumber(2)
RTO_S = 15.0  # of a machine with other work; the parts of it: 2 s of silence, leases of 2 s, two round trips


async def test_two_of_three_brokers_are_lost_and_the_home_moves(make_mesh: Make) -> None:
    mesh = make_mesh(us=1, eu=3, ap=1)
    await mesh.start_all()
    await mesh.voters(3)
    us, eu = mesh.cores["us", 1], mesh.cores["eu", 1]
    await us.controller.create_topic(TopicSpec(name="orders", home="eu", replication_factor=3).with_settings(AUTOMATIC))
    await mesh.known("orders")
    topic = us.controller.state.topic_by_name("orders")
    key = StreamKey(topic.topic_id, RegionNumber(0), 0)
    leader = await mesh.voters(3)
    await mesh.until(lambda: leader.homes.part.leased >= {1, 2, 3}, "leases of all regions")
    await mesh.until(lambda: all(core.homes.keeper.holds() for core in mesh.cores.values()), "a lease of every broker")
    await _in_force(us)
    assert [await _publish(mesh, b"%d" % number) for number in range(20)] == list(range(20))
    for number in (2, 3):
        await mesh.stop("eu", number)
    begun = time.monotonic()
    await mesh.until(lambda: (us.controller.state.home_row(key) or topic).home != EU, "another home")
    assert await _publish(mesh, b"after") == 20
    assert time.monotonic() - begun < RTO_S
    assert not any(stream.is_leader for stream in eu.streams.values() if stream.key == key)
    for number in (2, 3):
        await mesh.start("eu", number)
    at_eu = [core for (region, _), core in mesh.cores.items() if region == "eu"]

    def followed() -> bool:
        streams = [stream for core in at_eu for stream in core.streams.values() if stream.key == key]
        return any(stream.is_leader and stream.epoch >= 2 and stream.high_watermark == 21 for stream in streams)

    await mesh.until(followed, "the old home as a mirror")


async def _publish(mesh: Any, value: bytes) -> int:
    """Publish one record from region us; repeat what was surely not stored."""
    deadline = time.monotonic() + RTO_S
    while True:
        try:
            offset: int = await mesh.publish(mesh.cores["us", 1], "orders", value)
        except (NotHome, HomeUnreachable, Unavailable):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        else:
            return offset


async def _in_force(core: Any) -> None:
    """Wait until control knows that every region follows the topic's policy."""
    answer: dict[str, Any] = {"waiting": ["unknown"]}
    deadline = time.monotonic() + RTO_S
    while answer["waiting"] and time.monotonic() < deadline:
        answer = await core.control.call("home.policies", {})
    assert answer["waiting"] == []
