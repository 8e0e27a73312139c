"""Lines of the comparison of two checkouts."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from loadtest.bench import compared
from loadtest.bench.single import Figure


def _figure(cpu: float, p99_ms: float = 8.0) -> Figure:
    return Figure(p50_ms=2.0, p99_ms=p99_ms, p999_ms=10.0, cpu=cpu, switches=30.0)


def test_a_rate_is_told_with_medians_and_with_the_ratio_of_the_runs_that_were_neighbours() -> None:
    pairs = [(_figure(1.0), _figure(0.5)), (_figure(2.0), _figure(0.5)), (_figure(4.0), _figure(4.0))]
    lines = compared.lines_of(1_000, pairs)
    assert lines[:2] == ["1000/s:", "  CPU s per 100,000 records: 200.0 -> 50.0, pair by pair x 0.50 (0.25 to 1.00)"]


def test_a_run_without_deliveries_has_no_ratio() -> None:
    lines = compared.lines_of(100, [(_figure(1.0, p99_ms=0.0), _figure(1.0))])
    assert next(line for line in lines if line.startswith("  p99 ms")) == "  p99 ms: 0.0 -> 8.0"


def test_each_pair_is_run_in_another_order_and_told_as_old_and_new() -> None:
    asked: list[str] = []

    def run(name: str) -> str:
        asked.append(name)
        return name

    assert compared._pairs(argparse.Namespace(pairs=3), run) == [("old", "new")] * 3
    assert asked == ["old", "new", "new", "old", "old", "new"]


def test_a_mirror_is_told_by_what_it_takes_longer_than_the_home() -> None:
    old, new = {"us": _figure(1.0, 8.0), "eu": _figure(1.0, 12.0)}, {"us": _figure(1.0, 4.0), "eu": _figure(1.0, 6.0)}
    lines = [*compared._lines_of_regions(1_000, [(old, new)])]
    assert lines[-3:] == [
        "  in eu, above us:",
        "  p50 ms: 0.0 -> 0.0",
        "  p99 ms: 4.0 -> 2.0, pair by pair x 0.50 (0.50 to 0.50)",
    ]


def test_the_highest_rate_is_the_last_one_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    held_up_to = {"old": 1_000, "new": 3_000}

    def run(mesh: str, rate: int, _: int) -> dict[str, Figure]:
        return {"us": _figure(1.0, p99_ms=20.0 if rate <= held_up_to[mesh] else 51.0)}

    monkeypatch.setattr(compared, "_run", run)
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
