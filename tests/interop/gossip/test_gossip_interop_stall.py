"""A broker whose main loop stands still: announced, not failed; and an external serf agent behind its RPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mesh.gossip.agent import Agent, AgentSettings
from mesh.gossip.agent_rpc import RpcMember, RpcSettings
from mesh.gossip.gossip_thread import GossipThread
from mesh.gossip.key_queries_core import LIST_KEYS
from mesh.gossip.pools import GossipPools
from mesh.gossip.view import MemberChange, MemberStatus, MemberView

Make = Callable[..., Awaitable[Any]]
Until = Callable[..., Awaitable[float]]


def watched(pool: str, name: str, seed: str) -> GossipPools:
    settings = AgentSettings(pool=pool, name=name, listen=("127.0.0.1", 0), tags={"role": "broker"}, seeds=[seed])
    return GossipPools({pool: Agent(settings)})


@pytest.mark.parametrize(("seconds", "pulse"), [(6.0, "stalled"), (16.5, "suspect")])
@pytest.mark.slow
async def test_a_main_loop_that_stands_still_is_announced_and_nobody_takes_it_for_dead(
    seconds: float, pulse: str, make_serf: Make, until: Until
) -> None:
    serf = await make_serf("go-1")
    observer = Agent(AgentSettings(pool="lan", name="py-1", listen=("127.0.0.1", 0), tags={}, seeds=[serf.address]))
    thread = GossipThread("observer")
    thread.start()
    pools = watched("lan", "py-2", serf.address)
    seen: list[tuple[MemberChange, str, str]] = []

    def note(change: MemberChange, member: MemberView) -> None:
        seen.append((change, member.name, member.tags.get("stalled", "")))

    try:
        await thread.run(observer.start)
        await pools.start({"lan": {"role": "broker"}})
        await until(lambda: len(observer.members()) == 3 and len(pools.pools["lan"].members()) == 3, 5)
        observer.listeners.on_member.append(note)
        time.sleep(seconds)  # the stall
        in_stall = list(seen)
        awareness = pools.pools["lan"].health().awareness
        assert (MemberChange.UPDATED, "py-2", pulse) in in_stall
        assert not [row for row in in_stall if row[0] in (MemberChange.FAILED, MemberChange.LEFT)]
        assert (awareness > 0) is (pulse == "suspect")
        assert await serf.status_of("py-2") == "alive"
        await until(lambda: (MemberChange.UPDATED, "py-2", "") in seen[len(in_stall) :], 3)
        assert "EventMemberFailed" not in serf.text()
        assert pools.watchdog.longest_lag_s > seconds - 0.5
    finally:
        await pools.stop()
        await thread.run(observer.stop)
        await thread.stop()


async def test_an_external_agent_gives_the_same_view_as_a_native_one(
    make_serf: Make, make_ours: Make, until: Until
) -> None:
    external = await make_serf("go-1")
    native = await make_ours("py-1", tags={"cl": "shop", "rg": "eu"}, seeds=[external.address])
    member = RpcMember(
        RpcSettings(pool="lan", address=("127.0.0.1", external.rpc_port), tags={"cl": "shop", "rg": "us"})
    )
    pools = GossipPools({"lan": member})
    await pools.start({"lan": {"cl": "shop", "rg": "us"}})
    pool = pools.pools["lan"]
    changes: list[tuple[MemberChange, str]] = []
    pool.subscribe(lambda change, seen: changes.append((change, seen.name)))
    try:
        await until(lambda: [m.name for m in pool.members()] == ["go-1", "py-1"], 5)
        assert {m.name: m.tags["rg"] for m in pool.members()} == {"go-1": "us", "py-1": "eu"}
        await until(lambda: any(dict(m.tags).get("rg") == "us" for m in native.members()), 3)
        await pools.set_tags(ready="1")
        await until(lambda: any(dict(m.tags).get("ready") == "1" for m in native.members()), 3)
        heard: list[bytes] = []
        native.listeners.on_event = lambda name, payload: heard.append(payload)
        await pool.tell("deploy", b"7")
        await until(lambda: heard == [b"7"], 3)
        native.listeners.on_query = lambda name, payload: b"hello " + payload
        report = await pool.query("who", b"you", ack=True, timeout_s=1.0)
        assert report.answers == {"py-1": b"hello you"}
        assert "py-1" in report.acknowledged
        await until(lambda: native.serf.rtt_s("py-1", "go-1") is not None, 20)
        keys = await pool.keys(LIST_KEYS)
        assert keys.done == 0
        assert set(keys.faults) == {"go-1", "py-1"}
        second = await make_ours("py-2", seeds=[external.address])
        await until(lambda: (MemberChange.JOINED, "py-2") in changes, 5)
        await second.stop()
        await until(lambda: (MemberChange.LEFT, "py-2") in changes, 30)
        statuses = {m.name: m.status for m in pool.members()}
        assert statuses["py-2"] is MemberStatus.LEFT
    finally:
        await pools.stop()
    await asyncio.sleep(0.5)
    assert external.process.poll() is None
