"""What operations of the log and of the codec cost: the clock, the lines, the other commit."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from georelay.ids import BrokerId
from loadtest.bench import storage
from region import storage_timer
from region.log.data_directory import DataDirectory


def _cost(cpu_us: float, syncs: int = 0) -> dict[str, Any]:
    return {"wall_us": [cpu_us * 2], "cpu_us": [cpu_us], "peak_bytes": 1_000, "blocks": 3.0, "syncs": syncs}


def _measured(operation: Callable[[object], object]) -> dict[str, Any]:
    case = storage_timer.Case("one", itertools.repeat(None), operation)
    return storage_timer.measure(case, operations=100, repeats=2)


def test_an_operation_that_became_dearer_shows_pair_by_pair() -> None:
    old = [{"seal": _cost(2.0)}, {"seal": _cost(3.0)}]
    new = [{"seal": _cost(3.0)}, {"seal": _cost(6.0)}]
    (line,) = storage.lines_of({"old": old, "new": new})
    assert line == (
        "seal: CPU 2.5 us, 5.0 us in all, 3 blocks kept, 1,000 B at most -> "
        "CPU 4.5 us, 9.0 us in all, 3 blocks kept, 1,000 B at most; CPU pair by pair x 1.75 (1.50 to 2.00)"
    )


def test_an_operation_that_older_code_does_not_know_has_no_ratio() -> None:
    (line,) = storage.lines_of({"old": [{}], "new": [{"seal": _cost(3.0, syncs=1)}]})
    assert line == "seal: CPU 3.0 us, 6.0 us in all, 3 blocks kept, 1,000 B at most, 1 syncs"


def test_a_commit_that_is_not_there_is_refused_with_the_words_of_git(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("loadtest.bench.machine.file_system", lambda _: "ext4")
    monkeypatch.setattr("sys.argv", ["storage", "--compare", "no-such-commit", "--directory", str(tmp_path)])
    assert storage.main() == 2
    assert "no-such-commit" in capsys.readouterr().err


def test_what_an_operation_holds_and_what_its_result_keeps_are_told_apart() -> None:
    held = _measured(lambda _: len(bytes(50_000)))
    kept = _measured(lambda _: [object(), object(), object()])
    assert held["peak_bytes"] >= 50_000
    assert held["blocks"] < 1.5
    assert 3.5 < kept["blocks"] < 6
    assert kept["peak_bytes"] < 5_000


def test_what_one_operation_held_is_not_put_down_to_those_after_it() -> None:
    sizes = itertools.cycle([500_000, *[1_000] * 9])
    case = storage_timer.Case("sizes", sizes, lambda size: len(bytes(int(str(size)))))
    measured: dict[str, Any] = storage_timer.measure(case, operations=10, repeats=1)
    assert 1_000 <= measured["peak_bytes"] < 10_000


def test_cpu_is_told_apart_from_waiting() -> None:
    case = storage_timer.Case("wait", itertools.repeat(None), lambda _: time.sleep(0.002), share=50)
    waited: dict[str, Any] = storage_timer.measure(case, operations=100, repeats=1)
    assert len(waited["wall_us"]) == 1
    assert waited["wall_us"][0] >= 2_000 > waited["cpu_us"][0]


def test_every_operation_of_the_log_does_what_its_name_says(tmp_path: Path) -> None:
    directory = DataDirectory.open(tmp_path / "data", mesh_id="storage-timer", broker_id=BrokerId(1))
    cases = {case.name: case for case in (*storage_timer.codec_cases(), *storage_timer.log_cases(directory))}
    results: dict[str, Any] = {name: case.operation(next(case.items)) for name, case in cases.items()}
    directory.close()
    assert len(results["log: read 1 entry"]) == 1
    assert len(results["log: read 100 entries"]) == 100
    assert len(results["codec: read the records of a batch of 100"]) == 100
    assert results["log: append 1 x 1 records"] == 0
    assert all(syncs for name, syncs in results.items() if "and sync" in name)
