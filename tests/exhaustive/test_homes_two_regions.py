"""Every schedule of a small mesh of two regions: planned moves, a link that is cut, a region lost for good, recovery.

With two voters mesh control has a majority only while both reach each other. A cut stops nobody: the home goes on, and
only homes do not move. When an operator says that the other region is lost, `control recover` makes the survivor the
only voter of a new generation, which may then force homes to itself; the other one, when it comes back after all,
follows the higher generation, and what it published meanwhile is an orphan branch.

The shipping book and agreeing prefix; two records, three epochs. A record is geo-acknowledged when both regions hold
it in one epoch (k = 2 of 2: one promise is enough).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from georelay.ids import Epoch, Offset
from mesh.home.promise_core import agreeing_length, answers_needed, table_after
from mesh.replication.ports import EpochRow

ONE, TWO = 0, 1
RECORDS_MAX = 3
EPOCH_LAST = 3
GENERATION_LAST = 2
Table = tuple[EpochRow, ...]


class Known(NamedTuple):
    """What a region's control says: a later generation, or more commands of the same, is right."""

    generation: int
    table: Table
    home: int
    moving: int  # epoch of the attempt under way, 0 for none
    last_epoch: int
    voters: tuple[int, ...]


class Region(NamedTuple):
    log: tuple[int, ...]
    epoch: int
    fence: int
    sealed: bool
    known: Known
    orphans: int


class World(NamedTuple):
    regions: tuple[Region, Region]
    is_linked: bool
    acked: frozenset[tuple[int, int]]


def rows_of(log: tuple[int, ...]) -> list[EpochRow]:
    rows: list[EpochRow] = [(Epoch(1), Offset(0))]
    for offset, epoch in enumerate(log):
        if epoch != rows[-1][0]:
            rows.append((Epoch(epoch), Offset(offset)))
    return rows


def put(world: World, number: int, region: Region) -> World:
    regions = (region, world.regions[TWO]) if number == ONE else (world.regions[ONE], region)
    return world._replace(regions=regions)


def may_publish(region: Region, number: int) -> bool:
    known = region.known
    is_open = region.epoch == known.table[-1][0] and region.fence <= region.epoch
    return known.home == number and is_open and not region.sealed


def published(world: World, number: int) -> Iterator[World]:
    region = world.regions[number]
    if may_publish(region, number) and len(region.log) < RECORDS_MAX:
        yield put(world, number, region._replace(log=(*region.log, region.epoch)))


def replicated(world: World, number: int) -> Iterator[World]:
    """Bring a record or an epoch to the mirror, from whoever it takes for its home."""
    mirror, home = world.regions[number], world.regions[1 - number]
    if not world.is_linked or mirror.known != home.known:
        return
    table = mirror.known.table
    following = next((row for row in table if row[0] > mirror.epoch), None)
    if following is not None and len(mirror.log) >= following[1]:
        kept = mirror.log[: following[1]]
        if kept != home.log[: following[1]]:
            return  # DIVERGED
        opened = mirror._replace(
            log=kept, epoch=following[0], fence=max(mirror.fence, following[0]), sealed=False,
            orphans=mirror.orphans + len(mirror.log) - len(kept),
        )  # fmt: skip
        yield counted(put(world, number, opened))
        return
    serves = home.epoch >= max(mirror.epoch, mirror.fence if mirror.known.home != number else 0)
    if serves and len(mirror.log) < len(home.log) and mirror.log == home.log[: len(mirror.log)]:
        yield counted(put(world, number, mirror._replace(log=(*mirror.log, home.log[len(mirror.log)]))))


def counted(world: World) -> World:
    """Count what both hold in one epoch."""
    one, two = world.regions
    if one.epoch != two.epoch:
        return world
    both = min(len(one.log), len(two.log))
    held = {(epoch, offset) for offset, epoch in enumerate(one.log[:both]) if two.log[offset] == epoch}
    return world._replace(acked=world.acked | held)


def committed(world: World, number: int, known: Known) -> World:
    """Let control commit: everybody who is reached and of that generation knows."""
    world = put(world, number, world.regions[number]._replace(known=known))
    if world.is_linked:
        world = put(world, 1 - number, world.regions[1 - number]._replace(known=known))
    return world


