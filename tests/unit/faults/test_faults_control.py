"""A control file is obeyed as soon as it changes, checked, and answered; the tool refuses to run by accident."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from georelay.errors import ConfigError
from region.faults import __main__ as command
from region.faults.settings import FaultControl, FaultSettings, read_settings
from region.faults.stepped_clock import SteppedClock

WAIT_SECONDS_MAX = 10


@pytest.fixture
def control_file(tmp_path: Path) -> Path:
    path = tmp_path / "us-1.faults.json"
    path.write_text('{"version": 1, "generation": 3, "wall_step_ms": -5}')
    return path


def test_the_first_state_is_applied_before_anything_else_and_answered(control_file: Path) -> None:
    seen: list[FaultSettings] = []
    FaultControl(control_file, on_change=seen.append)
    assert [(row.generation, row.wall_step_ms, row.free_bytes) for row in seen] == [(3, -5, None)]
    assert control_file.with_name("us-1.faults.json.applied").read_text() == "3\n"


def test_a_change_is_followed_and_a_bad_file_changes_nothing(control_file: Path) -> None:
    seen: list[FaultSettings] = []
    control = FaultControl(control_file, on_change=seen.append)
    control.start()
    control_file.write_text("{")
    control_file.write_text('{"version": 1, "generation": 4, "sync_delay_ms": 20}')
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    applied = control_file.with_name("us-1.faults.json.applied")
    while applied.read_text() != "4\n" and time.monotonic() < deadline:
        time.sleep(0.005)
    control.stop()
    assert [(row.generation, row.sync_delay_ms) for row in seen] == [(3, 0), (4, 20)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Invalid JSON"),
        ('{"version": 2}', "version: Input should be 1"),
        ('{"sync_delay_ms": -1}', "sync_delay_ms: Input should be greater"),
        ('{"sync_delay_ms": "1"}', "sync_delay_ms: Input should be a valid integer"),
        ('{"speed": 1}', "speed: Extra inputs"),
    ],
)
def test_a_bad_control_file_says_what_is_wrong(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        read_settings(path)


def test_a_missing_control_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_settings(tmp_path / "none.json")


def test_a_stepped_clock_steps_wall_time_only() -> None:
    clock = SteppedClock()
    before = clock.monotonic_ns()
    clock.step_ms = -3_600_000
    assert clock.wall_ns() < time.time_ns() - 3_599 * 10**9
    assert 0 <= clock.monotonic_ns() - before < 10**9


@pytest.mark.parametrize(
    "arguments", [["broker", "--config", "x", "--control", "y"], ["tear", "--data-dir", "x", "--seed", "1"]]
)
def test_it_does_not_run_by_accident(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments) == 2
    assert "it needs --break-things" in capsys.readouterr().err


def test_a_directory_without_entries_cannot_be_torn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "groups").mkdir()
    assert command.main(["tear", "--data-dir", str(tmp_path), "--seed", "1", "--break-things"]) == 1
    assert "has an entry" in capsys.readouterr().err


def test_a_broker_without_a_configuration_does_not_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["broker", "--config", str(tmp_path / "none.toml"), "--control", "y", "--break-things"]
    assert command.main(arguments) == 1
    assert "cannot read the configuration" in capsys.readouterr().err


def test_settings_round_trip_through_the_file_that_a_test_writes(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    wanted = FaultSettings(generation=9, free_bytes=0, volatile_writes=True, lying_syncs=True)
    path.write_text(json.dumps(wanted.model_dump()))
    assert read_settings(path) == wanted
