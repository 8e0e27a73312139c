"""A region dies with its consumer groups: they continue elsewhere from their commits, and nowhere twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]


async def together(one: Any, other: Any) -> None:
    """Let two members poll until each has a part of the partitions."""
    for _ in range(60):
        await asyncio.gather(one.idles(1), other.idles(1))
        if one.consumer.assignment() and other.consumer.assignment():
            return
    raise AssertionError("the members did not come together in one group")


async def shared(count: int, one: Any, other: Any) -> tuple[list[int], list[int]]:
    """Let two members read so many records more between them; return what each read."""
    total = len(one.read) + len(other.read) + count
    first, second = await asyncio.gather(one.reads_until(total, other), other.reads_until(total, one))
    return first, second


async def test_a_group_continues_in_another_region_from_its_commits_and_returns(
    losable_mesh: Any,
) -> None:
    mesh = losable_mesh
    await mesh.create_topic(home="eu")
    await mesh.publish(range(60))
    old = mesh.member("us")
    assert sorted(await old.reads(60)) == list(range(60))
    await mesh.publish(range(60, 69))
    uncommitted = await old.reads(4, commits=False)
    await asyncio.sleep(1)  # the links are far quicker

    mesh.kill_us()
    new = mesh.member("eu")
    assert await new.idles(3) == [], "the group began anew in eu while its own region may come back"
    said = await mesh.done("home", "failover", "--region", "us")
    assert "us.__georelay_coordinators" in said
    again = await new.reads(9)
    assert sorted(again) == list(range(60, 69)) and set(uncommitted) <= set(again)

    await mesh.start_us()
    await mesh.done("groups", "describe", "billing", "--region", "us")  # us asks eu, where the group is
    await together(old, new)
    await mesh.publish(range(69, 99))
    both = await shared(30, old, new)
    assert sorted(both[0] + both[1]) == list(range(69, 99))
    assert both[0] and both[1]

    said = await mesh.done("home", "move", "--groups-of", "us", "--to", "us")
    assert "moved 8 of 8" in said
    await mesh.publish(range(99, 129))
    both = await shared(30, old, new)
    assert sorted(both[0] + both[1]) == list(range(99, 129))
    assert "billing" in await mesh.done("groups", "list", "--region", "us")
    assert "billing" not in await mesh.done("groups", "list", "--region", "eu")


async def test_groups_go_with_topics_that_fail_over_by_themselves(losable_mesh: Any) -> None:
    mesh = losable_mesh
    await mesh.create_topic("us", **{"min.insync.regions": "2", "protect.k": "2", "failover": "auto"})
    await mesh.publish(range(30), "us")
    old = mesh.member("us")
    assert sorted(await old.reads(30)) == list(range(30))
    await mesh.publish(range(30, 36), "us")
    await asyncio.sleep(3)  # its brokers ask for leases by now: a region that never did is not failed over

    mesh.kill_us()
    new = mesh.member("eu")
    assert sorted(await new.reads(6)) == list(range(30, 36))
    await mesh.publish(range(36, 42), "eu")
    assert sorted(await new.reads(6)) == list(range(36, 42))
    shown = await mesh.done("home", "show")
    assert shown.count("us.__georelay_coordinators") == 8
