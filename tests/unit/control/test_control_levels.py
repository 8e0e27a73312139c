"""A region that joins reads what the mesh writes: links refuse its older brokers, control refuses an older region."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from georelay.errors import PolicyViolation
from georelay.ids import BrokerId, RegionNumber
from mesh.replication.frames import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from mesh.replication.link_parts import Open
from region.broker.mesh_wiring import level_read_by, refusal_of_older
from region.control.leader_duties import ControlDuties
from region.control.regions_part import RegionsPart, founded
from region.controller.command_kinds import FEATURE_LEVEL_MAX
from region.controller.mesh_book import MeshBook
from region.controller.mesh_rows import RegionRow, RegionState, level_of

AP = RegionNumber(3)
JOINS = RegionRow(number=AP, name="ap")


def rows(us: int, eu: int) -> list[RegionRow]:
    return [
        RegionRow(number=RegionNumber(n), name=name, brokers=(BrokerId(n * 1000 + 1),), level=level, index=1)
        for n, name, level in ((1, "us", us), (2, "eu", eu))
    ]


def refusal(known: list[RegionRow], version: int, number: int = 3) -> str:
    book = MeshBook()
    book.regions = {row.number: row for row in known}
    state = SimpleNamespace(topology=SimpleNamespace(region=RegionNumber(1)), mesh=book)
    judge = refusal_of_older(SimpleNamespace(state=state))  # type: ignore[arg-type]
    return judge(Open(version, "m", "ap", RegionNumber(number), BrokerId(number * 1000 + 1)))


def test_this_version_of_the_link_protocol_says_that_its_brokers_read_what_this_version_writes() -> None:
    assert level_read_by(PROTOCOL_VERSION) == FEATURE_LEVEL_MAX


def test_an_older_broker_of_a_region_that_joins_is_refused_in_words_that_say_what_to_do() -> None:
    text = refusal([*rows(8, 8), JOINS], 4)
    assert text == (
        "broker 3001 speaks link protocol 4 and may not read feature level 8, which all regions are at: start a newer "
        "version in region ap"
    )
    assert refusal(rows(8, 8), 4) == text  # also where its region is not known yet
    assert refusal([*rows(8, 7), JOINS], 4)
    assert refusal([*rows(8, 8), JOINS], PROTOCOL_VERSION) == ""


@pytest.mark.parametrize(
    ("known", "number"),
    [
        (rows(8, 6), 3),  # the mesh writes nothing yet that they do not read
        (rows(8, 0), 3),  # eu was there when control was founded, and did not say its level yet
        (rows(8, 8), 2),  # it has said its level, and judges its own brokers
        (rows(8, 8), 1),  # our own
        ([], 2),  # before mesh control
        ([JOINS], 3),
    ],
)
def test_nobody_else_is_refused_whatever_version_it_speaks(known: list[RegionRow], number: int) -> None:
    assert refusal(known, PROTOCOL_VERSION_MIN, number) == ""


def test_the_level_of_the_mesh_is_that_of_its_lowest_region_and_those_that_left_or_said_nothing_do_not_count() -> None:
    left = RegionRow(number=RegionNumber(4), name="sa", state=RegionState.REMOVED, level=4)
    assert level_of([*rows(8, 7), JOINS, left]) == 7
    assert level_of([*rows(8, 7), replace(JOINS, brokers=(BrokerId(3001),), level=6)]) == 6
    assert level_of([]) == 0


async def test_a_region_that_joins_below_the_level_of_all_others_is_not_taken_in() -> None:
    regions = RegionsPart()
    regions.restore(founded("mesh", rows(8, 8)))
    regions.apply({"do": "add", "number": 3, "name": "ap", "seeds": [], "witness": False}, index=5, append_us=0)
    taken: list[Any] = []

    async def propose(_part: str, command: Any) -> None:
        taken.append(command["level"])
        regions.apply(command, index=6, append_us=0)

    duties = ControlDuties(SimpleNamespace(regions=regions, propose=propose))

    async def report(number: int, level: int) -> None:
        body = {"number": number, "brokers": [number * 1000 + 1], "level": level, "seeds": []}
        candidate = {"broker": 0, "address": "", "gone": []}
        await duties.methods["region.report"]({**body, "candidate": candidate}, BrokerId(number * 1000 + 1))

    with pytest.raises(PolicyViolation, match="ap is at feature level 7 and all others at 8: upgrade all its brokers"):
        await report(3, 7)
    assert not taken
    await report(3, 8)
    assert taken == [8]
    row = regions.row(AP)
    assert row is not None and row.has_begun and row.level == 8
