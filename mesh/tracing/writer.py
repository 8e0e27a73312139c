"""Trace files: rows in, Parquet files out, in a thread of its own.

Rule 1: at most 1000 rows are converted per call: a longer one would hold the interpreter lock and stall the broker.
Rule 2: a file appears whole or not at all: it is written under a hidden name, synced, renamed, and its folder synced.
Rule 3: rows are numbered before anything can lose them, so whatever is missing can be counted by the reader.
Rule 4: a failing disk costs traces, never records: rows wait for the next roll, then the oldest are dropped, counted.

A crash loses the rows since the last roll.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from georelay.trace.files import IN_PROGRESS_PREFIX, TraceFileMetadata, TraceFileName, partition_path
from georelay.trace.histogram import GRID
from georelay.trace.schema import SCHEMAS, TraceKind
from mesh.tracing.recorder_core import Drained, Row

ROWS_PER_CONVERSION_MAX: Final = 1_000
ROWS_HELD_MAX: Final = 500_000  # per kind, converted and not yet in a file (about 100 MB at the very worst)
ROWS_PER_FILE_MAX: Final = 131_072  # one row group; reaching it rolls early
DRAINS_QUEUED_MAX: Final = 120  # two minutes of a thread that stands still

_DELTA_COLUMNS: Final = {
    kind: {field.name: "DELTA_BINARY_PACKED" for field in schema if pa.types.is_int64(field.type)}
    for kind, schema in SCHEMAS.items()
}
_DICTIONARY_COLUMNS: Final = {
    kind: [field.name for field in schema if pa.types.is_string(field.type)] for kind, schema in SCHEMAS.items()
}

log = structlog.get_logger()


def batch_of(kind: TraceKind, rows: list[Row]) -> Any:
    """Return an Arrow record batch of rows whose values stand in the order of the schema."""
    schema = SCHEMAS[kind]
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


@dataclass(slots=True)
class WriterStats:
    """Running counts; read from any thread."""

    rows_written: int = 0
    rows_dropped: int = 0
    files_written: int = 0
    write_failures: int = 0


class _Lane:
    """The rows of one kind that are not in a file yet, with their numbers."""

    def __init__(self, kind: TraceKind) -> None:
        self.kind = kind
        self.batches: deque[tuple[int, Any]] = deque()  # (number of the first row, record batch)
        self.rows_held = 0
        self.next_row = 0
        self.dropped = 0
        self.next_file = 0

    def take(self, rows: list[Row], dropped: int) -> int:
        """Convert and hold rows, the oldest making room. Returns how many rows were given up, `dropped` included."""
        self.next_row += dropped  # they were rows: the jump in the numbers shows it
        for start in range(0, len(rows), ROWS_PER_CONVERSION_MAX):
            batch = batch_of(self.kind, rows[start : start + ROWS_PER_CONVERSION_MAX])
            self.batches.append((self.next_row, batch))
            self.next_row += batch.num_rows
            self.rows_held += batch.num_rows
        while self.rows_held > ROWS_HELD_MAX:
            dropped += self._give_up_oldest()
        self.dropped += dropped
        return dropped

    def _give_up_oldest(self) -> int:
        rows: int = self.batches.popleft()[1].num_rows
        self.rows_held -= rows
        return rows

    def head(self) -> list[tuple[int, Any]]:
        """Return the batches of the next file: consecutive row numbers, at most one row group."""
        chosen: list[tuple[int, Any]] = []
        rows = 0
        for first, batch in self.batches:
            if chosen and (
                first != chosen[-1][0] + chosen[-1][1].num_rows or rows + batch.num_rows > ROWS_PER_FILE_MAX
            ):
                break
            chosen.append((first, batch))
            rows += batch.num_rows
        return chosen

    def forget(self, batches: int) -> None:
        """Drop the first batches: they are in a file."""
        for _ in range(batches):
            self.rows_held -= self.batches.popleft()[1].num_rows


class TraceWriter:
    """Rolls trace files of one broker.

    Args:
        directory: the trace directory, shared by all brokers of a mesh; made when missing.
        region: name of the region, a folder of the layout.
        broker: mesh-wide broker id.
        boot_id: names this run, [0-9a-z]{1,32}.
        clock_ns: wall clock, ns since 1970.
        roll_period_s: age at which rows go into a file, >= 0. Short: less is lost in a crash; long: fewer files.
    """

    def __init__(
        self,
        *,
        directory: Path,
        region: str,
        broker: int,
        boot_id: str,
        clock_ns: Callable[[], int],
        roll_period_s: float,
    ) -> None:
        self._directory = directory
        self._region = region
        self._broker = broker
        self._boot_id = boot_id
        self._clock_ns = clock_ns
        self._roll_period_ns = int(roll_period_s * 1e9)
        self._lanes = {kind: _Lane(kind) for kind in TraceKind}
        self._queue: queue.Queue[Drained | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._last_roll_ns = clock_ns()
        self.stats = WriterStats()

    def start(self) -> None:
        """Start the thread."""
        assert self._thread is None, "started twice"
        self._thread = threading.Thread(target=self._run, name="trace-writer", daemon=True)
        self._thread.start()

    def submit(self, drained: Drained) -> bool:
        """Hand over rows from the event loop; False when the thread stands still: count them lost."""
        if self._queue.qsize() >= DRAINS_QUEUED_MAX:
            return False
        self._queue.put_nowait(drained)
        return True

    def close(self) -> None:
        """Roll everything and end the thread. Blocks: call it outside the event loop."""
        if self._thread is not None:
            self._queue.put_nowait(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        # The first conversion imports pandas where it is installed, and holds the interpreter for a quarter of a
        # second meanwhile: better now than in the middle of the traffic.
        pa.array([0])
        self._remove_leftovers()
        while True:
            drained = self._queue.get()
            if drained is None:
                self.roll()
                return
            self.take(drained)

    def take(self, drained: Drained) -> None:
        """Hold rows, and roll when it is time."""
        self._hold(TraceKind.LATENCY_HIST, drained.latency_hist, drained.latency_hist_dropped)
        self._hold(TraceKind.LEDGER, drained.ledger, drained.ledger_dropped)
        is_full = any(lane.rows_held >= ROWS_PER_FILE_MAX for lane in self._lanes.values())
        if is_full or self._clock_ns() - self._last_roll_ns >= self._roll_period_ns:
            self.roll()

    def _hold(self, kind: TraceKind, rows: list[Row], dropped: int) -> None:
        given_up = self._lanes[kind].take(rows, dropped)
        if given_up:
            self.stats.rows_dropped += given_up
            log.warning("trace.rows_dropped", kind=kind.value, rows=given_up, broker=self._broker)

    def roll(self) -> None:
        """Write every row held. On a failure the rest stays held for the next roll."""
        self._last_roll_ns = self._clock_ns()
        for lane in self._lanes.values():
            while lane.batches:
                head = lane.head()
                try:
                    self._write(lane, head)
                except OSError as error:
                    self.stats.write_failures += 1
                    log.warning("trace.write_failed", kind=lane.kind.value, error=str(error), rows_held=lane.rows_held)
                    break
                lane.forget(len(head))

    def _write(self, lane: _Lane, head: list[tuple[int, Any]]) -> None:
        table = pa.Table.from_batches([batch for _, batch in head])
        metadata = TraceFileMetadata(
            kind=lane.kind,
            writer=f"{self._region}/{self._broker}",
            boot_id=self._boot_id,
            first_row_seq=head[0][0],
            last_row_seq=head[0][0] + table.num_rows - 1,
            rows=table.num_rows,
            dropped=lane.dropped,
            hist_grid=GRID,
        )
        name = TraceFileName(kind=lane.kind, broker=self._broker, boot_id=self._boot_id, sequence=lane.next_file)
        folder = self._directory / partition_path(self._region, self._clock_ns())
        folder.mkdir(parents=True, exist_ok=True)
        in_progress = self._directory / f"{IN_PROGRESS_PREFIX}{name}"
        pq.write_table(
            table.replace_schema_metadata(metadata.encode()),
            in_progress,
            row_group_size=ROWS_PER_FILE_MAX,
            compression="zstd",
            use_dictionary=_DICTIONARY_COLUMNS[lane.kind],
            column_encoding=_DELTA_COLUMNS[lane.kind],
            write_page_checksum=True,
        )
        _sync(in_progress)
        in_progress.rename(folder / str(name))
        _sync(folder)
        lane.next_file += 1
        self.stats.files_written += 1
        self.stats.rows_written += table.num_rows

    def _remove_leftovers(self) -> None:
        """Remove the unfinished files of this broker's earlier runs."""
        for kind in TraceKind:
            for leftover in self._directory.glob(f"{IN_PROGRESS_PREFIX}{kind.value}-{self._broker}-*"):
                try:
                    leftover.unlink(missing_ok=True)
                except OSError as error:
                    log.warning("trace.leftover_kept", path=str(leftover), error=str(error))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
