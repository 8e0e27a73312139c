"""Where the commands look for traces and roll-ups when nobody says it, and what they refuse."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from region.devmesh.command import up
from region.devmesh.process_config import ProcessPaths
from sla import cli
from sla.commands import arguments

COMMANDS = ("report", "verify", "compact", "rollup")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GEORELAY_TRACES", raising=False)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[int, str]:
    status = cli.main(list(given))
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1), err
    return status, err


def test_without_traces_of_its_own_a_directory_reports_those_of_its_mesh(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_mesh = directory / "georelay-data" / "traces"
    of_mesh.mkdir(parents=True)
    for command in COMMANDS:
        status, err = said(capsys, command)
        assert (status, "no traces in georelay-data/traces" in err) == (3, True), err
    (directory / "traces").mkdir()
    status, err = said(capsys, "report")
    assert (status, "no traces in traces " in err) == (3, True), err


def test_without_any_traces_the_error_names_both_places(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        status, err = said(capsys, command)
        assert status == 3
        assert "neither traces nor georelay-data/traces" in err
        assert "--traces" in err


def test_wrong_arguments_are_said_before_missing_traces(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "file").write_bytes(b"")
    for command in COMMANDS:
        assert said(capsys, command, "--last", "24h", "--to", "2024-01-01")[0] == 2
        assert said(capsys, command, "--rollups", "s3://b/x")[0] == 2
    assert "--out must be a directory" in said(capsys, "report", "--out", "file")[1]


def test_what_was_said_is_what_is_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "georelay-data" / "traces").mkdir(parents=True)
    assert "the directory traces does not exist" in said(capsys, "report", "--traces", "traces")[1]
    monkeypatch.setenv("GEORELAY_TRACES", "elsewhere")
    assert "the directory elsewhere does not exist" in said(capsys, "report")[1]


def test_the_mesh_writes_where_the_report_looks() -> None:
    data = inspect.signature(up).parameters["data"].default
    assert str(ProcessPaths(directory=data, users_file=None, parent_pid=1).trace_dir) == arguments.TRACES_OF_MESH


def test_roll_ups_stand_beside_the_traces_that_are_read(directory: Path) -> None:
    (directory / "georelay-data" / "traces").mkdir(parents=True)
    parser = arguments.OneLineParser()
    arguments.add_traces(parser)
    assert arguments.rollups_of(parser.parse_args([])) == str(directory / "georelay-data" / "rollups")
    given = parser.parse_args(["--traces", f"file://{directory}/there/traces"])
    assert arguments.rollups_of(given) == str(directory / "there" / "rollups")
    given = parser.parse_args(["--rollups", f"file://{directory}/kept"])
    assert arguments.rollups_of(given) == str(directory / "kept")


@pytest.mark.parametrize("command", ["report", "verify", "rollup"])
@pytest.mark.parametrize("where", ["s3://b/x", "S3://b/x", "gs://b/x", "ftp://h/x"])
def test_roll_ups_in_an_object_store_exit_2_before_anything_is_made(
    command: str, where: str, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "traces").mkdir()
    status, err = said(capsys, command, "--rollups", where)
    assert status == 2, err
    assert f"--rollups must be a directory, mounted on every machine of a cluster, not {where}" in err
    assert [path.name for path in directory.iterdir()] == ["traces"]


def test_a_file_as_roll_ups_exits_2(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "traces").mkdir()
    (directory / "kept").write_bytes(b"")
    for command in ("report", "verify", "rollup"):
        status, err = said(capsys, command, "--rollups", "kept")
        assert (status, "--rollups must be a directory, but kept is a file" in err) == (2, True), err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("where", ["ftp://host/traces", "S3://bucket/traces"])
def test_traces_of_an_unknown_scheme_name_those_that_are_known(
    command: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, err = said(capsys, command, "--traces", where)
    assert status == 2
    assert "unknown scheme" in err
    assert "write a directory or file, s3, gs, gcs, abfs, abfss://" in err
