"""Every schedule of a small stream whose home is taken away while one more region joins the mesh.

Two regions hold a stream, a third joins at any time; a record is acknowledged when the home and one mirror hold it
(k = 2). The home can be lost for good: an attempt ends without it once answers_needed of the regions that it asked have
promised. What joined since may have acknowledged records with the home, so the attempt has to begin anew with it; the
models find the schedule that loses a record where it goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from georelay.ids import Epoch, Offset
from mesh.home.promise_core import agreeing_length, answers_needed, table_after
from mesh.replication.ports import EpochRow

REGIONS = range(4)
FIRST_REGIONS = frozenset({0, 1, 2})
JOINING = 3
LEVEL = 2
RECORDS_MAX = 1
EPOCH_LAST = 3


class Region(NamedTuple):
    log: tuple[int, ...]  # the epoch that sequenced each offset
    epoch: int
    fence: int


class World(NamedTuple):
    regions: tuple[Region, ...]
    table: tuple[EpochRow, ...]
    home: int
    holders: frozenset[int]
    attempt: int  # epoch of the attempt under way, 0 for none
    asked: frozenset[int]
    answers: tuple[tuple[int, int], ...]  # (length, region) of those that promised it
    last_epoch: int
    acked: frozenset[tuple[int, int]]  # (epoch, offset)


def with_region(world: World, number: int, region: Region) -> World:
    regions = list(world.regions)
    regions[number] = region
    return world._replace(regions=tuple(regions))


def published(world: World) -> Iterator[World]:
    home = world.regions[world.home]
    if home.epoch == world.table[-1][0] and home.fence <= home.epoch and len(home.log) < RECORDS_MAX:
        yield with_region(world, world.home, home._replace(log=(*home.log, home.epoch)))


def replicated(world: World, number: int) -> Iterator[World]:
    """Bring one record to a mirror of the home's epoch; records that both hold are acknowledged."""
    home, mirror = world.regions[world.home], world.regions[number]
    if number == world.home or number not in world.holders or mirror.fence > home.epoch or mirror.epoch != home.epoch:
        return
    if len(mirror.log) < len(home.log) and mirror.log == home.log[: len(mirror.log)]:
        longer = mirror._replace(log=home.log[: len(mirror.log) + 1])
        held = {(epoch, offset) for offset, epoch in enumerate(longer.log)}
        yield with_region(world, number, longer)._replace(acked=world.acked | held)


def joined(world: World) -> Iterator[World]:
    if JOINING not in world.holders:
        yield world._replace(holders=world.holders | {JOINING})


def begun(world: World, *, anew: bool) -> Iterator[World]:
    """Begin an attempt, or begin it anew because a region joined."""
    is_due = not world.attempt or (anew and world.asked != world.holders)
    if is_due and world.last_epoch < EPOCH_LAST:
        epoch = world.last_epoch + 1
        yield world._replace(attempt=epoch, asked=world.holders, answers=(), last_epoch=epoch)


def promised(world: World, number: int) -> Iterator[World]:
    region = world.regions[number]
    if not world.attempt or number not in world.asked or region.fence >= world.attempt:
        return
    rows = [(Epoch(1), Offset(0))] if region.epoch == 1 else list(world.table)
    length = agreeing_length(rows, end=Offset(len(region.log)), table=world.table)
    answers = tuple(sorted((*world.answers, (length, number))))
    yield with_region(world, number, region._replace(fence=world.attempt))._replace(answers=answers)


def ended(world: World, *, anew: bool) -> Iterator[World]:
    needed = answers_needed(regions=len(world.asked), level=LEVEL)
    if not world.attempt or len(world.answers) < needed or (anew and world.holders - world.asked):
        return
    length, number = max(world.answers)
    opened = Region(world.regions[number].log[:length], world.attempt, world.attempt)
    table = table_after(world.table, epoch=Epoch(world.attempt), start=Offset(length))
    yield with_region(world, number, opened)._replace(table=table, home=number, attempt=0, answers=())


def next_worlds(world: World, *, anew: bool) -> Iterator[World]:
    yield from published(world)
    yield from joined(world)
    yield from begun(world, anew=anew)
    yield from ended(world, anew=anew)
    for number in REGIONS:
        yield from replicated(world, number)
        yield from promised(world, number)


def losing(*, anew: bool) -> World | None:
    """Return a world in which the home lacks an acknowledged record, None when no schedule leads to one."""
    start = World(
        (Region((), 1, 1),) * len(REGIONS), ((Epoch(1), Offset(0)),), 0, FIRST_REGIONS, 0, frozenset(), (), 1,
        frozenset(),
    )  # fmt: skip
    seen, edge = {start}, [start]
    while edge:
        world = edge.pop()
        home = world.regions[world.home]
        if world.acked - {(epoch, offset) for offset, epoch in enumerate(home.log)}:
            return world
        for after in next_worlds(world, anew=anew):
            if after not in seen:
                seen.add(after)
                edge.append(after)
    assert len(seen) > 1_000
    return None


def test_no_schedule_loses_an_acknowledged_record_when_attempts_begin_anew_with_a_region_that_joined() -> None:
    assert losing(anew=True) is None


def test_an_attempt_that_ends_without_a_region_that_joined_loses_what_that_one_acknowledged() -> None:
    world = losing(anew=False)
    assert world is not None
    assert JOINING in world.holders and JOINING not in world.asked
