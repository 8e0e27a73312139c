"""Retention follows what compaction and people do to the files while the broker runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mesh.tracing.retention import LOOK_AGAIN_NS, Retention

HOUR_NS = 3_600 * 10**9
BASE_NS = 1_700_000_000 // 3_600 * HOUR_NS  # 2023-11-14 22:00 UTC
FOLDERS = [f"date=2023-11-14/hour={hour}/region=us" for hour in (22, 23)] + [
    f"date=2023-11-15/hour={hour:02d}/region=us" for hour in range(3)
]


class Files:
    """The trace directory, and the retention of broker 1001."""

    def __init__(self, directory: Path, *, age_h: int = -1, bytes_max: int = -1) -> None:
        self.directory = directory
        self.now_ns = BASE_NS
        age_ms = age_h * 3_600_000 if age_h >= 0 else -1
        self.retention = Retention(directory, region="us", broker=1001, age_ms_max=age_ms, size_bytes_max=bytes_max)

    def put(self, hour: int, number: str, size: int, *, broker: int = 1001, at_ns: int | None = None) -> Path:
        """Write a file into the folder of an hour (counted from 22:00)."""
        path = self.directory / FOLDERS[hour] / f"ledger-{broker}-b0-{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        moment_ns = self.now_ns if at_ns is None else at_ns
        os.utime(path, ns=(moment_ns, moment_ns))
        return path

    def rolled(self, hour: int, number: str, size: int) -> Path:
        """Write a file as the broker does."""
        self.now_ns = max(self.now_ns, BASE_NS + hour * HOUR_NS)
        path = self.put(hour, number, size)
        self.retention.added(path, self.now_ns)
        return path

    def compact(self, hour: int, old: list[Path], size: int) -> Path:
        """Replace files by one, at this moment."""
        made = self.put(hour, "000000000000", size)
        for path in old:
            path.unlink()
        return made

    def pass_time(self, nanoseconds: int) -> int:
        self.now_ns += nanoseconds
        return self.retention.enforce(self.now_ns)


def test_a_file_that_compaction_made_expires_with_its_hour_in_a_broker_that_runs_on(tmp_path: Path) -> None:
    files = Files(tmp_path, age_h=10)
    files.retention.load(files.now_ns)
    old = [files.rolled(0, "000000", 10), files.rolled(0, "000010", 10)]
    newer = files.rolled(2, "000020", 10)
    files.pass_time(HOUR_NS)
    made = files.compact(0, old, 15)
    files.pass_time(LOOK_AGAIN_NS)
    assert (files.retention.files, files.retention.size_bytes) == (2, 25)
    files.pass_time(BASE_NS + 11 * HOUR_NS + 1 - files.now_ns)
    assert not made.exists()
    assert newer.exists()
    assert (files.retention.files, files.retention.size_bytes) == (1, 10)


def test_the_oldest_rows_go_first_though_compaction_wrote_them_last(tmp_path: Path) -> None:
    files = Files(tmp_path, bytes_max=30)
    files.retention.load(files.now_ns)
    old = [files.rolled(0, "000000", 10)]
    newer = files.rolled(1, "000010", 10)
    made = files.compact(0, old, 10)
    files.pass_time(LOOK_AGAIN_NS)
    newest = files.rolled(2, "000020", 15)
    assert files.pass_time(1) == 1
    assert [path.exists() for path in (made, newer, newest)] == [False, True, True]
    again = Files(tmp_path, bytes_max=20)  # another run of the broker has the same order
    again.retention.load(files.now_ns)
    assert again.pass_time(0) == 1
    assert [path.exists() for path in (newer, newest)] == [False, True]


def test_bytes_of_files_that_others_deleted_are_not_held_against_those_that_are_left(tmp_path: Path) -> None:
    files = Files(tmp_path, bytes_max=25)
    files.retention.load(files.now_ns)
    gone = files.rolled(0, "000000", 10)
    files.rolled(1, "000010", 10)
    gone.unlink()
    files.pass_time(LOOK_AGAIN_NS)
    files.rolled(2, "000020", 10)
    assert files.pass_time(1) == 0
    assert (files.retention.files, files.retention.size_bytes) == (2, 20)


def test_files_of_other_brokers_and_names_that_are_none_are_not_ours(tmp_path: Path) -> None:
    files = Files(tmp_path, bytes_max=0)
    files.retention.load(files.now_ns)
    files.put(0, "000000", 10, broker=1002)
    (tmp_path / FOLDERS[0] / ".tmp-ledger-1001-b0-000000.parquet.1.tmp").write_bytes(b"x")
    files.pass_time(LOOK_AGAIN_NS)
    assert (files.retention.files, files.retention.files_deleted) == (0, 0)


def test_folders_that_did_not_change_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(tmp_path)
    for hour in range(4):
        files.put(hour, f"{hour:06d}", 10)
    for folder in FOLDERS[:4]:
        os.utime(tmp_path / folder, ns=(BASE_NS - 10**10, BASE_NS - 10**10))
    files.retention.load(files.now_ns)
    read: list[str] = []
    real = os.listdir

    def listdir(path: Path) -> list[str]:
        read.append(str(Path(path).relative_to(tmp_path)))
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    files.put(3, "000009", 10)
    files.pass_time(LOOK_AGAIN_NS)
    assert (read, files.retention.files) == ([FOLDERS[3]], 5)
    files.pass_time(LOOK_AGAIN_NS - 1)
    assert len(read) == 1
