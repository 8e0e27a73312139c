"""A mistake of our own ends a command with 4, never with the 1 of a missed target, and says where its traceback is."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from sla import __main__, cli
from sla.commands import doctor


def fails() -> list[object]:
    raise IndexError("index 31539600 is out of bounds\nfor axis 0")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(doctor, "run_checks", fails)
    return tmp_path


def test_an_unexpected_exception_exits_4_with_one_line_and_a_traceback_in_a_file(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = cli.main(["doctor"])
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (4, "", 1), err
    assert err.startswith("georelay-sla: doctor: a mistake of georelay-sla itself, nothing was judged: IndexError: ")
    (log,) = directory.iterdir()
    assert f"(traceback: {log})" in err
    assert "raise IndexError" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_traceback_that_no_file_can_take_is_printed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(directory / "missing"))
    assert cli.main(["doctor"]) == 4
    err = capsys.readouterr().err
    assert "a mistake of georelay-sla itself" in err.splitlines()[0]
    assert "raise IndexError" in err


def test_an_interrupt_is_one_line_and_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> list[object]:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "run_checks", interrupted)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "georelay-sla: interrupted\n"


def test_the_program_leaves_with_4_when_java_cannot_be_stopped(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cannot() -> None:
        raise ValueError("no such JVM")

    monkeypatch.setattr("sys.argv", ["georelay-sla", "doctor"])
    monkeypatch.setattr(doctor, "run_checks", list)
    monkeypatch.setattr("sla.session.stop_java", cannot)
    with pytest.raises(SystemExit) as left:
        __main__.main()
    assert left.value.code == 4
    assert "ValueError: no such JVM" in capsys.readouterr().err
    assert len(list(directory.iterdir())) == 1


def test_a_package_that_is_not_installed_is_no_mistake_of_ours(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sla.generate.run", None)
    assert cli.main(["gen", "--out", str(directory / "o")]) == 4
    err = capsys.readouterr().err
    assert (err.count("\n"), "`georelay-sla doctor` says what to install" in err) == (1, True), err
