"""Lines of the comparison of two checkouts."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from loadtest.bench import compared, measured


def _run(cpu: float, p99_ms: float = 8.0, region: str = "us") -> dict[str, dict[str, float]]:
    return {region: {"p50_ms": 2.0, "p99_ms": p99_ms, "p999_ms": 10.0, "cpu_s_per_100k": cpu, "switches": 30.0}}


def test_a_rate_is_told_with_medians_and_with_the_ratio_of_the_runs_that_were_neighbours() -> None:
    found = {"old": [_run(100.0), _run(200.0), _run(400.0)], "new": [_run(50.0), _run(50.0), _run(400.0)]}
    lines = [*compared._lines_of_regions("1000/s", found)]
    assert lines[:2] == ["1000/s:", "  CPU s per 100,000 records: 200.0 -> 50.0, pair by pair x 0.50 (0.25 to 1.00)"]


def test_a_run_without_deliveries_has_no_ratio() -> None:
    lines = compared._lines_of_regions("100/s", {"old": [_run(1.0, p99_ms=0.0)], "new": [_run(1.0)]})
    assert next(line for line in lines if line.startswith("  p99 ms")) == "  p99 ms: 0.0 -> 8.0"


def test_each_pair_is_run_in_another_order_and_told_as_old_and_new(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def measure(way: str) -> tuple[dict[str, Any], list[Any]]:
        asked.append(way)
        return {"us": {"failed": 0, "way": way}}, []

    monkeypatch.setattr(measured, "measure", measure)
    ways: Any = {"old": "old", "new": "new"}
    found = measured.in_turns(ways, 3)
    assert {name: [run["us"]["way"] for run in runs] for name, runs in found.items()} == {
        "old": ["old"] * 3,
        "new": ["new"] * 3,
    }
    assert asked == ["old", "new", "new", "old", "old", "new"]


def test_a_run_in_which_a_record_was_not_stored_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "measure", lambda _: ({"us": {"failed": 0}, "eu": {"failed": 2}}, []))
    ways: Any = {"new": None}
    with pytest.raises(RuntimeError, match="new: 2 records were not acknowledged"):
        measured.in_turns(ways, 1)


def test_a_mirror_is_told_by_what_it_takes_longer_than_the_home() -> None:
    found = {
        "old": [_run(1.0, 8.0) | _run(1.0, 12.0, "eu")],
        "new": [_run(1.0, 4.0) | _run(1.0, 6.0, "eu")],
    }
    lines = [*compared._lines_of_regions("1000/s", found)]
    assert lines[-3:] == [
        "  in eu, above us:",
        "  p50 ms: 0.0 -> 0.0",
        "  p99 ms: 4.0 -> 2.0, pair by pair x 0.50 (0.50 to 0.50)",
    ]


def test_the_highest_rate_is_the_last_one_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    held_up_to = {"old": 1_000, "new": 3_000}
    monkeypatch.setattr(compared, "_p99_ms", lambda mesh, rate, _: 20.0 if rate <= held_up_to[mesh] else 51.0)
    meshes: Any = {"old": "old", "new": "new"}
    (line,) = compared._highest(meshes, argparse.Namespace(pairs=2, seconds=3))
    assert line.endswith("with p99 <= 50 ms: 1,000.0 -> 3,000.0, pair by pair x 3.00 (3.00 to 3.00)")


def test_a_checkout_without_an_environment_is_refused_with_what_to_do(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["compared", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        compared.main()
    assert ended.value.code == 2
    assert "has no .venv: run `make setup` there" in capsys.readouterr().err
