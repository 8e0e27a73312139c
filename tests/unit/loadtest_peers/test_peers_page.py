"""The page of a comparison: where we lose, the tables, the marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from loadtest.peers import page_core
from loadtest.peers.contenders import CONTENDERS, REGIONAL
from loadtest.peers.page_core import ONE_REGION, THREE_REGIONS, Part
from loadtest.peers.workloads import REGIONAL_WORKLOADS, WORKLOADS, Workload

PROMISES = {
    "georelay": ("synced on 2 of 3", "librdkafka", True),
    "Other": ("synced on 2 of 3", "other-py", True),
    "Careless": ("in memory", "other-py", False),
}


def _single(contender: str, p99_ms: float, number: int = 0, **more: Any) -> dict[str, Any]:
    figures = {"p50_ms": 1.0, "p99_ms": p99_ms, "p999_ms": 9.0, "cpu_s_per_100k": 50.0, "lag_p99_ms": 0.5}
    figures |= {"lost": 0, "unknown": 0}
    shared = {"client_cores": 0.2, "idle_share": 0.5, "load_average": 2.0, "began": f"2026-01-0{number + 1}"}
    return {
        "contender": contender,
        "version": "1",
        "workload": "single-1000",
        "round": number,
        "figures": {**figures, **shared, **more},
    }


def _page(*results: dict[str, Any]) -> str:
    return page_core.measured(results, ["machine: one"], PROMISES)


def test_the_first_paragraph_says_what_others_do_better_and_by_how_much() -> None:
    first = _page(_single("georelay", 8.0), _single("Other", 2.0), _single("Careless", 9.0)).partition("\n")[0]
    assert first == (
        "**We lose to brokers with the same durability** in p99 ms at 1000/s: 8.0 against Other 2.0. "
        "We lose nothing to brokers that acknowledge before a sync."
    )


def test_a_loss_whose_spreads_meet_is_told_as_such() -> None:
    ours = [_single("georelay", value, row) for row, value in enumerate((4.0, 6.0, 8.0))]
    theirs = [_single("Other", value, row) for row, value in enumerate((3.0, 4.0, 5.0))]
    assert "6.0 (4.0 to 8.0) against Other 4.0 (3.0 to 5.0) (the spreads meet)" in _page(*ours, *theirs)


def test_a_broker_that_did_not_keep_up_does_not_win_with_the_latencies_of_what_came() -> None:
    text = _page(_single("georelay", 8.0), _single("Other", 0.0, lost=900))
    assert text.startswith("We lose nothing to brokers with the same durability.")
    assert "| Other (other-py) | synced on 2 of 3 | did not keep up | did not keep up |" in text
    assert "| 50.0 |" in next(line for line in text.splitlines() if line.startswith("| Other"))


def test_a_rate_reached_in_some_rounds_is_told_of_those() -> None:
    rounds = [_single("Other", 5.0), _single("Other", 0.0, 1, unknown=3)]
    assert "| 1.00 | 5.0 |" in _page(_single("georelay", 8.0), *rounds)


def test_more_records_a_second_are_better() -> None:
    def bulk(contender: str, rate: float) -> dict[str, Any]:
        return {**_single(contender, 1.0, records_per_s=rate), "workload": "bulk-100"}

    assert "records/s of 100 B: 90,000 against Other 100,000" in _page(bulk("georelay", 9e4), bulk("Other", 1e5))
    assert "We lose nothing to brokers with the same durability." in _page(bulk("georelay", 2e5), bulk("Other", 1e5))


def test_every_figure_stands_beside_what_an_acknowledgement_promises() -> None:
    rows = [line for line in _page(_single("georelay", 8.0), _single("Careless", 2.0)).splitlines() if "|" in line]
    assert "| georelay (librdkafka) | synced on 2 of 3 | 1.00 | 8.0 |" in rows[2]
    assert "| Careless (other-py) | in memory | 1.00 | 2.0 |" in rows[3]


def test_a_figure_of_a_late_producer_is_marked() -> None:
    text = _page(_single("georelay", 8.0), _single("Other", 2.0, lag_p99_ms=2.1))
    assert "| 2.0 late |" in text
    assert "8.0 late" not in text


def test_a_rate_that_its_client_limits_is_marked() -> None:
    other = {**_single("Other", 1.0, records_per_s=5e3, client_cores=0.99), "workload": "bulk-100"}
    assert "| 5,000 client |" in _page(other)


def test_records_that_were_lost_are_summed_over_the_rounds() -> None:
    def kill(number: int, lost: int) -> dict[str, Any]:
        counts = {"sent": 1_000, "acknowledged": 999, "lost": lost, "twice": 0, "early": 0, "unknown": 1}
        return {**_single("Other", 1.0, number, max_ms=700.0, **counts), "workload": "kill"}

    assert "| Other | kill -9 | 2 | 2,000 | 1,998 | 3 | 0 | 0 | 2 |" in _page(kill(0, 1), kill(1, 2))


def test_a_busy_machine_is_told() -> None:
    assert "Other work ran beside" in _page(_single("georelay", 8.0, load_average=20.0))
    assert "Other work ran beside" not in _page(_single("georelay", 8.0))


def test_the_words_around_the_measured_part_stay() -> None:
    results = [_single("georelay", 8.0)]
    old = f"# Title\n\n{ONE_REGION.begin}\nold figures\n{ONE_REGION.end}\n\n## How\n\nWords.\n"
    new = page_core.page(results, ["machine"], PROMISES, old)
    assert new.startswith("# Title\n") and new.endswith("\n\n## How\n\nWords.\n")
    assert "old figures" not in new and "8.0" in new
    assert page_core.page(results, ["machine"], PROMISES, new) == new


def test_parts_of_the_page_are_written_anew_each_by_itself() -> None:
    here, machine = [_single("georelay", 8.0)], ["machine"]
    one = page_core.page(here, machine, PROMISES, "# Title\n")
    far = [_failover(name, 3) for name in ("georelay, region", "Other")]
    both = page_core.page(far, machine, REGIONAL_PROMISES, one, THREE_REGIONS)
    assert both.startswith(one) and THREE_REGIONS.end in both
    assert page_core.page(far, machine, REGIONAL_PROMISES, both, THREE_REGIONS) == both
    assert page_core.page(here, machine, PROMISES, both) == both


REGIONAL_PROMISES = {
    "georelay, region": ("synced in us alone", "librdkafka", True),
    "georelay, geo:2": ("synced in 2 regions", "librdkafka", True),
    "Other": ("synced in us alone", "other-py", True),
}


def _failover(contender: str, lost: int) -> dict[str, Any]:
    return {**_single(contender, 1.0, lost=lost), "workload": "failover"}


def test_each_of_our_two_durabilities_is_compared_with_the_others_and_not_with_the_other_one() -> None:
    rows = [_failover(name, lost) for name, lost in zip(REGIONAL_PROMISES, (7, 0, 3), strict=True)]
    first = page_core.measured(rows, ["machine"], REGIONAL_PROMISES, THREE_REGIONS).partition("\n")[0]
    assert first == (
        "**As georelay, region we lose to brokers with the same durability** in acknowledged in us, not in eu: "
        "7 against Other 3. As georelay, geo:2 we lose nothing to brokers that acknowledge what us alone has."
    )


@pytest.mark.parametrize(("part", "workloads"), [(ONE_REGION, WORKLOADS), (THREE_REGIONS, REGIONAL_WORKLOADS)])
def test_every_workload_that_is_run_is_told_and_the_reverse(part: Part, workloads: Sequence[Workload]) -> None:
    told = {figure.workload for _, figures in part.tables for figure in figures}
    assert told == {workload.key for workload in workloads}


def test_we_are_among_the_contenders_under_the_names_that_the_page_knows() -> None:
    names = [[one.name for one in several] for several in (CONTENDERS, REGIONAL)]
    assert all(set(part.ours) <= set(row) for part, row in zip((ONE_REGION, THREE_REGIONS), names, strict=True))
