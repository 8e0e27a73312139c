"""The writer's thread works in short steps and rests in between, except when somebody waits for it."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from georelay.trace.kinds import TraceKind
from georelay.trace.schema import SCHEMAS
from mesh.tracing import writer as writer_module
from mesh.tracing.latency_cells_core import Row
from mesh.tracing.pace import REST_NS_MAX, REST_PER_WORK, STEP_NS, Pace
from mesh.tracing.recorder_core import Drained
from mesh.tracing.rolling import roll
from mesh.tracing.spooler import NESTED_ROWS_PER_CALL, Spooler, batch_of
from mesh.tracing.writer import DRAINS_HURRIED, TraceWriter
from mesh.tracing.written import Identity

IDENTITY = Identity(region="eu", broker=2001, boot_id="b0")
PROBE: Row = ("us", "eu", "us/1001", 1, 2, 3, 4, "ok", 5_000)


class Worker:
    """A thread whose CPU time and rests a test sees."""

    def __init__(self) -> None:
        self.cpu_ns = 0
        self.rests_s: list[float] = []
        self.is_hurried = False
        self.pace = Pace(lambda: self.is_hurried, cpu_ns=lambda: self.cpu_ns, sleep=self.rests_s.append)

    def work(self, ns: int) -> None:
        self.cpu_ns += ns
        self.pace()


def histogram(second: int) -> Row:
    buckets = [{"b": bucket, "n": second + 1} for bucket in range(3)]
    return (second, "us", "eu", "t", "", 5, 3, 3, 9, 9, buckets, "total", 3, 3, 0, 0)


def test_a_rest_is_nine_times_as_long_as_the_work_before_it() -> None:
    worker = Worker()
    for ns in (STEP_NS, 2 * STEP_NS):
        worker.work(ns)
    assert worker.rests_s == [pytest.approx(REST_PER_WORK * ns / 1e9) for ns in (STEP_NS, 2 * STEP_NS)]
    assert REST_PER_WORK == 9


def test_pieces_too_short_to_rest_after_are_counted_together() -> None:
    worker = Worker()
    for _ in range(4):
        worker.work(STEP_NS // 4)
    assert worker.rests_s == [pytest.approx(REST_PER_WORK * STEP_NS / 1e9)]


def test_a_rest_is_bounded_however_long_one_piece_took() -> None:
    worker = Worker()
    worker.work(10**9)
    assert worker.rests_s == [REST_NS_MAX / 1e9]


def test_whoever_is_hurried_does_not_rest() -> None:
    worker = Worker()
    worker.is_hurried = True
    worker.work(10**9)
    assert worker.rests_s == []


def test_the_thread_may_rest_after_every_column_and_every_frame(tmp_path: Path) -> None:
    rests: list[int] = []
    spooler = Spooler(TraceKind.PROBE, tmp_path, IDENTITY, rest=lambda: rests.append(1))
    spooler.take([PROBE], 0, 0)
    assert len(rests) == len(SCHEMAS[TraceKind.PROBE]) + 1


def test_the_thread_may_rest_after_every_frame_that_is_read_and_every_file(tmp_path: Path) -> None:
    spooler = Spooler(TraceKind.PROBE, tmp_path, IDENTITY)
    for _ in range(3):
        spooler.take([PROBE], 0, 0)
    spool = spooler.rotate()
    assert spool is not None
    rests: list[int] = []
    assert roll(spool, tmp_path, rest=lambda: rests.append(1)).rows == 3
    assert len(rests) == 3 + 1


def test_no_call_converts_more_than_a_few_histograms(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [histogram(second) for second in range(2 * NESTED_ROWS_PER_CALL + 1)]
    sizes: list[int] = []
    convert = pa.array

    def noted(values: list[object], type: object) -> object:
        if isinstance(values[0], list):
            sizes.append(len(values))
        return convert(values, type=type)

    monkeypatch.setattr(pa, "array", noted)
    batch = batch_of(TraceKind.LATENCY_HIST, rows, first_row_seq=0, boot_id="b0")
    assert sizes == [NESTED_ROWS_PER_CALL, NESTED_ROWS_PER_CALL, 1]
    batch.validate(full=True)
    assert batch.column("hist").to_pylist() == [row[10] for row in rows]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return what the writers of a test answer, in their threads, when they are asked whether they are hurried."""
    answers: list[bool] = []

    class Asking(Pace):
        def __call__(self) -> None:
            answers.append(self._is_hurried())

    monkeypatch.setattr(writer_module, "Pace", Asking)
    return answers


def make_writer(directory: Path) -> TraceWriter:
    return TraceWriter(directory=directory, identity=IDENTITY, clock_ns=lambda: 0, roll_period_s=300)


def probes() -> Drained:
    return Drained(rows={TraceKind.PROBE: [PROBE]})


def test_a_writer_without_its_thread_is_hurried(hurried: list[bool], tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    writer.take(probes())
    writer.roll()
    assert set(hurried) == {True}


def test_the_thread_takes_its_time_until_it_is_closed(hurried: list[bool], tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    writer.start()
    is_taken = threading.Event()
    last = probes()
    last.region_name = str
    take = writer.take

    def told(drained: Drained) -> None:
        take(drained)
        is_taken.set()

    writer.take = told  # type: ignore[method-assign]
    writer.submit(last)
    assert is_taken.wait(10)
    before = list(hurried)
    writer.close()
    assert set(before) == {False}
    assert set(hurried[len(before) :]) == {True}


def test_a_thread_that_is_behind_is_hurried(hurried: list[bool], tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    may_go = threading.Event()
    recover = writer.recover

    def waiting() -> None:
        may_go.wait(10)
        recover()

    writer.recover = waiting  # type: ignore[method-assign]
    writer.start()
    for _ in range(DRAINS_HURRIED + 2):
        writer.submit(probes())
    may_go.set()
    for _ in range(10_000):
        if writer.stats.rows_written[TraceKind.PROBE] == DRAINS_HURRIED + 2:
            break
        threading.Event().wait(0.001)
    per_drain = len(hurried) // (DRAINS_HURRIED + 2)
    assert (hurried[0], hurried[-1]) == (True, False)
    assert hurried.count(True) == per_drain
    writer.close()
