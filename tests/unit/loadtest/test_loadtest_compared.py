"""Lines of the comparison of two checkouts."""

from __future__ import annotations

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


def test_a_checkout_without_an_environment_is_refused_with_what_to_do(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["compared", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        compared.main()
    assert ended.value.code == 2
    assert "has no .venv: run `make setup` there" in capsys.readouterr().err
