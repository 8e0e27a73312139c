"""Every schedule of a small stream in three regions whose home moves because it does not answer.

Two records' worth of offsets and three epochs; regions publish, replicate, promise one by one, are asked again by a
further attempt, come back with an orphan branch, and raise their epoch when their log reaches its start. A record is
geo-acknowledged when home and one mirror hold it in the home's epoch (k = 2 of n = 3, so 2 regions have to promise).

The shipped rule compares the lengths of logs that AGREE with the epoch table. Two others compare high watermarks, and
(fencing epoch, high watermark): both lose acknowledged records, and these models find the schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from georelay.ids import Epoch, Offset
from mesh.home.promise_core import agreeing_length, answers_needed, table_after
from mesh.replication.ports import EpochRow

REGIONS = range(3)
LEVEL = 2
RECORDS_MAX = 2
EPOCH_LAST = 3
NEEDED = answers_needed(regions=len(REGIONS), level=LEVEL)


class Region(NamedTuple):
    log: tuple[int, ...]  # the epoch that sequenced each offset; (epoch, offset) names a record
    epoch: int  # of the newest EPOCH entry
    fence: int  # highest epoch promised


class World(NamedTuple):
    regions: tuple[Region, ...]
    table: tuple[EpochRow, ...]
    home: int
    attempt: int  # epoch of the attempt under way, 0 for none
    answers: tuple[tuple[int, int, int], ...]  # (region, fence before, length) of those that promised it
    last_epoch: int
    acked: frozenset[tuple[int, int]]  # (epoch, offset)


Rule = Callable[[World], tuple[int, int]]  # (region, start)


def rows_of(region: Region) -> list[EpochRow]:
    """Return the epochs of a log as its EPOCH entries say them."""
    rows: list[EpochRow] = [(Epoch(1), Offset(0))]
    for offset, epoch in enumerate(region.log):
        if epoch != rows[-1][0]:
            rows.append((Epoch(epoch), Offset(offset)))
    return rows


def by_agreeing_prefix(world: World) -> tuple[int, int]:
    best = max(world.answers, key=lambda answer: answer[2])
    return best[0], best[2]


def by_high_watermark(world: World) -> tuple[int, int]:
    best = max(world.answers, key=lambda answer: len(world.regions[answer[0]].log))
    return best[0], len(world.regions[best[0]].log)


def by_epoch_and_high_watermark(world: World) -> tuple[int, int]:
    best = max(world.answers, key=lambda answer: (answer[1], len(world.regions[answer[0]].log)))
    return best[0], len(world.regions[best[0]].log)


def with_region(world: World, number: int, region: Region) -> World:
    regions = list(world.regions)
    regions[number] = region
    return world._replace(regions=tuple(regions))


def published(world: World) -> Iterator[World]:
    home = world.regions[world.home]
    if home.epoch == world.table[-1][0] and home.fence <= home.epoch and len(home.log) < RECORDS_MAX:
        yield with_region(world, world.home, home._replace(log=(*home.log, home.epoch)))


def acknowledged(world: World, mirror: Region) -> World:
    """Count what a mirror holds in the home's own epoch."""
    if mirror.epoch != world.regions[world.home].epoch:
        return world
    held = ((epoch, offset) for offset, epoch in enumerate(mirror.log))
    return world._replace(acked=world.acked.union(held))


def replicated(world: World, number: int, *, fences: bool = True) -> Iterator[World]:
    """Bring one record, or the next epoch, to a mirror that the home may serve."""
    home, mirror = world.regions[world.home], world.regions[number]
    if number == world.home or home.epoch != world.table[-1][0] or (fences and mirror.fence > home.epoch):
        return
    following = next((row for row in world.table if row[0] > mirror.epoch), None)
    length = len(mirror.log)
    if following is not None and length >= following[1]:
        if mirror.log[: following[1]] != home.log[: following[1]]:
            return  # DIVERGED
        raised = Region(mirror.log[: following[1]], following[0], max(mirror.fence, following[0]))
        yield acknowledged(with_region(world, number, raised), raised)
    elif length < len(home.log) and mirror.log == home.log[:length]:
        longer = mirror._replace(log=(*mirror.log, home.log[length]))
        yield acknowledged(with_region(world, number, longer), longer)


