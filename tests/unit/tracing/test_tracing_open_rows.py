"""Ledger rows survive a kill -9 before they are spooled: none is lost, none is there twice."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from georelay.trace.files import SPOOL_FOLDER
from georelay.trace.kinds import LedgerKind, TraceKind
from mesh.tracing import open_rows, recorder_core
from mesh.tracing import writer as writer_module
from mesh.tracing.latency_cells_core import Row
from mesh.tracing.open_rows import FILE_BYTES, OpenRows, left_open, read_open_rows, without_spooled
from mesh.tracing.recorder_core import Drained, RecorderCore
from mesh.tracing.writer import TraceWriter
from mesh.tracing.written import Identity

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND
REGIONS = {1: "us", 2: "eu"}


def opened(directory: Path, boot_id: str = "b0") -> OpenRows:
    rows = OpenRows(directory, region="eu", broker=2001, boot_id=boot_id, region_name=REGIONS.__getitem__)
    rows.open()
    return rows


def core_with(rows: OpenRows) -> RecorderCore:
    return RecorderCore(region="eu", broker=2001, first_session=100, region_name=REGIONS.__getitem__, journal=rows)


def deliver(session: Any, base: int, count: int, at_ns: int) -> None:
    session.delivered(
        epoch=1, base_offset=base, record_count=count, entry_region=1, received_ns=at_ns - 5, delivered_ns=at_ns
    )


def kept(directory: Path, boot_id: str = "b0") -> list[Row]:
    path = directory / SPOOL_FOLDER / f"open-2001-{boot_id}.rows"
    return read_open_rows(path.read_bytes(), region="eu", broker=2001)


def drained(core: RecorderCore, now_ns: int = NOW, *, final: bool = True) -> list[Row]:
    return core.drain(now_ns, final=final).finished().get(TraceKind.LEDGER, [])


def make_writer(
    directory: Path,
    boot_id: str,
    rows: OpenRows | None = None,
    *,
    clock_ns: Callable[[], int] = lambda: NOW,
    roll_period_s: float = 1_000,
) -> TraceWriter:
    identity = Identity(region="eu", broker=2001, boot_id=boot_id)
    return TraceWriter(
        directory=directory, identity=identity, clock_ns=clock_ns, roll_period_s=roll_period_s, open_rows=rows
    )


def after_a_kill(directory: Path, copy: Path) -> list[tuple[int, int]]:
    """Return the ranges that the next run makes of a copy of what is there now."""
    shutil.copytree(directory, copy)
    after = make_writer(copy, "b1")
    after.recover()
    after.roll()
    return sorted(stored(copy))


def refuse(*_: object) -> None:
    raise OSError(28, "No space left on device")


def stored(directory: Path) -> list[tuple[int, int]]:
    tables = [pq.ParquetFile(path).read() for path in sorted(directory.rglob("ledger-*.parquet"))]
    return [(row["from_offset"], row["to_offset"]) for table in tables for row in table.to_pylist()]


def test_a_row_is_kept_as_it_grows(tmp_path: Path) -> None:
    core = core_with(opened(tmp_path))
    session = core.open_session(topic="orders", origin=1, partition=3, offset=0, group="g")
    for base in (0, 10, 20):
        deliver(session, base, 10, NOW + base)
    head = ("delivered", "eu", "2001", "us", "orders", 3, 1, "g")
    assert kept(tmp_path) == [(*head, 0, 30, NOW, NOW + 20, 1, 100, 0, None)]


EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(1, 9), st.integers(0, SECOND // 2)), max_size=40
)


@given(EVENTS)
def test_what_is_kept_is_what_would_have_been_written(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, int, int, int]]
) -> None:
    directory = tmp_path_factory.mktemp("open")
    core = core_with(opened(directory))
    sessions = [core.open_session(topic=f"t{number}", origin=0, partition=0, offset=0) for number in range(2)]
    at_ns = NOW
    for which, base, count, step_ns in events:
        at_ns += step_ns // 8
        if which < 2:
            deliver(sessions[which], base, count, at_ns)
        else:
            core.log_advanced(
                LedgerKind.COMMIT, topic="t0", origin=0, partition=0, epoch=1, from_offset=base,
                to_offset=base + count, now_ns=at_ns,
            )  # fmt: skip
    found = kept(directory)
    assert sorted(map(repr, found)) == sorted(map(repr, drained(core, at_ns)))


def test_seconds_that_are_spooled_are_not_kept(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    core = core_with(rows)
    session = core.open_session(topic="orders", origin=0, partition=0, offset=0)
    deliver(session, 0, 10, NOW)
    deliver(session, 10, 10, NOW + SECOND)
    writer = make_writer(tmp_path, "b0", rows)
    writer.take(core.drain(NOW + SECOND))
    assert [(row[8], row[9]) for row in kept(tmp_path)] == [(10, 20)]


def test_the_next_run_writes_what_a_killed_one_had_not(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    core = core_with(rows)
    session = core.open_session(topic="orders", origin=0, partition=0, offset=0)
    deliver(session, 0, 10, NOW)
    deliver(session, 10, 10, NOW + SECOND)
    make_writer(tmp_path, "b0", rows).take(core.drain(NOW + SECOND))
    after = make_writer(tmp_path, "b1")
    after.recover()
    after.roll()
    assert sorted(stored(tmp_path)) == [(0, 10), (10, 20)]
    assert left_open(tmp_path, 2001, "b1") == []


@pytest.mark.parametrize("kills", [1, 3])
def test_a_kill_between_the_spool_and_its_mark_doubles_nothing(tmp_path: Path, kills: int) -> None:
    rows = opened(tmp_path)
    core = core_with(rows)
    deliver(core.open_session(topic="orders", origin=0, partition=0, offset=0), 0, 10, NOW)
    make_writer(tmp_path, "b0").take(core.drain(NOW + SECOND))  # nobody marks it
    raw = (tmp_path / SPOOL_FOLDER / "open-2001-b0.rows").read_bytes()
    assert len(read_open_rows(raw, region="eu", broker=2001)) == 1
    for number in range(kills):
        again = make_writer(tmp_path, f"b{number + 1}")
        again._held += open_left_spools(tmp_path)
        again._take_open_rows()
        (tmp_path / SPOOL_FOLDER / "open-2001-b0.rows").write_bytes(raw)  # killed before it was removed
    last = make_writer(tmp_path, "b9")
    last.recover()
    last.roll()
    assert stored(tmp_path) == [(0, 10)]


def open_left_spools(directory: Path) -> list[Path]:
    return sorted((directory / SPOOL_FOLDER).glob("*.wal"))


def test_a_run_that_ends_in_order_leaves_nothing(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    core = core_with(rows)
    deliver(core.open_session(topic="t", origin=0, partition=0, offset=0), 0, 1, NOW)
    writer = make_writer(tmp_path, "b0", rows)
    writer.take(core.drain(NOW, final=True))
    writer.roll()
    rows.close()
    assert list((tmp_path / SPOOL_FOLDER).iterdir()) == []
    rows.grown(8_192, 5, 5)  # what comes later has no place
    rows.spooled([(8_192, 5)])


def test_a_mark_that_comes_late_says_nothing_about_the_row_that_has_the_place_now(tmp_path: Path) -> None:
    rows = opened(tmp_path)
    core = core_with(rows)
    session = core.open_session(topic="t", origin=0, partition=0, offset=0)
    deliver(session, 0, 5, NOW)
    late = core.drain(NOW + SECOND).noted
    deliver(session, 5, 5, NOW + open_rows.ARENAS * SECOND)
    rows.spooled(late)
    assert [row[8] for row in kept(tmp_path)] == [5]


def test_rows_without_room_are_counted_and_harm_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_rows, "ROWS_MAX", 2)
    rows = opened(tmp_path)
    core = core_with(rows)
    for number in range(3):
        deliver(core.open_session(topic="t", origin=0, partition=number, offset=0), 0, 1, NOW)
    deliver(core.open_session(topic="t" * 249, origin=0, partition=9, offset=0, group="g" * 255), 0, 1, NOW + SECOND)
    assert (rows.unnoted, len(kept(tmp_path))) == (2, 2)
    assert len(drained(core, NOW + SECOND)) == 4


def test_an_old_second_gives_its_room_to_a_new_one(tmp_path: Path) -> None:
    core = core_with(opened(tmp_path))
    session = core.open_session(topic="t", origin=0, partition=0, offset=0)
    for second in range(open_rows.ARENAS + 2):
        deliver(session, 10 * second, 10, NOW + second * SECOND)
    assert sorted(row[8] for row in kept(tmp_path)) == [10 * second for second in range(2, open_rows.ARENAS + 2)]


def test_a_disk_that_is_full_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    core = core_with(opened(tmp_path))
    deliver(core.open_session(topic="t", origin=0, partition=0, offset=0), 0, 1, NOW)
    assert len(drained(core)) == 1
    assert list((tmp_path / SPOOL_FOLDER).iterdir()) == []


@pytest.mark.parametrize("raw", [b"", b"x" * 100, bytes(FILE_BYTES), b"georelay open rows 1\n"])
def test_what_is_no_such_file_has_no_rows(raw: bytes) -> None:
    assert read_open_rows(raw, region="eu", broker=2001) == []


def test_rows_are_told_apart_by_session_and_place() -> None:
    def row(session: int, first: int) -> Row:
        return ("delivered", "eu", "1", "", "t", 0, 1, None, first, first + 5, 7, 8, 1, session, 0, None)

    assert without_spooled([row(1, 0), row(1, 5), row(2, 0)], [row(1, 0)]) == [row(1, 5), row(2, 0)]


def test_rows_of_a_second_that_goes_on_are_there_once_although_their_spool_became_a_file(tmp_path: Path) -> None:
    rows = opened(tmp_path / "traces")
    core = core_with(rows)
    now = [NOW]
    writer = make_writer(tmp_path / "traces", "b0", rows, clock_ns=lambda: now[0], roll_period_s=0)
    session = core.open_session(topic="orders", origin=0, partition=0, offset=0)
    wanted = []
    for second in range(4):
        at_ns = NOW + second * SECOND
        deliver(session, 20 * second, 2, at_ns)
        deliver(session, 20 * second + 5, 2, at_ns + 1)  # a jump: the row before it is complete in its own second
        wanted += [(20 * second, 20 * second + 2), (20 * second + 5, 20 * second + 7)]
        now[0] = at_ns + SECOND // 2
        writer.take(core.drain(now[0]))
        assert after_a_kill(tmp_path / "traces", tmp_path / str(second)) == wanted


def test_a_drain_in_pieces_over_the_end_of_a_second_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_core, "RUNS_PER_DRAIN", 20)
    rows = opened(tmp_path / "traces")
    core = core_with(rows)
    for number in range(25):
        deliver(core.open_session(topic="t", origin=0, partition=number, offset=0), number, 1, NOW)
    writer = make_writer(tmp_path / "traces", "b0", rows, roll_period_s=0)
    for at_ns in (NOW + SECOND - 1, NOW + SECOND, NOW + SECOND + 1):
        writer.take(core.drain(at_ns))
        wanted = [(number, number + 1) for number in range(25)]
        assert after_a_kill(tmp_path / "traces", tmp_path / str(at_ns)) == wanted


def test_a_clock_that_steps_back_doubles_nothing(tmp_path: Path) -> None:
    rows = opened(tmp_path / "traces")
    core = core_with(rows)
    writer = make_writer(tmp_path / "traces", "b0", rows, roll_period_s=0)
    session = core.open_session(topic="t", origin=0, partition=0, offset=0)
    deliver(session, 0, 5, NOW)
    writer.take(core.drain(NOW + SECOND))
    deliver(session, 5, 5, NOW - 3 * SECOND)
    writer.take(core.drain(NOW - 2 * SECOND))
    assert after_a_kill(tmp_path / "traces", tmp_path / "copy") == [(0, 5), (5, 10)]


def test_rows_that_a_full_disk_keeps_waiting_are_kept_and_not_rolled_before_all_are_spooled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = opened(tmp_path / "traces")
    core = core_with(rows)
    writer = make_writer(tmp_path / "traces", "b0", rows, roll_period_s=0)
    session = core.open_session(topic="t", origin=0, partition=0, offset=0)
    deliver(session, 0, 5, NOW)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        writer.take(core.drain(NOW + SECOND))
    assert after_a_kill(tmp_path / "traces", tmp_path / "full") == [(0, 5)]
    deliver(session, 9, 5, NOW + SECOND)
    writer.take(core.drain(NOW + 2 * SECOND))
    assert after_a_kill(tmp_path / "traces", tmp_path / "room") == [(0, 5), (9, 14)]


def test_a_run_that_ends_in_order_on_a_full_disk_leaves_its_rows_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = opened(tmp_path)
    core = core_with(rows)
    writer = make_writer(tmp_path, "b0", rows)
    deliver(core.open_session(topic="t", origin=0, partition=0, offset=0), 0, 5, NOW)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        writer.take(core.drain(NOW + SECOND))
        writer.roll()
        rows.close()
    after = make_writer(tmp_path, "b1")
    after.recover()
    after.roll()
    assert stored(tmp_path) == [(0, 5)]


def test_a_disk_that_is_full_at_the_start_costs_no_row_of_the_killed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(core_with(opened(tmp_path)).open_session(topic="t", origin=0, partition=0, offset=0), 0, 5, NOW)
    for boot_id in ("b1", "b2"):
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", refuse)
            make_writer(tmp_path, boot_id).recover()
    after = make_writer(tmp_path, "b3")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        after.recover()
    after.take(Drained())
    assert left_open(tmp_path, 2001, "b3") == []
    after.roll()
    assert stored(tmp_path) == [(0, 5)]


def test_spools_that_cannot_be_listed_double_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = opened(tmp_path)
    core = core_with(rows)
    deliver(core.open_session(topic="t", origin=0, partition=0, offset=0), 0, 5, NOW)
    make_writer(tmp_path, "b0").take(core.drain(NOW + SECOND))  # nobody marks it
    with monkeypatch.context() as patched:
        patched.setattr(writer_module, "left_over", refuse)
        make_writer(tmp_path, "b1").recover()
    after = make_writer(tmp_path, "b2")
    after.recover()
    after.roll()
    assert stored(tmp_path) == [(0, 5)]


def damage(directory: Path, boot_id: str, old: bytes, new: bytes) -> None:
    path = directory / SPOOL_FOLDER / f"open-2001-{boot_id}.rows"
    raw = path.read_bytes()
    assert old in raw and len(old) == len(new)
    path.write_bytes(raw.replace(old, new, 1))


@pytest.mark.parametrize("new", [bytes(12), b"17,          ", b"[1,2,3,4]   ", b'{"a":1}     ', b"\xff" * 12])
def test_a_row_that_makes_no_sense_costs_itself_only(tmp_path: Path, new: bytes) -> None:
    for number, boot_id in enumerate(("a0", "a1")):
        core = core_with(opened(tmp_path, boot_id))
        for part in range(2):
            session = core.open_session(topic="t", origin=0, partition=part, offset=0)
            deliver(session, 10 * number + 5 * part, 5, NOW)
    old = b'["delivered", "", "t", ""]'
    damage(tmp_path, "a0", old, new[:12].ljust(len(old), b" " if new.strip() else b"\0"))
    after = make_writer(tmp_path, "b1")
    after.recover()
    after.roll()
    assert sorted(stored(tmp_path)) == [(5, 10), (10, 15), (15, 20)]
    assert left_open(tmp_path, 2001, "b1") == []


def test_a_file_that_cannot_be_read_is_left_and_does_not_stand_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, boot_id in enumerate(("a0", "a1")):
        session = core_with(opened(tmp_path, boot_id)).open_session(topic="t", origin=0, partition=0, offset=0)
        deliver(session, 10 * number, 10, NOW)
    read = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.name == "open-2001-a0.rows":
            raise OSError(5, "Input/output error")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    after = make_writer(tmp_path, "b1")
    after.recover()
    after.roll()
    assert stored(tmp_path) == [(10, 20)]
    assert [path.name for path in left_open(tmp_path, 2001, "b1")] == ["open-2001-a0.rows"]


def test_rows_of_an_earlier_boot_of_the_machine_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(core_with(opened(tmp_path)).open_session(topic="t", origin=0, partition=0, offset=0), 0, 5, NOW)
    monkeypatch.setattr(open_rows, "machine_boot", lambda: "0" * 36)
    assert kept(tmp_path) == []
    after = make_writer(tmp_path, "b1")
    after.recover()
    after.roll()
    assert (stored(tmp_path), left_open(tmp_path, 2001, "b1")) == ([], [])


def test_a_machine_that_does_not_name_its_boots_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_rows, "MACHINE_BOOT", tmp_path / "nowhere")
    deliver(core_with(opened(tmp_path)).open_session(topic="t", origin=0, partition=0, offset=0), 0, 5, NOW)
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize("call", ["posix_fallocate", "open"])
def test_a_trace_folder_that_cannot_be_had_does_not_keep_a_broker_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, call, read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    core = core_with(opened(tmp_path))
    deliver(core.open_session(topic="t", origin=0, partition=0, offset=0), 0, 1, NOW)
    assert len(drained(core)) == 1


def test_a_file_in_the_place_of_the_trace_folder_does_not_keep_a_broker_from_starting(tmp_path: Path) -> None:
    (tmp_path / "traces").write_text("no folder")
    opened(tmp_path / "traces")


def test_a_mapping_that_is_refused_does_not_keep_a_broker_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_short(*_: object) -> None:
        raise ValueError("mmap length is greater than file size")

    monkeypatch.setattr(mmap, "mmap", too_short)
    opened(tmp_path)
    assert list((tmp_path / SPOOL_FOLDER).iterdir()) == []


def test_the_origin_of_a_region_that_is_unknown_at_first_is_asked_for_again(tmp_path: Path) -> None:
    names: dict[int, str] = {}
    rows = OpenRows(tmp_path, region="eu", broker=2001, boot_id="b0", region_name=lambda number: names.get(number, ""))
    rows.open()
    session = core_with(rows).open_session(topic="t", origin=1, partition=0, offset=0)
    deliver(session, 0, 1, NOW)
    names[1] = "us"
    deliver(session, 5, 1, NOW)
    assert [row[3] for row in kept(tmp_path)] == ["", "us"]


def test_a_region_that_got_its_name_between_two_rows_doubles_none(tmp_path: Path) -> None:
    names: dict[int, str] = {}

    def region_name(number: int) -> str:
        return names.get(number, "")

    rows = OpenRows(tmp_path, region="eu", broker=2001, boot_id="b0", region_name=region_name)
    rows.open()
    core = RecorderCore(region="eu", broker=2001, first_session=100, region_name=region_name, journal=rows)
    deliver(core.open_session(topic="t", origin=1, partition=0, offset=0), 0, 5, NOW)
    names[1] = "us"
    make_writer(tmp_path, "b0").take(core.drain(NOW + SECOND))  # nobody marks it
    after = make_writer(tmp_path, "b1")
    after.recover()
    after.roll()
    assert stored(tmp_path) == [(0, 5)]
