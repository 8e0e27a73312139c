"""Burn-rate alerts need data for their whole window; with less they are told, and page nobody."""

from __future__ import annotations

from typing import Any

import pytest

from sla.judging.facts import Facts, PeriodFacts
from sla.judging.judge import judge
from sla.report import wording
from sla.report.html import to_html
from sla.report.jsonout import to_plain
from sla.report.markdown import to_markdown
from sla.report.model import BurnWindow, Report
from sla.targets_file import load_targets
from tests.sla import judging_facts as build

ALL_LATE: dict[str, int] = {"long_bad": 9_000, "long_total": 10_000, "short_bad": 9_000, "short_total": 10_000}
LENGTHS = {"1h+5m": 60, "6h+30m": 360, "3d+6h": 4_320}


def _report(*, age_minutes: int, **columns: Any) -> Report:
    burn = tuple(
        build.burn(rule=name, covered_minutes=min(length, age_minutes), **(ALL_LATE | columns))
        for name, length in LENGTHS.items()
    )
    facts = Facts(
        now=build.period(latency=(build.latency(bad=9_000),)), before=PeriodFacts(span=build.HOUR.previous), burn=burn
    )
    return judge(facts, load_targets(), made=build.MADE, hours=build.HOURS)


def _windows(report: Report) -> dict[str, BurnWindow]:
    return {window.name: window for window in report.targets[0].subjects[0].burn}


def _notes(report: Report) -> dict[str, str]:
    return {note.code: note.text for note in report.notes}


@pytest.mark.parametrize(
    ("age_minutes", "firing"),
    [
        (1, []),
        (59, []),
        (60, ["1h+5m"]),
        (359, ["1h+5m"]),
        (360, ["1h+5m", "6h+30m"]),
        (4_320, ["1h+5m", "6h+30m", "3d+6h"]),
    ],
)
def test_an_alert_is_on_only_when_its_window_is_covered(age_minutes: int, firing: list[str]) -> None:
    report = _report(age_minutes=age_minutes)
    windows = _windows(report)
    assert [name for name, window in windows.items() if window.is_firing] == firing
    assert all(window.is_burning for window in windows.values())
    assert {name: window.is_partial for name, window in windows.items()} == {
        name: name not in firing for name in LENGTHS
    }
    assert [text.split(": ")[1].split()[0] for text in report.targets[0].burning] == firing
    assert ("BUDGET_BURNING" in _notes(report)) is bool(firing)


def test_a_window_with_part_of_its_data_is_a_note_and_no_alarm() -> None:
    report = _report(age_minutes=2)
    assert _notes(report)["BURN_WINDOW_PARTIAL"] == (
        "latency: would burn its budget too fast if this went on (us -> eu 90.00 times); "
        "no alert yet, its window has data for 2 min of 60 min"
    )
    assert not any(note.is_warning for note in report.notes if note.code.startswith("BURN"))
    page, text = to_html(report), to_markdown(report)
    assert 'class="alarm"' not in page
    assert "act now (page): latency us" not in page
    for output in (page, text):
        assert "too early: would be on; has data for 2 min of 6 h" in output
        assert "ON: " not in output


def test_a_quiet_window_with_part_of_its_data_says_that_it_is_too_early_and_no_more() -> None:
    report = _report(age_minutes=2, long_bad=0, short_bad=0)
    assert "BURN_WINDOW_PARTIAL" not in _notes(report)
    assert wording.burn_state(_windows(report)["1h+5m"]) == "too early; has data for 2 min of 60 min"


def test_too_few_events_in_a_part_of_a_window_are_no_note() -> None:
    report = _report(age_minutes=2, long_bad=99, long_total=99, short_bad=99, short_total=99)
    assert "BURN_WINDOW_PARTIAL" not in _notes(report)


def test_the_json_says_how_much_of_a_window_has_data() -> None:
    window = to_plain(_windows(_report(age_minutes=2))["6h+30m"])
    found = {
        name: window[name] for name in ("covered_minutes", "long_minutes", "is_partial", "is_burning", "is_firing")
    }
    assert found == {
        "covered_minutes": 2, "long_minutes": 360, "is_partial": True, "is_burning": True, "is_firing": False
    }  # fmt: skip