def planned(world: World) -> Iterator[World]:
    """Seal the home, and once the target has everything commit the new epoch."""
    known = world.regions[ONE].known
    if not world.is_linked or known != world.regions[TWO].known:
        return
    home, target = world.regions[known.home], world.regions[1 - known.home]
    if not known.moving and known.last_epoch < EPOCH_LAST and home.epoch == known.table[-1][0]:
        moving = known._replace(moving=known.last_epoch + 1, last_epoch=known.last_epoch + 1)
        begun = committed(world, known.home, moving)
        yield put(begun, known.home, begun.regions[known.home]._replace(sealed=True))
    if known.moving and home.sealed and target.log == home.log:
        table = table_after(known.table, epoch=Epoch(known.moving), start=Offset(len(home.log)))
        yield committed(world, known.home, known._replace(table=table, home=1 - known.home, moving=0))


def recovered(world: World, number: int) -> Iterator[World]:
    known = world.regions[number].known
    if not world.is_linked and known.generation < GENERATION_LAST and world.regions[1 - number].known.generation == 1:
        fresh = known._replace(generation=known.generation + 1, moving=0, voters=(number,))
        yield put(world, number, world.regions[number]._replace(known=fresh))


def forced(world: World, number: int) -> Iterator[World]:
    """The survivor promises, and is home from where its log agrees."""
    region = world.regions[number]
    known = region.known
    if known.voters != (number,) or known.last_epoch >= EPOCH_LAST or world.is_linked:
        return
    assert answers_needed(regions=2, level=2) == 1
    start = agreeing_length(rows_of(region.log), end=Offset(len(region.log)), table=known.table)
    epoch = known.last_epoch + 1
    table = table_after(known.table, epoch=Epoch(epoch), start=start)
    now = known._replace(table=table, home=number, moving=0, last_epoch=epoch)
    orphans = region.orphans + len(region.log) - start
    yield put(world, number, Region(region.log[:start], epoch, epoch, False, now, orphans))


def linked(world: World) -> Iterator[World]:
    """Cut the link, or heal it: the higher generation is followed, and the other region votes again."""
    if world.is_linked:
        yield world._replace(is_linked=False)
        return
    newest = max((region.known for region in world.regions), key=lambda known: (known.generation, known.last_epoch))
    newest = newest._replace(voters=(ONE, TWO))
    regions = tuple(region._replace(known=newest) for region in world.regions)
    yield world._replace(is_linked=True, regions=(regions[0], regions[1]))


def next_worlds(world: World) -> Iterator[World]:
    yield from planned(world)
    yield from linked(world)
    for number in (ONE, TWO):
        yield from published(world, number)
        yield from replicated(world, number)
        yield from recovered(world, number)
        yield from forced(world, number)


def every_world() -> dict[World, World | None]:
    known = Known(1, ((Epoch(1), Offset(0)),), ONE, 0, 1, (ONE, TWO))
    start = World((Region((), 1, 1, False, known, 0), Region((), 1, 1, False, known, 0)), True, frozenset())
    came_from: dict[World, World | None] = {start: None}
    edge = [start]
    while edge:
        world = edge.pop()
        for after in next_worlds(world):
            if after not in came_from:
                came_from[after] = world
                edge.append(after)
    return came_from


WORLDS = every_world()


def newest_home(world: World) -> Region:
    known = max((region.known for region in world.regions), key=lambda known: (known.generation, known.last_epoch))
    return world.regions[known.home]


def test_no_schedule_loses_what_both_regions_acknowledged() -> None:
    for world in WORLDS:
        home = newest_home(world)
        if home.epoch == home.known.table[-1][0]:
            assert world.acked <= {(epoch, offset) for offset, epoch in enumerate(home.log)}


def test_a_cut_stops_no_home_that_was_not_sealed() -> None:
    for world, before in WORLDS.items():
        if before is not None and before.is_linked and not world.is_linked:
            for number in (ONE, TWO):
                assert may_publish(world.regions[number], number) == may_publish(before.regions[number], number)


def test_planned_moves_make_no_orphan_branch() -> None:
    assert all(region.orphans == 0 for world in WORLDS for region in world.regions if region.known.generation == 1)


def test_a_region_that_was_lost_for_good_is_replaced_and_follows_when_it_comes_back() -> None:
    ends = [
        world
        for world in WORLDS
        if world.is_linked
        and world.regions[ONE].known.generation == 2
        and world.regions[ONE].log == world.regions[TWO].log
        and world.regions[ONE].epoch == world.regions[TWO].epoch == world.regions[ONE].known.table[-1][0]
    ]
    assert any(world.regions[ONE].orphans > 0 for world in ends), "no schedule made an orphan branch and healed"
    assert any(may_publish(world.regions[number], number) for world in ends for number in (ONE, TWO))


def test_two_homes_at_once_never_have_the_same_epoch() -> None:
    for world in WORLDS:
        homes = [region.epoch for number, region in enumerate(world.regions) if may_publish(region, number)]
        assert len(homes) == len(set(homes))
