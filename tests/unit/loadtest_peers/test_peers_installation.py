"""What is missing for a comparison is said, all of it and at once."""

from __future__ import annotations

import pytest

from loadtest.peers import __main__, installation
from loadtest.peers.regions import NEEDS_ROOT


def test_every_missing_program_has_a_line_that_says_what_to_do() -> None:
    lines = installation.missing(lambda program: None if program in ("go", "mvn") else f"bin/{program}")
    assert [line.partition(".")[0] for line in lines] == ["go is missing", "mvn is missing"]
    assert all("apt-get install" in line for line in lines)


def test_without_what_it_needs_it_ends_with_2_and_measures_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("loadtest.bench.machine.file_system", lambda _: "ext4")
    monkeypatch.setattr("sys.argv", ["peers", "run"])
    assert __main__.main() == 2
    said = capsys.readouterr().err
    assert all(f"{program} is missing" in said for program in installation.NEEDS)


def test_regions_without_root_are_refused_in_one_line_before_anything_is_brought(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # so that an installation would be told, too
    monkeypatch.setattr("loadtest.bench.machine.file_system", lambda _: "ext4")
    monkeypatch.setattr("os.geteuid", lambda: 1_000)
    monkeypatch.setattr("sys.argv", ["peers", "run", "--regions"])
    assert __main__.main() == 2
    assert capsys.readouterr().err == f"{NEEDS_ROOT}\n"
