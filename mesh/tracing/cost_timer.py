"""`python -m mesh.tracing.cost_timer`: what traces cost a broker, measured on this machine without one.

Prints one JSON object: CPU microseconds of the event-loop thread per batch on the paths of a record (`delivered_us`,
`committed_us`), CPU milliseconds that one drain holds the loop (`drain_ms_max`), CPU milliseconds of the writer's
thread per second of traffic (`spool_ms`, `roll_ms`), and per second of traffic the `rows`, and their bytes in the spool
and in the files (`spool_bytes`, `file_bytes`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from georelay.trace.kinds import LedgerKind
from mesh.tracing.latency_cells_core import Correction
from mesh.tracing.open_rows import OpenRows
from mesh.tracing.recorder_core import Drained, RecorderCore
from mesh.tracing.writer import TraceWriter
from mesh.tracing.written import Identity

BATCHES_PER_S: Final = 1_000
PAYLOAD: Final = memoryview(bytes(200))
START_NS: Final = 1_700_000_000 * 1_000_000_000


class _Entry:
    """A committed entry without a log."""

    __slots__ = ("append_us", "base_offset", "entry_region", "payload", "producer_id", "received_ns", "record_count")

    def __init__(self, base_offset: int, record_count: int, received_ns: int) -> None:
        self.base_offset = base_offset
        self.record_count = record_count
        self.received_ns = received_ns
        self.append_us = received_ns // 1_000
        self.entry_region = 1
        self.producer_id = -1
        self.payload = PAYLOAD

    def header(self) -> _Entry:
        """Return the stream part."""
        return self


def measure(directory: Path, *, seconds: int, partitions: int, records: int, rows_per_s: int) -> dict[str, float]:
    """Return the figures of `seconds` seconds of BATCHES_PER_S batches of `records` records, spread over partitions."""
    names = {number: f"r{number}" for number in range(10)}
    open_rows = OpenRows(directory, region="eu", broker=2001, boot_id="b0", region_name=names.__getitem__)
    open_rows.open()
    core = RecorderCore(
        region="eu",
        broker=2001,
        first_session=START_NS,
        region_name=lambda number: f"r{number}",
        correction=lambda _region: Correction(-80_000, 35_000),
        rows_per_s_max=rows_per_s,
        journal=open_rows,
    )
    sessions = [core.open_session(topic="orders", origin=0, partition=p, offset=0) for p in range(partitions)]
    for session in sessions:
        session.caught_up(START_NS)
    writer = TraceWriter(
        directory=directory,
        identity=Identity(region="eu", broker=2001, boot_id="b0"),
        clock_ns=lambda: START_NS,
        roll_period_s=1e9,
        open_rows=open_rows,
    )
    delivered, committed, drains, spooled = [], [], [], 0.0
    offsets = [0] * partitions
    rows = 0
    for second in range(seconds):
        began_ns = START_NS + second * 1_000_000_000
        stamps = [began_ns + batch * (1_000_000_000 // BATCHES_PER_S) for batch in range(BATCHES_PER_S)]
        entries = []
        for batch, received_ns in enumerate(stamps):
            partition = batch % partitions
            entries.append((partition, _Entry(offsets[partition], records, received_ns)))
            offsets[partition] += records
        before = time.thread_time()
        for partition, entry in entries:
            core.log_advanced(
                LedgerKind.REPLICATED,
                topic="orders",
                origin=0,
                partition=partition,
                epoch=1,
                from_offset=entry.base_offset,
                to_offset=entry.base_offset + records,
                now_ns=entry.received_ns + 36_000_000,
                home=1,
                entries=(entry,),
            )
        middle = time.thread_time()
        for partition, entry in entries:
            sessions[partition].delivered(
                epoch=1,
                base_offset=entry.base_offset,
                record_count=records,
                entry_region=1,
                received_ns=entry.received_ns,
                delivered_ns=entry.received_ns + 117_000_000,  # 37 ms once corrected
                size_bytes=200,
            )
        after = time.thread_time()
        drained = core.drain(began_ns + 2_000_000_000)
        over = time.thread_time()
        committed.append((middle - before) / BATCHES_PER_S)
        delivered.append((after - middle) / BATCHES_PER_S)
        drains.append(over - after)
        rows += sum(drained.counts().values())
        spooled += _spool(writer, drained)
    spool_bytes = sum(path.stat().st_size for path in (directory / ".spool").iterdir())
    before = time.thread_time()
    writer.roll()
    open_rows.close()
    rolled = time.thread_time() - before
    return {
        "delivered_us": statistics.median(delivered) * 1e6,
        "committed_us": statistics.median(committed) * 1e6,
        "drain_ms_max": max(drains) * 1e3,
        "spool_ms": spooled / seconds * 1e3,
        "roll_ms": rolled / seconds * 1e3,
        "spool_bytes": spool_bytes / seconds,
        "file_bytes": writer.stats.size_bytes / seconds,
        "rows": rows / seconds,
    }


def _spool(writer: TraceWriter, drained: Drained) -> float:
    began = time.thread_time()
    writer.take(drained)
    return time.thread_time() - began


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m mesh.tracing.cost_timer", description=__doc__)
    parser.add_argument("directory", type=Path, help="where the files of the measurement go")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--records", type=int, default=10, help="per batch")
    parser.add_argument("--rows-per-s", type=int, default=500, help="delivery rows before batches are sampled; 0: none")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    for seconds in (2, options.seconds):  # the first conversion loads libraries
        with TemporaryDirectory(dir=options.directory) as directory:
            figures = measure(
                Path(directory),
                seconds=seconds,
                partitions=options.partitions,
                records=options.records,
                rows_per_s=options.rows_per_s,
            )
    json.dump({name: round(value, 3) for name, value in figures.items()}, sys.stdout)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
