"""Every schedule of a small home that deletes and a mirror that is told to skip, late and more than once.

The home holds five records and deletes from the front; the mirror appends, commits, loses its uncommitted tail with
its leader, says HELLO, and is told to skip by answers that may be old or arrive twice. The shipped rule never gives up
a record that the mirror holds and never leaves a hole; two others do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from georelay.ids import Epoch, Offset
from mesh.replication.receiver_core import MirrorEnd, Verdict, judge_skip

RECORDS = 5
IN_FLIGHT_MAX = 2
TABLE = ((Epoch(1), Offset(0)),)


class World(NamedTuple):
    home_start: int
    first: int  # the mirror's log: first..next_offset - 1
    next_offset: int
    committed: int
    undone_to: tuple[int, int] | None  # (first, next) without a SKIP entry that is not committed yet
    skips: tuple[int, ...]  # the first offsets that answers on their way name


Rule = Callable[[World, int], bool]


def shipped(world: World, following: int) -> bool:
    end = MirrorEnd(epoch=Epoch(1), next_offset=Offset(world.next_offset), digest=bytes(16))
    verdict = judge_skip(end, session_epoch=Epoch(1), table=TABLE, last=Offset(following - 1))
    return verdict is Verdict.ACCEPT


def always(_world: World, _following: int) -> bool:
    return True


def above_what_is_committed(world: World, following: int) -> bool:
    return following > world.committed


def skip(world: World, following: int, *, rule: Rule) -> World:
    if not rule(world, following):
        return world
    before = world.undone_to or (world.first, world.committed)
    return world._replace(first=following, next_offset=following, undone_to=before)


def next_worlds(world: World, *, rule: Rule) -> Iterator[World]:
    if world.home_start < RECORDS:
        yield world._replace(home_start=world.home_start + 1)
    if world.home_start <= world.next_offset < RECORDS:
        yield world._replace(next_offset=world.next_offset + 1)
    if world.undone_to is not None:
        yield world._replace(committed=world.first, undone_to=None)
        yield world._replace(first=world.undone_to[0], next_offset=world.undone_to[1], undone_to=None)
    elif world.committed < world.next_offset:
        yield world._replace(committed=world.committed + 1)
        yield world._replace(next_offset=world.committed)
    if world.next_offset < world.home_start and len(world.skips) < IN_FLIGHT_MAX:
        yield world._replace(skips=(*world.skips, world.home_start))
    for row, following in enumerate(world.skips):
        yield skip(world, following, rule=rule)._replace(skips=world.skips[:row] + world.skips[row + 1 :])
        yield skip(world, following, rule=rule)  # the answer arrives again


def broken(before: World, following: int) -> str:
    """Return what is wrong with skipping to `following`."""
    if following <= before.next_offset:
        return "records that the mirror holds are given up, or stored twice"
    return "a record is given up that the home still stores" if following > before.home_start else ""


def violations(rule: Rule) -> set[str]:
    seen = {World(0, 0, 0, 0, None, ())}
    edge = list(seen)
    found: set[str] = set()
    while edge:
        world = edge.pop()
        found.update(broken(world, following) for following in world.skips if rule(world, following))
        for after in next_worlds(world, rule=rule):
            if after not in seen:
                seen.add(after)
                edge.append(after)
    return found - {""}


def test_no_schedule_gives_up_a_record_that_the_mirror_holds_or_the_home_stores() -> None:
    assert violations(shipped) == set()


@pytest.mark.parametrize("rule", [always, above_what_is_committed])
def test_a_rule_that_does_not_look_at_the_log_end_gives_up_records(rule: Rule) -> None:
    assert violations(rule)
