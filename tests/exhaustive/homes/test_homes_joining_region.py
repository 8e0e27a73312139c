"""Every schedule of a small stream whose home is taken away while one more region joins the mesh.

Two regions hold a stream, a third joins at any time; a record is acknowledged when the home and one mirror hold it
(k = 2). The home can be lost for good: an attempt ends without it once answers_needed of the regions that it asked have
promised. What joined since may have acknowledged records with the home, so the attempt has to begin anew with it; the
models find the schedule that loses a record where it goes on.

The same with publishes at geo:majority of a topic that says nothing about levels: what two of three regions
acknowledged is to be kept when four are asked. Where the level to keep is a majority of those four, it can be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from georelay.durability import Durability
from georelay.ids import Epoch, Offset, RegionNumber
from mesh.home.promise_core import agreeing_length, answers_needed, table_after
from mesh.replication.ports import EpochRow
from region.controller.topic import Homes, TopicDefinition
from region.homes.levels import protected_level

REGIONS = range(4)
FIRST_REGIONS = frozenset({0, 1, 2})
JOINING = 3
LEVEL = 2
RECORDS_MAX = 1
EPOCH_LAST = 3
TOPIC = TopicDefinition(
    name="orders", topic_id=b"t" * 16, partitions=1, replication_factor=1, homes=Homes.ONE, home=RegionNumber(1),
    retention_ms=-1, retention_bytes=-1, config=(), index=1,
)  # fmt: skip
LevelOf = Callable[[int], int]  # how many of so many regions


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


def at_level(_regions: int) -> int:
    return LEVEL


def majority(regions: int) -> int:
    return Durability.MAJORITY.regions_of(regions)


def shipping(regions: int) -> int:
    return protected_level(TOPIC, regions=regions)


def replicated(world: World, number: int, acked_at: LevelOf) -> Iterator[World]:
    """Bring one record to a mirror of the home's epoch; what enough regions hold then is acknowledged."""
    home, mirror = world.regions[world.home], world.regions[number]
    if number == world.home or number not in world.holders or mirror.fence > home.epoch or mirror.epoch != home.epoch:
        return
    if len(mirror.log) < len(home.log) and mirror.log == home.log[: len(mirror.log)]:
        longer = mirror._replace(log=home.log[: len(mirror.log) + 1])
        after = with_region(world, number, longer)
        copies = [len(region.log) for region in after.regions if region.epoch == home.epoch]
        needed = acked_at(len(world.holders))
        held = {
            (epoch, offset)
            for offset, epoch in enumerate(longer.log)
            if sum(length > offset for length in copies) >= needed
        }
        yield after._replace(acked=world.acked | held)


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


def ended(world: World, kept: LevelOf, *, anew: bool) -> Iterator[World]:
    if not world.attempt:
        return
    needed = answers_needed(regions=len(world.asked), level=kept(len(world.asked)))
    if len(world.answers) < needed or (anew and world.holders - world.asked):
        return
    length, number = max(world.answers)
    opened = Region(world.regions[number].log[:length], world.attempt, world.attempt)
    table = table_after(world.table, epoch=Epoch(world.attempt), start=Offset(length))
    yield with_region(world, number, opened)._replace(table=table, home=number, attempt=0, answers=())


def next_worlds(world: World, *, anew: bool, acked_at: LevelOf, kept: LevelOf) -> Iterator[World]:
    yield from published(world)
    yield from joined(world)
    yield from begun(world, anew=anew)
    yield from ended(world, kept, anew=anew)
    for number in REGIONS:
        yield from replicated(world, number, acked_at)
        yield from promised(world, number)


def losing(*, anew: bool, acked_at: LevelOf = at_level, kept: LevelOf = at_level) -> World | None:
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
        for after in next_worlds(world, anew=anew, acked_at=acked_at, kept=kept):
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


def test_no_schedule_loses_what_a_majority_acknowledged_before_a_region_joined_a_topic_without_levels() -> None:
    assert losing(anew=True, acked_at=majority, kept=shipping) is None


def test_a_majority_of_the_regions_that_are_asked_loses_what_a_majority_of_fewer_acknowledged() -> None:
    world = losing(anew=True, acked_at=majority, kept=majority)
    assert world is not None and JOINING in world.asked | world.holders
