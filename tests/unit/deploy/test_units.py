"""The systemd units, read as systemd reads them: `make units` has systemd itself judge them."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Final

import pytest

from region.multiraft.hand_over import LAST_HAND_OVER_MS_MAX
from sla.cli import _parser

ROOT: Final = Path(__file__).resolve().parents[3]
UNITS: Final = {kind: ROOT / f"deploy/systemd/georelay-{kind}.service" for kind in ("broker", "gateway")}
OWN: Final = {"ExecStart", "StateDirectory", "TimeoutStopSec"}  # in which the two may differ


def settings(kind: str) -> dict[str, list[str]]:
    """Return the values of each key of [Service], in order: some keys are lists (systemd.syntax(7))."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in UNITS[kind].read_text().splitlines():
        if line.startswith("["):
            section = line
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals and key == key.strip(), line
            if section == "[Service]":
                found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("kind", UNITS)
def test_a_unit_starts_a_command_that_the_wheel_brings_from_the_release_that_is_current(kind: str) -> None:
    (line,) = settings(kind)["ExecStart"]
    command, *words = shlex.split(line)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert Path(command).parent == Path("/opt/georelay/current/venv/bin") and Path(command).name in scripts
    assert words == ["--config", f"/etc/georelay/{kind}.toml"]


@pytest.mark.parametrize("kind", UNITS)
def test_a_unit_is_ready_when_it_says_so_and_starved_when_its_loop_stands_still(kind: str) -> None:
    unit = settings(kind)
    assert unit["Type"] == ["notify"] and unit["NotifyAccess"] == ["main"]
    assert int(unit["WatchdogSec"][0]) == 30 and int(unit["TimeoutStartSec"][0]) == 120
    assert int(unit["TimeoutStopSec"][0]) * 1_000 > 10 * LAST_HAND_OVER_MS_MAX


@pytest.mark.parametrize("kind", UNITS)
def test_a_unit_comes_back_after_a_failure_and_not_with_a_wrong_configuration(kind: str) -> None:
    unit = settings(kind)
    assert unit["Restart"] == ["on-failure"] and unit["RestartPreventExitStatus"] == ["2"]


@pytest.mark.parametrize("kind", UNITS)
def test_a_unit_has_its_limits_and_a_closed_directory_of_its_own(kind: str) -> None:
    unit = settings(kind)
    assert unit["LimitNOFILE"] == ["16384"] and unit["MemoryMax"] == ["75%"]
    assert unit["StateDirectory"] == [f"georelay/{kind}"] and unit["StateDirectoryMode"] == ["0750"]
    assert unit["User"] == unit["Group"] == ["georelay"]
    assert "u georelay " in (ROOT / "deploy/systemd/georelay.sysusers").read_text()


def test_broker_and_gateway_are_shut_in_alike() -> None:
    broker, gateway = ({key: row for key, row in settings(kind).items() if key not in OWN} for kind in UNITS)
    assert broker == gateway
    assert broker["CapabilityBoundingSet"] == [""] and broker["NoNewPrivileges"] == ["yes"]


@pytest.mark.parametrize("kind", UNITS)
def test_what_a_killed_process_left_in_shared_memory_is_kept(kind: str) -> None:
    # The newest rows of its traces are there (mesh.tracing.memory_file) until it, or a report, seals them.
    assert "RemoveIPC" not in settings(kind)


def section(unit: str, name: str) -> dict[str, str]:
    """Return the keys of one section of a unit."""
    text = (ROOT / "deploy/systemd" / unit).read_text().split(f"[{name}]\n")[1].split("\n[")[0]
    rows = (line.partition("=") for line in text.splitlines())
    return {key: value for key, _, value in rows if key and not key.startswith("#")}


@pytest.mark.parametrize(
    ("unit", "variables"),
    [
        ("georelay-traces@.service", {"GEORELAY_TRACES_TO": "s3://bucket/traces"}),
        ("georelay-report.service", {"GEORELAY_REPORT_LAST": "24h"}),
    ],
)
def test_a_unit_of_traces_starts_a_command_that_is_understood(
    unit: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = section(unit, "Service")["ExecStart"]
    for name, value in variables.items():
        assert f"${{{name}}}" in line
        line = line.replace(f"${{{name}}}", value)
    command, *words = shlex.split(line)
    assert command == "/opt/georelay/current/venv/bin/georelay-sla"
    assert _parser().parse_args(words).run is not None


@pytest.mark.parametrize("name", ["georelay-traces@", "georelay-report"])
def test_a_unit_of_traces_has_a_timer_and_never_takes_what_a_broker_needs(name: str) -> None:
    assert section(f"{name}.timer", "Timer")["OnCalendar"] and (ROOT / f"deploy/systemd/{name}.service").is_file()
    unit = section(f"{name}.service", "Service")
    assert unit["Type"] == "oneshot" and unit["User"] == "georelay" and unit["NoNewPrivileges"] == "yes"
    assert int(unit["Nice"]) > 0 and unit["IOSchedulingClass"] == "idle" and "MemoryMax" in unit
    assert set(section("georelay-broker.service", "Service")) - set(unit) <= {
        "NotifyAccess", "WatchdogSec", "TimeoutAbortSec", "TimeoutStopSec", "KillMode", "Restart", "RestartSec",
        "RestartPreventExitStatus", "StateDirectory", "StateDirectoryMode", "LimitNOFILE", "MemoryDenyWriteExecute",
    }  # fmt: skip
