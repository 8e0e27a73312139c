"""Pools of one process in their thread: one WAN seed brings LAN pools together, and a taken port ends cleanly."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mesh.gossip.agent import Agent, AgentSettings
from mesh.gossip.pools import LAN, WAN, GossipPools
from mesh.gossip.timing import LOCAL
from mesh.gossip.view import MemberChange, MemberStatus, MemberView
from tests.free_ports import free_port


def pools_of(
    region: str, number: int, ports: dict[str, int], seed: int, folder: Path, *, leave_propagate_s: float = 0.1
) -> GossipPools:
    base = {"cl": "shop", "rg": region, "role": "broker"}
    tags = {
        LAN: {**base, "wan": f"127.0.0.1:{ports[WAN]}"},
        WAN: {**base, "lan": f"127.0.0.1:{ports[LAN]}"},
    }
    members = {
        pool: Agent(
            AgentSettings(
                pool=pool,
                name=f"{number}" if pool == LAN else f"{number}.{region}",
                listen=("127.0.0.1", ports[pool]),
                tags=tags[pool],
                timing=LOCAL,
                mesh="shop",
                seeds=[f"127.0.0.1:{seed}"] if pool == WAN else [],
                snapshot=folder / f"{number}.{pool}",
                leave_propagate_s=leave_propagate_s,
            )
        )
        for pool in (LAN, WAN)
    }
    return GossipPools(members, region=region)


async def until(wanted: Callable[[], bool], within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while not wanted():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def alive(pools: GossipPools, pool: str) -> set[str]:
    return {m.name for m in pools.pools[pool].members() if m.status is MemberStatus.ALIVE}


async def test_one_wan_seed_forms_the_lan_pool_of_each_region(tmp_path: Path) -> None:
    places = [("us", 1001), ("us", 1002), ("eu", 2001), ("eu", 2002)]
    ports = [{LAN: free_port(), WAN: free_port()} for _ in places]
    mesh = [
        pools_of(region, number, own, ports[0][WAN], tmp_path)
        for (region, number), own in zip(places, ports, strict=True)
    ]
    threads: set[str] = set()
    changes: list[tuple[MemberChange, str]] = []

    def note(change: MemberChange, member: MemberView) -> None:
        threads.add(threading.current_thread().name)
        changes.append((change, member.name))

    mesh[0].pools[LAN].subscribe(note)
    for pools in mesh:
        await pools.start()
    for (region, _), pools in zip(places, mesh, strict=True):
        own = {str(number) for other, number in places if other == region}
        await until(lambda pools=pools: alive(pools, WAN) == {"1001.us", "1002.us", "2001.eu", "2002.eu"})  # type: ignore[misc]
        await until(lambda pools=pools, own=own: alive(pools, LAN) == own)  # type: ignore[misc]
    await mesh[1].stop()
    await until(lambda: (MemberChange.LEFT, "1002") in changes)
    assert threads == {"MainThread"}
    assert (MemberChange.FAILED, "1002") not in changes
    await asyncio.gather(*(pools.stop() for pools in (mesh[0], *mesh[2:])))


async def test_members_that_leave_together_do_not_wait_for_news_to_travel_that_nobody_needs(tmp_path: Path) -> None:
    ports = [{LAN: free_port(), WAN: free_port()} for _ in range(2)]
    mesh = [
        pools_of("us", 1001 + row, own, ports[0][WAN], tmp_path, leave_propagate_s=60.0)
        for row, own in enumerate(ports)
    ]
    for pools in mesh:
        await pools.start()
    for pools in mesh:
        await until(lambda pools=pools: len(alive(pools, WAN)) == len(alive(pools, LAN)) == 2)  # type: ignore[misc]
    async with asyncio.timeout(30):
        await asyncio.gather(*(pools.stop() for pools in mesh))


async def test_a_taken_port_ends_the_start_and_frees_the_other_pool(tmp_path: Path) -> None:
    ports = {LAN: free_port(), WAN: free_port()}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports[WAN]))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            await pools_of("us", 1001, ports, ports[WAN], tmp_path).start()
    again = pools_of("us", 1001, ports, ports[WAN], tmp_path)
    await again.start()
    assert alive(again, LAN) == {"1001"}
    await again.stop()
