"""The report of a chaos campaign counts each kind of error, and says whether the goals were met."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace

import pytest

from loadtest.chaos import __main__ as command
from loadtest.chaos.chaos_run import longest_silence_ms
from loadtest.chaos.nemesis import NEMESES
from loadtest.chaos.report_core import Goal, Outcome, goal_text, row_of
from loadtest.history.operation import Kind, Operation
from loadtest.history.operation import Outcome as Told
from loadtest.history.verdict import Category, Verdict

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "operate" / "chaos.md"


def verdict(**counts: int) -> Verdict:
    return Verdict(
        counts={Category[name]: count for name, count in counts.items()},
        findings=(),
        keys=1,
        acknowledged=10,
        refused=0,
        unknown=0,
        records_read=20,
    )


def outcome(gap_ms: float = 0.0, complaints: int = 0, **counts: int) -> Outcome:
    return Outcome(verdict=verdict(**counts), gap_ms=gap_ms, complaints=complaints)


def test_each_category_is_counted_in_one_column() -> None:
    row = row_of("x", [outcome(**{category.name: 1 for category in Category})], Goal())
    assert (row.lost, row.doubled, row.disordered, row.stale, row.wrong) == (3, 1, 5, 1, 2)
    assert sum((row.lost, row.doubled, row.disordered, row.stale, row.wrong)) == len(Category)
    assert (row.is_clean, row.verdict) == (False, "NOT VALID")


def test_runs_are_added_up_and_gaps_are_median_and_worst() -> None:
    row = row_of("x", [outcome(10), outcome(30), outcome(20)], Goal())
    assert (row.runs, row.acknowledged, row.records_read) == (3, 30, 60)
    assert (row.median_gap_ms, row.worst_gap_ms) == (20, 30)
    assert (row.is_clean, row.verdict) == (True, "valid")


def test_a_complaint_alone_is_not_clean() -> None:
    assert not row_of("x", [outcome(complaints=1)], Goal()).is_clean


def test_what_must_fail_is_as_wanted_when_it_fails() -> None:
    failed = row_of("x", [outcome(LOST_WRITE=1)], Goal(), must_fail=True)
    passed = row_of("x", [outcome()], Goal(), must_fail=True)
    assert (failed.is_as_wanted, failed.verdict) == (True, "not valid, as it must be")
    assert (passed.is_as_wanted, passed.verdict) == (False, "VALID, must not be")


@pytest.mark.parametrize(
    ("goal", "text", "met"),
    [
        (Goal(), "", None),
        (Goal(median_ms_max=15), "median <= 15: met", True),
        (Goal(worst_ms_max=15), "worst <= 15: MISSED", False),
        (Goal(median_ms_max=15, worst_ms_max=20), "median <= 15, worst <= 20: met", True),
    ],
)
def test_the_goals(goal: Goal, text: str, met: bool | None) -> None:
    row = row_of("x", [outcome(10), outcome(10), outcome(20)], goal)
    assert (goal_text(row), row.is_in_time) == (text, met)


def acknowledged(key: str, number: int, at_ms: int) -> Operation:
    return Operation(
        process="p",
        number=number,
        kind=Kind.PRODUCE,
        key=key,
        value=f"p:{number}",
        offset=number,
        outcome=Told.OK,
        invoked_ns=0,
        completed_ns=at_ms * 1_000_000,
    )


def test_the_silence_of_one_partition_counts_although_others_go_on() -> None:
    rows = [
        acknowledged("t/0", 0, 0),
        acknowledged("t/1", 1, 40),
        acknowledged("t/1", 2, 60),
        acknowledged("t/0", 3, 90),
    ]
    assert longest_silence_ms(rows) == 90
    assert longest_silence_ms([]) == 0


def options(**changed: object) -> argparse.Namespace:
    return argparse.Namespace(**({"minutes": 0, "runs": 2, "seed": 1, "nemesis": ["calm", "peer-cut"]} | changed))


def test_runs_are_made_nemesis_by_nemesis() -> None:
    planned = list(command.schedule(options()))
    assert planned == [("calm", 0), ("calm", 1), ("peer-cut", 0), ("peer-cut", 1)]


def test_minutes_are_filled_with_rounds_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr("loadtest.chaos.__main__.time", SimpleNamespace(monotonic=lambda: next(now)))
    planned = list(command.schedule(options(minutes=1)))
    assert {name for name, _ in planned[:2]} == {name for name, _ in planned[2:4]} == {"calm", "peer-cut"}
    assert [number for _, number in planned] == sorted(number for _, number in planned)
    assert len(planned) == 5


def test_an_unknown_nemesis_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.parser().parse_args(["--nemesis", "calm,storm"])
    assert ended.value.code == 2
    assert "'storm' is not one of calm, leader-kill" in capsys.readouterr().err


@pytest.mark.parametrize("name", NEMESES)
def test_every_nemesis_is_documented(name: str) -> None:
    assert f"| `{name}` |" in DOCUMENT.read_text(encoding="utf-8")
