"""A report of a mesh of this machine has the newest rows of brokers that were killed, and leaves running ones alone."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from georelay.ids import BrokerId, RegionNumber, broker_id
from georelay.trace.spool import encode_frame
from mesh.tracing.open_rows import OpenRows
from mesh.tracing.recorder_core import RecorderCore
from mesh.tracing.sealing import seal
from region.devmesh import sealing
from region.devmesh.directory import write_record
from region.devmesh.plan_core import new_record
from region.devmesh.sealing import seal_mesh
from region.log.data_directory import DataDirectory, held_while_idle
from sla.sources.sealing import seal_left_rows

NOW = 1_700_000_000 * 1_000_000_000
MESH = "0" * 32
REGIONS = ("us", "eu-west")


def left_by(directory: Path, region: int, number: int) -> BrokerId:
    """Let a broker use its directory, and die with one ledger row that no spool has."""
    broker = broker_id(RegionNumber(region), number)
    name = REGIONS[region - 1]
    DataDirectory.open(directory / "brokers" / f"{name}-{number}", mesh_id=MESH, broker_id=broker).close()
    rows = OpenRows(directory / "traces", region=name, broker=broker, boot_id="b0", region_name=str)
    rows.open()
    core = RecorderCore(region=name, broker=broker, first_session=1, region_name=str, journal=rows)
    core.open_session(topic="t", origin=0, partition=0, offset=0).delivered(
        epoch=1, base_offset=number, record_count=1, entry_region=1, received_ns=NOW - 5, delivered_ns=NOW
    )
    return broker


@pytest.fixture
def mesh(tmp_path: Path) -> Path:
    write_record(tmp_path, new_record(mesh_id=MESH, regions=REGIONS, brokers_per_region=3, base_port=21_000))
    (tmp_path / "traces").mkdir()
    left_by(tmp_path, 1, 1)
    left_by(tmp_path, 2, 3)
    return tmp_path


def stored(directory: Path) -> list[tuple[str, str, int]]:
    rows = (pq.ParquetFile(path).read().to_pylist() for path in directory.rglob("ledger-*.parquet"))
    return sorted((row["region"], row["broker"], row["from_offset"]) for table in rows for row in table)


def test_what_killed_brokers_left_is_sealed(mesh: Path) -> None:
    answer = seal_mesh(mesh / "traces", lambda: NOW)
    each = {"rows": 1, "open_rows": 1, "files": 1}
    assert answer == {"sealed": [{"broker": "us-1"} | each, {"broker": "eu-west-3"} | each], "notes": []}
    assert stored(mesh) == [("eu-west", "2003", 3), ("us", "1001", 1)]
    assert seal_mesh(mesh / "traces", lambda: NOW) == {"sealed": [], "notes": []}


def test_a_broker_that_runs_is_left_alone(mesh: Path) -> None:
    running = DataDirectory.open(mesh / "brokers" / "us-1", mesh_id=MESH, broker_id=broker_id(RegionNumber(1), 1))
    answer: Any = seal_mesh(mesh / "traces", lambda: NOW)
    assert [row["broker"] for row in answer["sealed"]] == ["eu-west-3"]
    assert answer["notes"] == []
    running.close()
    assert stored(mesh) == [("eu-west", "2003", 3)]


def test_the_lock_is_held_meanwhile_and_let_go(mesh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_idle(name: str) -> bool:
        with held_while_idle(mesh / "brokers" / name) as found:
            return found

    seen = []

    def watched(traces: Path, identity: Any, now_ns: int) -> Any:
        seen.append(is_idle({1001: "us-1", 2003: "eu-west-3"}[identity.broker]))
        return seal(traces, identity, now_ns)

    monkeypatch.setattr(sealing, "seal", watched)
    seal_mesh(mesh / "traces")
    assert seen == [False, False]
    assert is_idle("us-1")
    assert is_idle("eu-west-3")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_what_the_disk_refuses_is_one_note_per_broker_and_the_others_are_sealed(
    mesh: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(traces: Path, identity: Any, now_ns: int) -> Any:
        if identity.region == "us":
            raise OSError(number, "no room,\nor worse")
        return seal(traces, identity, now_ns)

    monkeypatch.setattr(sealing, "seal", refuse)
    answer: Any = seal_mesh(mesh / "traces")
    assert [row["broker"] for row in answer["sealed"]] == ["eu-west-3"]
    text = f"what us-1 left is not sealed, its newest rows are not in the report: [Errno {number}] no room, or worse"
    assert answer["notes"] == [text]


def test_rows_that_no_file_can_hold_are_one_note_and_the_others_are_sealed(
    mesh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(traces: Path, identity: Any, now_ns: int) -> Any:
        if identity.region == "us":
            raise pa.ArrowInvalid("no such number")
        return seal(traces, identity, now_ns)

    monkeypatch.setattr(sealing, "seal", refuse)
    answer: Any = seal_mesh(mesh / "traces")
    assert [row["broker"] for row in answer["sealed"]] == ["eu-west-3"]
    assert answer["notes"] == ["what us-1 left is not sealed, its newest rows are not in the report: no such number"]


@pytest.mark.parametrize("gone", ["brokers/us-1", "brokers/us-1/LOCK"])
def test_a_broker_whose_disk_is_gone_is_a_note(mesh: Path, gone: str) -> None:
    path = mesh / gone
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    answer: Any = seal_mesh(mesh / "traces", lambda: NOW)
    assert [row["broker"] for row in answer["sealed"]] == ["eu-west-3"]
    (note,) = answer["notes"]
    assert note.startswith("what us-1 left is not sealed, its newest rows are not in the report: data directory ")
    assert note.endswith("brokers/us-1 has no LOCK file: it is lost, or no broker ever used it")
    assert path.exists() is False


def test_a_disk_that_is_gone_is_no_note_when_its_broker_left_nothing(mesh: Path) -> None:
    seal_mesh(mesh / "traces", lambda: NOW)
    shutil.rmtree(mesh / "brokers" / "us-1")
    assert seal_mesh(mesh / "traces", lambda: NOW) == {"sealed": [], "notes": []}


def leave_two_spools_of_another_version(mesh: Path) -> str:
    """Return the note that the report shall have of them."""
    body = json.dumps({"spool": 2}).encode()
    for number in range(2):
        (mesh / "traces" / ".spool" / f"ledger-1001-abc-{number:06d}.wal").write_bytes(encode_frame(body))
    return "spools of us-1 that this version cannot read: 2; their rows are not in the report"


def test_a_spool_that_stays_is_a_note_and_not_called_sealed(mesh: Path) -> None:
    note = leave_two_spools_of_another_version(mesh)
    first: Any = seal_mesh(mesh / "traces", lambda: NOW)
    assert [row["broker"] for row in first["sealed"]] == ["us-1", "eu-west-3"]
    assert first["notes"] == [note]
    again: Any = seal_mesh(mesh / "traces", lambda: NOW)
    assert (again["sealed"], again["notes"]) == ([], [note])


def test_a_damaged_record_of_the_mesh_is_a_note(mesh: Path) -> None:
    (mesh / "mesh.json").write_text("{")
    answer: Any = seal_mesh(mesh / "traces")
    assert answer["sealed"] == []
    assert len(answer["notes"]) == 1
    assert "is damaged" in answer["notes"][0]


def test_a_report_seals_first_and_says_so_in_one_line_each_note_in_another(mesh: Path) -> None:
    note = leave_two_spools_of_another_version(mesh)
    assert seal_left_rows(str(mesh / "traces")) == [
        "sealed what brokers left that do not run: us-1 (1 row in 1 file, 1 of them from memory), "
        "eu-west-3 (1 row in 1 file, 1 of them from memory)",
        note,
    ]
    assert len(stored(mesh)) == 2
    assert seal_left_rows(mesh / "traces") == [note]


def test_traces_of_no_mesh_of_this_machine_are_left_alone(mesh: Path) -> None:
    program = (sys.executable, "-c", "raise SystemExit('must not run')")
    (mesh / "mesh.json").unlink()
    assert seal_left_rows(mesh / "traces", program) == []
    assert seal_left_rows(mesh / "absent" / "traces", program) == []
    assert seal_left_rows("s3://bucket/traces?region=x", program) == []


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('first\\nlast line')", "last line"),
        ("print('[]')", "exit code 0"),
        ("import os; os.kill(os.getpid(), 9)", "exit code -9"),
    ],
)
def test_a_program_that_fails_is_one_note(mesh: Path, code: str, said: str) -> None:
    assert seal_left_rows(mesh / "traces", (sys.executable, "-c", code)) == [
        f"what killed brokers left is not sealed: {said}"
    ]
    assert seal_left_rows(mesh / "traces", ("/nonexistent/program",))[0].startswith("what killed brokers left is not")


def test_the_program_prints_one_json_object(mesh: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sealing.main([str(mesh / "traces")]) == 0  # as a process: the tests of a report above
    assert len(json.loads(capsys.readouterr().out)["sealed"]) == 2
