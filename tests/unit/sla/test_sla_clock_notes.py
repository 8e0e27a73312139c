"""What is said about hosts that do not know their clock error: only where a latency rests on it."""

from __future__ import annotations

import pytest

from sla.judging.facts import ClockFacts, Facts, LatencyFacts, PeriodFacts
from sla.judging.judge import judge
from sla.report.html import to_html
from sla.targets_file import load_targets
from tests.sla import judging_facts as build


def _texts(latency: tuple[LatencyFacts, ...], *clocks: ClockFacts) -> list[str]:
    facts = Facts(now=build.period(latency=latency, clocks=clocks), before=PeriodFacts(span=build.HOUR.previous))
    report = judge(facts, load_targets(), made=build.MADE, hours=build.HOURS)
    return [note.text for note in report.notes if note.code == "CLOCK_UNSYNC"]


UNSYNC = build.clock(unsync=3_600)  # the hosts of eu, asking us: 70 ms there and back


@pytest.mark.parametrize("error_us", [34_000, 8_000, None])
def test_a_host_that_does_not_know_its_error_is_named_where_the_round_trip_bounds_it(error_us: int | None) -> None:
    (text,) = _texts((build.latency(error_us=error_us),), UNSYNC)
    assert text == (
        "hosts of eu do not know how wrong their clocks are; only round trips bound the clock error of us -> eu"
    )


@pytest.mark.parametrize("error_us", [0, 500])
def test_a_configured_clock_error_needs_no_host_that_knows_its_own(error_us: int) -> None:
    assert _texts((build.latency(error_us=error_us),), UNSYNC) == []


def test_hosts_that_know_their_error_are_not_named() -> None:
    assert _texts((build.latency(error_us=900),), build.clock(unsync=0)) == []


def test_clocks_of_one_region_and_of_pairs_without_records_bound_no_latency() -> None:
    own = build.clock(region="eu", peer="eu", unsync=3_600)
    other = build.clock(region="ap", peer="us", unsync=3_600)
    assert _texts((build.latency(error_us=34_000),), own, other) == []
    assert _texts((build.latency(error_us=34_000, stage="deliver"),), UNSYNC) == []  # of one clock


def test_both_regions_of_a_pair_are_named_once() -> None:
    there_and_back = (build.latency(error_us=34_000), build.latency(origin="eu", dest="us", error_us=34_000))
    (text,) = _texts(there_and_back, UNSYNC, build.clock(region="us", peer="eu", unsync=3_600))
    assert text == (
        "hosts of eu, us do not know how wrong their clocks are; "
        "only round trips bound the clock error of eu -> us, us -> eu"
    )


def test_a_clock_error_of_zero_is_said_to_be_configured_and_not_proven() -> None:
    def page(error_us: int) -> str:
        now = build.period(latency=(build.latency(error_us=error_us),))
        facts = Facts(now=now, before=PeriodFacts(span=build.HOUR.previous))
        return to_html(judge(facts, load_targets(), made=build.MADE, hours=build.HOURS))

    assert "Yes, by configuration" in page(0)
    assert "Yes: they err by 0.500 ms at most" in page(500)
