"""What a killed broker left becomes trace files without its next start, once, wherever the sealing itself is killed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from georelay.trace.files import SPOOL_FOLDER
from mesh.tracing import sealing
from mesh.tracing.open_rows import OpenRows
from mesh.tracing.recorder_core import RecorderCore
from mesh.tracing.sealing import is_left, seal
from mesh.tracing.writer import TraceWriter
from mesh.tracing.written import Identity

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND
REGIONS = {1: "us", 2: "eu"}
WANTED = [(0, 10), (10, 20), (20, 30)]
CALLS_MAX = 60


class Killed(BaseException):
    """The process ends here."""


def leave(directory: Path, *, broker: int = 2001, boot_id: str = "b0") -> None:
    """Leave what a kill leaves: 0-10 rolled, 10-20 spooled and not marked so, 20-30 in no spool."""
    rows = OpenRows(directory, region="eu", broker=broker, boot_id=boot_id, region_name=REGIONS.__getitem__)
    rows.open()
    core = RecorderCore(region="eu", broker=broker, first_session=100, region_name=REGIONS.__getitem__, journal=rows)
    session = core.open_session(topic="orders", origin=0, partition=0, offset=0)
    identity = Identity(region="eu", broker=broker, boot_id=boot_id)

    def deliver(base: int, at_ns: int) -> None:
        session.delivered(
            epoch=1, base_offset=base, record_count=10, entry_region=1, received_ns=at_ns - 5, delivered_ns=at_ns
        )

    def writer(open_rows: OpenRows | None) -> TraceWriter:
        return TraceWriter(
            directory=directory, identity=identity, clock_ns=lambda: NOW, roll_period_s=1_000, open_rows=open_rows
        )

    deliver(0, NOW)
    deliver(10, NOW + SECOND)
    first = writer(rows)
    first.take(core.drain(NOW + SECOND))
    first.roll()
    deliver(20, NOW + 2 * SECOND)
    first._open_rows = None  # killed between the spool and its mark
    first.take(core.drain(NOW + 2 * SECOND))


def stored(directory: Path) -> list[tuple[int, int]]:
    rows = (pq.ParquetFile(path).read().to_pylist() for path in directory.rglob("ledger-*.parquet"))
    return sorted((row["from_offset"], row["to_offset"]) for table in rows for row in table)


def left(directory: Path) -> list[str]:
    hidden = [path.name for path in directory.glob(".*.parquet")]
    return hidden + [path.name for path in (directory / SPOOL_FOLDER).iterdir()]


def sealed(directory: Path, boot_id: str = "s0", broker: int = 2001) -> sealing.Sealed:
    return seal(directory, Identity(region="eu", broker=broker, boot_id=boot_id), NOW + 60 * SECOND)


def test_what_a_kill_left_becomes_trace_files(tmp_path: Path) -> None:
    leave(tmp_path)
    assert stored(tmp_path) == WANTED[:1]
    assert is_left(tmp_path, 2001)
    found = sealed(tmp_path)
    assert (stored(tmp_path), left(tmp_path)) == (WANTED, [])
    assert (found.open_rows, found.rows, found.files, found.lost_bytes) == (1, 3, 3, 0)  # and a histogram
    assert not is_left(tmp_path, 2001)
    assert sealed(tmp_path, "s1").files == 0


def test_other_brokers_are_left_alone(tmp_path: Path) -> None:
    leave(tmp_path)
    before = left(tmp_path)
    assert not is_left(tmp_path, 200)
    assert sealed(tmp_path, broker=200).files == 0
    assert left(tmp_path) == before


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, number: int, *, is_torn: bool) -> Iterator[list[int]]:
    """End at the call of this number that changes the disk; a torn one has done half of its work."""
    count = [0]

    def guarded(call: Callable[..., Any], half: Callable[..., Any] | None = None) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            count[0] += 1
            if count[0] == number:
                if is_torn and half is not None:
                    half(*arguments, **named)
                raise Killed
            return call(*arguments, **named)

        return run

    write, write_table = os.write, pq.write_table

    def half_write(file: int, raw: memoryview) -> None:
        write(file, raw[: len(raw) // 2])

    def half_table(table: Any, path: Path, **_: Any) -> None:
        path.write_bytes(b"PAR1 and no more")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", guarded(write, half_write))
        patched.setattr(os, "open", guarded(os.open))
        patched.setattr(Path, "unlink", guarded(Path.unlink, Path.unlink))
        patched.setattr(Path, "rename", guarded(Path.rename, Path.rename))
        patched.setattr(pq, "write_table", guarded(write_table, half_table))
        yield count


@pytest.mark.parametrize("is_torn", [False, True])
def test_killed_anywhere_and_done_again_every_row_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_torn: bool
) -> None:
    leave(tmp_path / "left")
    for number in range(1, CALLS_MAX):
        directory = shutil.copytree(tmp_path / "left", tmp_path / str(number))
        try:
            with killed_at(monkeypatch, number, is_torn=is_torn) as count:
                sealed(directory)
        except Killed:
            sealed(directory, "s1")
        else:
            assert count[0] == number - 1
            break
        assert (stored(directory), left(directory)) == (WANTED, []), number
    assert 10 < number < CALLS_MAX - 1


@pytest.mark.parametrize("number", [2, 4, 5, 7, 9])
def test_killed_somewhere_the_brokers_own_start_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    leave(tmp_path)
    with pytest.raises(Killed), killed_at(monkeypatch, number, is_torn=True):
        sealed(tmp_path)
    own = TraceWriter(
        directory=tmp_path,
        identity=Identity(region="eu", broker=2001, boot_id="b1"),
        clock_ns=lambda: NOW + 120 * SECOND,
        roll_period_s=1,
    )
    own.recover()
    own.roll()
    assert (stored(tmp_path), left(tmp_path)) == (WANTED, [])


def test_a_full_disk_costs_nothing_that_is_not_sealed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for target, name in ((os, "write"), (pq, "write_table")):
        with monkeypatch.context() as patched:
            patched.setattr(target, name, refuse)
            with pytest.raises(OSError, match="No space left"):
                sealed(tmp_path, f"full{name[-1]}")
        assert is_left(tmp_path, 2001)
    sealed(tmp_path, "s1")
    assert (stored(tmp_path), left(tmp_path)) == (WANTED, [])


def test_open_rows_that_make_no_sense_are_counted_and_the_rest_is_sealed(tmp_path: Path) -> None:
    leave(tmp_path)
    path = tmp_path / SPOOL_FOLDER / "open-2001-b0.rows"
    path.write_bytes(path.read_bytes().replace(b'["delivered"', b'["deliv\xff\xffed"'))
    found = sealed(tmp_path)
    assert (found.damaged_rows >= 1, found.open_rows) == (True, 0)
    assert (stored(tmp_path), left(tmp_path)) == (WANTED[:2], [])


def test_nothing_is_deleted_for_its_age(tmp_path: Path) -> None:
    leave(tmp_path)
    for path in tmp_path.rglob("*.parquet"):
        os.utime(path, (1, 1))
    seal(tmp_path, Identity(region="eu", broker=2001, boot_id="s0"), NOW + 10 * 365 * 86_400 * SECOND)
    assert stored(tmp_path) == WANTED
