"""Membership with Debian's serf agent: join, tags, leave, fail, force-leave; both ways.

GEORELAY_INTEROP_QUIET_S (20) seconds in which nothing may happen in a pool of both; `make interop` takes a minute.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mesh.gossip.agent import Agent
from mesh.gossip.view import MemberChange, MemberStatus, MemberView

ALIVE = MemberStatus.ALIVE
QUIET_S = float(os.environ.get("GEORELAY_INTEROP_QUIET_S", "20"))
Make = Callable[..., Awaitable[Any]]
Until = Callable[..., Awaitable[float]]
Status = Callable[[Agent, str], MemberStatus | None]
Tags = Callable[[Agent, str], dict[str, str]]


async def both(serf: Any, ours: Agent, status: Status, until: Until) -> None:
    await until(lambda: status(ours, serf.name) is ALIVE, 5)

    async def seen() -> bool:
        return bool(await serf.status_of(ours.own_name) == "alive")

    await until(seen, 5)


async def test_we_join_a_serf_agent_within_a_second(make_serf: Make, make_ours: Make, status: Status) -> None:
    serf = await make_serf("go-1")
    ours = await make_ours("py-1")
    began = time.monotonic()
    assert await ours.join([serf.address]) == 1
    assert status(ours, "go-1") is ALIVE
    assert await serf.status_of("py-1") == "alive"
    assert time.monotonic() - began < 1


async def test_a_serf_agent_joins_us_within_a_second(
    make_serf: Make, make_ours: Make, status: Status, until: Until
) -> None:
    serf = await make_serf("go-1")
    ours = await make_ours("py-1")
    began = time.monotonic()
    await serf.run("join", f"127.0.0.1:{ours.address[1]}")
    await until(lambda: status(ours, "go-1") is ALIVE, 1)
    assert await serf.status_of("py-1") == "alive"
    assert time.monotonic() - began < 1


@pytest.mark.slow
async def test_a_pool_of_both_is_quiet(
    make_serf: Make, make_ours: Make, status: Status, tags: Tags, until: Until
) -> None:
    go = [await make_serf(f"go-{n}", "-tag", f"n={n}") for n in (1, 2)]
    py = [await make_ours(f"py-{n}", tags={"role": "broker", "n": str(n)}, seeds=[go[0].address]) for n in (1, 2)]
    await go[1].run("join", go[0].address)
    for agent in py:
        await until(
            lambda agent=agent: all(status(agent, name) is ALIVE for name in ("go-1", "go-2", "py-1", "py-2")), 5
        )
    events: list[tuple[MemberChange, str]] = []
    for agent in py:
        agent.listeners.on_member.append(lambda change, member: events.append((change, member.name)))
    await asyncio.sleep(QUIET_S)
    assert events == []
    for serf in go:
        text = serf.text()
        assert "EventMemberFailed" not in text
        assert "Suspect py" not in text
        assert "[ERR]" not in text
        assert "TCP but not UDP" not in text
    lines = await go[0].run("members")
    assert "role=broker" in lines
    assert tags(py[0], "go-2") == {"n": "2"}
    assert all(member.rtt_s is not None for member in py[0].members())


async def test_tags_change_both_ways_within_a_second(
    make_serf: Make, make_ours: Make, status: Status, tags: Tags, until: Until
) -> None:
    serf = await make_serf("go-1")
    ours = await make_ours("py-1", seeds=[serf.address])
    await both(serf, ours, status, until)
    await serf.run("tags", "-set", "color=blue")
    assert await until(lambda: tags(ours, "go-1") == {"color": "blue"}, 1) < 1
    await ours.change_tags({"role": "broker", "stalled": "stalled"})

    async def seen() -> bool:
        return "stalled=stalled" in await serf.run("members")

    assert await until(seen, 1) < 1


async def test_who_leaves_is_left_on_both_sides(make_serf: Make, make_ours: Make, status: Status, until: Until) -> None:
    go_1, go_2 = await make_serf("go-1"), await make_serf("go-2")
    py_1 = await make_ours("py-1", seeds=[go_1.address])
    py_2 = await make_ours("py-2", seeds=[go_1.address])
    await go_2.run("join", go_1.address)
    for serf in (go_1, go_2):
        await both(serf, py_1, status, until)
        await both(serf, py_2, status, until)
    changes: list[tuple[MemberChange, str]] = []

    def note(change: MemberChange, member: MemberView) -> None:
        changes.append((change, member.name))

    py_1.listeners.on_member.append(note)
    go_2.kill(signal.SIGINT)
    await py_2.stop()
    await until(lambda: status(py_1, "go-2") is MemberStatus.LEFT and status(py_1, "py-2") is MemberStatus.LEFT, 6)
    assert await go_1.status_of("py-2") == "left"
    assert sorted(changes) == [(MemberChange.LEFT, "go-2"), (MemberChange.LEFT, "py-2")]


@pytest.mark.slow
async def test_who_is_killed_fails_on_both_sides_and_a_forced_leave_of_either_side_turns_that_into_left(
    make_serf: Make, make_ours: Make, status: Status, until: Until
) -> None:
    go_1, go_2 = await make_serf("go-1"), await make_serf("go-2")
    py_1 = await make_ours("py-1", seeds=[go_1.address])
    py_2 = await make_ours("py-2", seeds=[go_1.address])
    await go_2.run("join", go_1.address)
    for serf in (go_1, go_2):
        await both(serf, py_1, status, until)
        await both(serf, py_2, status, until)
    go_2.kill()
    await py_2.stop(leave=False)
    await until(lambda: status(py_1, "go-2") is MemberStatus.FAILED and status(py_1, "py-2") is MemberStatus.FAILED, 20)

    async def failed_there() -> bool:
        return bool(await go_1.status_of("py-2") == "failed" and await go_1.status_of("go-2") == "failed")

    await until(failed_there, 20)
    await go_1.run("force-leave", "py-2")
    await until(lambda: status(py_1, "py-2") is MemberStatus.LEFT, 3)
    await py_1.make_leave("go-2")

    async def left_there() -> bool:
        return bool(await go_1.status_of("go-2") == "left")

    await until(left_there, 3)
    await py_1.make_leave("go-2", prune=True)
    await until(lambda: status(py_1, "go-2") is None, 3)


async def test_we_find_the_pool_again_after_a_kill_without_a_seed(
    make_serf: Make, make_ours: Make, status: Status, until: Until, tmp_path: Path
) -> None:
    serf = await make_serf("go-1")
    snapshot = tmp_path / "lan.snapshot"
    first = await make_ours("py-1", seeds=[serf.address], snapshot=snapshot)
    await both(serf, first, status, until)
    port = first.address[1]
    await first.stop(leave=False)
    second = await make_ours("py-1", listen=("127.0.0.1", port), snapshot=snapshot)
    assert await until(lambda: status(second, "go-1") is ALIVE, 3) < 3
    assert second.serf.memberlist.incarnation > 1
    assert await serf.status_of("py-1") == "alive"
