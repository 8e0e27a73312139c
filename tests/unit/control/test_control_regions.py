"""Regions join, drain and leave; their numbers and names are spent."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import BadRequest, PolicyViolation, Retry, Unavailable
from georelay.ids import BrokerId, RegionNumber
from region.control.regions_part import RegionsPart, founded
from region.controller.mesh_rows import RegionRow, RegionState


@pytest.fixture
def regions() -> RegionsPart:
    made = RegionsPart()
    rows = [
        RegionRow(number=RegionNumber(n), name=name, brokers=(BrokerId(n * 1000 + 1),), level=4, index=1)
        for n, name in ((1, "us"), (2, "eu"))
    ]
    made.restore(founded("mesh", rows))
    return made


def do(regions: RegionsPart, verb: str, number: int, index: int = 5, **more: Any) -> dict[str, Any]:
    return regions.apply({"do": verb, "number": number, **more}, index=index, append_us=0)["region"]  # type: ignore[return-value]


def add(regions: RegionsPart, number: int, name: str, index: int = 5, **more: Any) -> dict[str, Any]:
    return do(regions, "add", number, index, **{"name": name, "seeds": [], "witness": False} | more)


def test_a_region_that_joins_is_part_of_the_topology(regions: RegionsPart) -> None:
    row = add(regions, 3, "ap", seeds=["3001@10.0.0.1:19095"])
    assert (row["state"], row["index"]) == ("active", 5)
    assert [region.name for region in regions.topology().data_regions] == ["us", "eu", "ap"]


def test_the_same_wish_again_changes_nothing(regions: RegionsPart) -> None:
    first = add(regions, 3, "ap", index=5)
    assert add(regions, 3, "ap", index=6) == first


@pytest.mark.parametrize(
    ("number", "name", "text"),
    [(2, "ap", "is region eu already"), (3, "eu", "is, or was"), (3, "orders", "would look like")],
)
def test_numbers_and_names_that_are_taken_are_refused(regions: RegionsPart, number: int, name: str, text: str) -> None:
    regions.topic_names = lambda: ["orders.paid"]
    with pytest.raises(PolicyViolation, match=text):
        add(regions, number, name)


def test_a_seed_of_another_region_is_refused(regions: RegionsPart) -> None:
    with pytest.raises(Exception, match="not a broker of region 3"):
        add(regions, 3, "ap", seeds=["2001@10.0.0.1:19095"])


def test_a_region_with_homes_stays_and_the_refusal_names_them(regions: RegionsPart) -> None:
    regions.homes_in = lambda number: [f"orders partition {n}" for n in range(25)] if number == 2 else []
    with pytest.raises(PolicyViolation, match=r"home of 25 streams.*orders partition 19 and 5 more"):
        do(regions, "drain", 2)


def test_a_region_leaves_after_it_was_drained_and_its_number_is_spent(regions: RegionsPart) -> None:
    with pytest.raises(PolicyViolation, match="drain eu"):
        do(regions, "remove", 2)
    do(regions, "drain", 2)
    assert do(regions, "remove", 2)["state"] == "removed"
    assert do(regions, "remove", 2)["state"] == "removed"
    for number, name in ((2, "eu"), (2, "ap"), (3, "eu")):
        with pytest.raises(PolicyViolation):
            add(regions, number, name)
    assert [region.name for region in regions.topology().regions] == ["us", "eu"]  # its streams are still read
    assert [region.name for region in regions.topology().data_regions] == ["us"]


def test_a_home_that_moved_in_meanwhile_keeps_a_draining_region(regions: RegionsPart) -> None:
    do(regions, "drain", 2)
    regions.homes_in = lambda number: ["orders partition 0"] if number == 2 else []
    with pytest.raises(PolicyViolation, match="home of 1 streams"):
        do(regions, "remove", 2)


def test_a_drain_is_taken_back(regions: RegionsPart) -> None:
    do(regions, "drain", 2)
    assert do(regions, "keep", 2)["state"] == "active"


def test_the_last_region_that_stores_topics_stays(regions: RegionsPart) -> None:
    add(regions, 3, "quorum", witness=True)
    do(regions, "drain", 2)
    with pytest.raises(PolicyViolation, match="the only one"):
        do(regions, "drain", 1)


def test_a_report_changes_the_row_once(regions: RegionsPart) -> None:
    said = {"brokers": [2001, 2002], "level": 4, "seeds": []}
    assert do(regions, "report", 2, 7, **said)["index"] == 7
    assert do(regions, "report", 2, 8, **said)["index"] == 7


def test_a_region_that_nobody_let_in_is_told_how(regions: RegionsPart) -> None:
    with pytest.raises(PolicyViolation, match="georelay region add"):
        do(regions, "report", 9, brokers=[9001], level=4, seeds=[])


def test_an_unknown_wish_is_refused(regions: RegionsPart) -> None:
    with pytest.raises(BadRequest):
        do(regions, "dance", 1)


def test_a_witness_stores_nothing(regions: RegionsPart) -> None:
    add(regions, 3, "quorum", witness=True)
    assert regions.data_regions() == (1, 2)
    row = regions.row(3)
    assert row is not None and row.state is RegionState.ACTIVE


def test_regions_that_run_an_older_version_or_have_not_said_which_are_named(regions: RegionsPart) -> None:
    assert regions.older_regions(4) == []
    add(regions, 3, "ap")
    add(regions, 4, "wit", witness=True)
    assert regions.older_regions(4) == ["ap"]
    do(regions, "report", 3, brokers=[3001], level=4, seeds=[])
    assert regions.older_regions(4) == []
    assert regions.older_regions(5) == ["us", "eu", "ap"]


def test_a_broker_that_has_heard_of_no_region_yet_is_asked_again_later() -> None:
    with pytest.raises(Unavailable) as refused:
        RegionsPart().topology()
    assert refused.value.retry is Retry.LATER