def begun(world: World) -> Iterator[World]:
    if world.last_epoch < EPOCH_LAST:
        yield world._replace(attempt=world.last_epoch + 1, answers=(), last_epoch=world.last_epoch + 1)


def promised(world: World, number: int) -> Iterator[World]:
    region = world.regions[number]
    if not world.attempt or region.fence >= world.attempt:
        return
    length = agreeing_length(rows_of(region), end=Offset(len(region.log)), table=world.table)
    answers = tuple(sorted((*world.answers, (number, region.fence, length))))
    yield with_region(world, number, region._replace(fence=world.attempt))._replace(answers=answers)


def ended(world: World, rule: Rule, *, needed: int) -> Iterator[World]:
    """Commit the new epoch; the chosen region opens it."""
    if len(world.answers) < needed:
        return
    number, start = rule(world)
    opened = Region(world.regions[number].log[:start], world.attempt, world.attempt)
    table = table_after(world.table, epoch=Epoch(world.attempt), start=Offset(start))
    yield with_region(world, number, opened)._replace(table=table, home=number, attempt=0, answers=())


def next_worlds(world: World, rule: Rule, *, needed: int = NEEDED, fences: bool = True) -> Iterator[World]:
    yield from published(world)
    yield from begun(world)
    yield from ended(world, rule, needed=needed)
    for number in REGIONS:
        yield from replicated(world, number, fences=fences)
        yield from promised(world, number)


def lost(world: World) -> frozenset[tuple[int, int]]:
    """Return what was acknowledged and is not in the home's history once its epoch is open."""
    home = world.regions[world.home]
    return world.acked - {(epoch, offset) for offset, epoch in enumerate(home.log)}


def first_loss(rule: Rule, *, needed: int = NEEDED, fences: bool = True) -> list[World]:
    """Return the shortest schedule that loses an acknowledged record, [] when none of all does."""
    start = Region((), 1, 1)
    world = World((start,) * 3, ((Epoch(1), Offset(0)),), 0, 0, (), 1, frozenset())
    came_from: dict[World, World | None] = {world: None}
    edge = [world]
    while edge:
        following: list[World] = []
        for world in edge:
            for after in next_worlds(world, rule, needed=needed, fences=fences):
                if after in came_from:
                    continue
                came_from[after] = world
                if lost(after):
                    return _schedule(came_from, after)
                following.append(after)
        edge = following
    return []


def _schedule(came_from: dict[World, World | None], last: World) -> list[World]:
    schedule = [last]
    while (before := came_from[schedule[-1]]) is not None:
        schedule.append(before)
    return schedule[::-1]


def test_no_schedule_loses_a_geo_acknowledged_record_when_agreeing_prefixes_are_compared() -> None:
    assert first_loss(by_agreeing_prefix) == []


def test_a_returning_home_with_an_orphan_branch_wins_when_high_watermarks_are_compared() -> None:
    schedule = first_loss(by_high_watermark)
    assert schedule and lost(schedule[-1])


def test_a_region_that_only_promised_wins_when_fencing_epochs_and_high_watermarks_are_compared() -> None:
    schedule = first_loss(by_epoch_and_high_watermark)
    assert schedule and lost(schedule[-1])


def test_one_promise_too_few_loses_an_acknowledged_record() -> None:
    assert NEEDED == 2
    assert first_loss(by_agreeing_prefix, needed=NEEDED - 1)


def test_a_promise_that_does_not_fence_loses_an_acknowledged_record() -> None:
    assert first_loss(by_agreeing_prefix, fences=False)
