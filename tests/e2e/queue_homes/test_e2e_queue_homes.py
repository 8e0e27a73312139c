"""Queues and bindings whose home moves, by plan and because its region is lost: positions go with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import georelay
from georelay.errors import LeaseExpired

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]


def numbers(rows: list[Any]) -> list[int]:
    return sorted(int(row["value"]) for row in rows)


def codes(results: list[Any]) -> set[str]:
    return {row["code"] for row in results}


async def test_a_queue_moves_by_plan_with_its_positions_and_comes_back(queue_mesh: Any) -> None:
    mesh = queue_mesh
    await mesh.create_topic("work", "us")
    await mesh.create_topic("orders", "us")
    await mesh.create_topic("audit", "us")
    await mesh.ask("POST", "/v1/queues", "us", {"name": "jobs", "topic": "work"})
    await mesh.ask("POST", "/v1/bindings", "us", {"name": "all", "source": "orders", "topic": "audit"})
    await mesh.publish("work", range(20), "us")
    await mesh.publish("orders", range(20), "us")
    rows = await mesh.receive("us", 12)
    done, leased = rows[:8], rows[8:]
    assert codes(await mesh.settle("us", "acknowledge", done)) == {"OK"}

    assert "moved 8 of 8" in await mesh.done("home", "move", "--groups-of", "us", "--to", "eu")
    refused = await mesh.settle("us", "acknowledge", leased)  # us leads its clients to eu
    assert codes(refused) == {"LEASE_EXPIRED"} and "home moved" in refused[0]["reason"]
    again = await mesh.receive("us", 12)
    assert numbers(again) == sorted(set(range(20)) - set(numbers(done)))
    assert {row["deliveries"] for row in again if int(row["value"]) in numbers(leased)} == {2}
    assert codes(await mesh.settle("eu", "acknowledge", again[:9])) == {"OK"}, "eu knows the queue by its name"

    assert "moved 2 of 2" in await mesh.done("home", "move", "orders", "eu")
    await mesh.publish("orders", range(20, 40), "us")
    assert sorted(await mesh.values("audit", "ap", 40)) == list(range(40)), "each copy is there once"

    assert "moved 8 of 8" in await mesh.done("home", "move", "--groups-of", "us", "--to", "us")
    last = await mesh.receive("us", 3)
    assert numbers(last) == numbers(again[9:])
    assert codes(await mesh.settle("us", "acknowledge", last)) == {"OK"}
    assert await mesh.nothing("us")

    await mesh.publish("work", range(20, 30), "us")
    assert sorted(await sdk_consumer_during_a_move(mesh)) == list(range(20, 30))


async def sdk_consumer_during_a_move(mesh: Any) -> list[int]:
    """Work through the queue in us while it moves to eu; return what was acknowledged."""
    done: list[int] = []
    async with (
        georelay.connect(mesh.process.gateway, region="us") as connection,
        connection.queue("jobs", prefetch=2) as queue,
        asyncio.timeout(60),
    ):
        held = await anext(queue)
        await mesh.done("home", "move", "--groups-of", "us", "--to", "eu")
        with pytest.raises(LeaseExpired, match="home moved"):
            await held.acknowledge()
        while len(done) < 10:
            record = await anext(queue)
            try:
                await record.acknowledge()
            except LeaseExpired:
                continue  # it had been fetched ahead
            done.append(int(record.value or b""))
    return done


async def test_a_queue_goes_on_where_its_topic_fails_over_to_and_its_old_home_hands_out_nothing(
    queue_mesh: Any,
) -> None:
    mesh = queue_mesh
    await mesh.create_topic("work", "us", **{"min.insync.regions": "2", "protect.k": "2", "failover": "auto"})
    await mesh.ask("POST", "/v1/queues", "us", {"name": "jobs", "topic": "work"})
    await mesh.publish("work", range(20), "us")
    rows = await mesh.receive("us", 12)
    done, leased = rows[:8], rows[8:]
    assert codes(await mesh.settle("us", "acknowledge", done)) == {"OK"}
    await asyncio.sleep(3)  # its brokers ask for leases by now, and the links are far quicker

    mesh.kill_us()
    again = await mesh.receive("eu", 12)
    assert numbers(again) == sorted(set(range(20)) - set(numbers(done)))
    assert codes(await mesh.settle("eu", "acknowledge", leased)) == {"LEASE_EXPIRED"}
    assert codes(await mesh.settle("eu", "acknowledge", again)) == {"OK"}
    await mesh.publish("work", range(20, 24), "eu")
    new = await mesh.receive("eu", 4)
    assert numbers(new) == list(range(20, 24))

    await mesh.start_us()
    refused = await mesh.settle("us", "acknowledge", leased)
    assert codes(refused) == {"LEASE_EXPIRED"}
    assert await mesh.nothing("us"), "us serves none of its queues, it asks eu, where everything is leased"
    assert codes(await mesh.settle("us", "acknowledge", new)) == {"OK"}
