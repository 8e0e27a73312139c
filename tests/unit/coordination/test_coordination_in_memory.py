"""Coordinators in memory behave as the replicated ones do, and time passes when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from georelay.errors import CoordinatorUnavailable, NotCoordinator, NotLeader, OutcomeUnknown, TooLarge
from region.coordination.in_memory import InMemoryClock, InMemoryCoordinatorLog, InMemoryCoordinators
from region.coordination.limits import COMMAND_BYTES_MAX
from region.coordination.part import Part

Make = Callable[..., Any]


def led(make_notes: Make) -> tuple[InMemoryCoordinatorLog, Any]:
    log = InMemoryCoordinatorLog()
    notes = make_notes(log)
    log.add(notes)
    log.elect()
    return log, notes


async def test_commands_commit_in_a_later_turn_and_together(make_notes: Make) -> None:
    log, notes = led(make_notes)
    first, second = log.propose(Part.GROUPS, b"a"), log.propose(Part.GROUPS, b"b")
    assert not notes.commands
    assert (await first, await second) == (1, 1)
    assert await log.propose(Part.GROUPS, b"c") == 2
    assert notes.commands == ["a", "b", "c"]


async def test_held_commands_commit_when_they_are_released(make_notes: Make) -> None:
    log, notes = led(make_notes)
    log.hold()
    future = log.propose(Part.GROUPS, b"a")
    await asyncio.sleep(0)
    assert not future.done()
    log.release()
    assert future.done() and notes.commands == ["a"]


async def test_a_deposed_leader_takes_no_commands_and_loses_those_under_way(make_notes: Make) -> None:
    log, notes = led(make_notes)
    log.hold()
    lost = log.propose(Part.GROUPS, b"a")
    log.depose(leader=1002)
    with pytest.raises(OutcomeUnknown):
        await lost
    with pytest.raises(NotLeader):
        log.propose(Part.GROUPS, b"b")
    assert notes.story == ["elected after 0", "deposed"] and not notes.commands


async def test_another_replica_and_a_restart_have_the_same_state(make_notes: Make) -> None:
    log, notes = led(make_notes)
    await log.propose(Part.GROUPS, b"a")
    follower = make_notes(log)
    log.replay(follower)
    assert follower.commands == notes.commands == ["a"]
    again: Any = log.restart(make_notes)
    assert again.commands == ["a"] and notes.story[-1] == "closed"
    await log.propose(Part.GROUPS, b"b")
    assert again.commands == ["a", "b"]


async def test_too_large_commands_are_refused(make_notes: Make) -> None:
    log, _ = led(make_notes)
    with pytest.raises(TooLarge):
        log.propose(Part.GROUPS, bytes(COMMAND_BYTES_MAX + 1))


def test_timers_fire_in_order_each_at_its_time_unless_cancelled() -> None:
    clock = InMemoryClock()
    fired: list[tuple[str, int]] = []
    clock.call_later(2, lambda: fired.append(("b", clock.monotonic_ns())))
    clock.call_later(1, lambda: fired.append(("a", clock.monotonic_ns())))
    clock.call_later(1, lambda: fired.append(("never", 0))).cancel()
    clock.call_later(9, lambda: fired.append(("later", 0)))
    clock.advance(5)
    assert fired == [("a", 1_000_000_000), ("b", 2_000_000_000)]
    assert (clock.monotonic_ns(), clock.timers) == (5_000_000_000, 1)


async def test_calls_reach_the_part_of_the_key_as_json(make_notes: Make) -> None:
    coordinators = InMemoryCoordinators()
    coordinators.register(Part.GROUPS, make_notes)
    answer = await coordinators.call(Part.GROUPS, "k", "add", {"command": "a"}, principal="User:alice")
    assert answer == {"index": 1, "partition": coordinators.partition_of("k"), "principal": "User:alice"}
    assert len(await coordinators.gather(Part.GROUPS, "list", {})) == 8
    with pytest.raises(TypeError):
        await coordinators.call(Part.GROUPS, "k", "add", {"command": b"bytes"})
    with pytest.raises(ValueError, match="already"):
        coordinators.register(Part.GROUPS, make_notes)


async def test_without_a_leader_nobody_answers(make_notes: Make) -> None:
    coordinators = InMemoryCoordinators()
    coordinators.register(Part.GROUPS, make_notes)
    log = coordinators.logs[coordinators.partition_of("k")]
    log.depose(leader=1002)
    with pytest.raises(NotCoordinator) as refused:
        coordinators.part_here("k", Part.GROUPS)
    assert refused.value.leader == coordinators.leader_of("k") == 1002
    assert len(list(coordinators.parts_here(Part.GROUPS))) == 7
    log.depose()
    with pytest.raises(CoordinatorUnavailable):
        await coordinators.ready("k")
