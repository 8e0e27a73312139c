"""kill -9 in the middle of writing: what was handed to the writer is in a file after the next start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq

from georelay.trace.files import TraceFileMetadata
from mesh.tracing.writer import TraceWriter
from mesh.tracing.written import Identity

CHILD = """
import sys, time
from pathlib import Path
from mesh.tracing.written import Identity
from mesh.tracing.recorder_core import RecorderCore
from mesh.tracing.writer import TraceWriter

core = RecorderCore(region="eu", broker=2001, first_session=1, region_name=str, rows_per_s_max=10**9)
writer = TraceWriter(
    directory=Path(sys.argv[1]), identity=Identity(region="eu", broker=2001, boot_id="old"),
    clock_ns=time.time_ns, roll_period_s=0.2, slow_roll_period_s=0.2,
)
session = core.open_session(topic="t", origin=0, partition=0, offset=0)
session.caught_up(0)
number = 0
while True:
    for _ in range(50):
        session.delivered(
            epoch=1, base_offset=2 * number, record_count=1, entry_region=1, received_ns=number, delivered_ns=number
        )
        number += 1
    writer.take(core.drain(0, final=True))
    print(number, flush=True)
"""


def test_a_killed_writer_has_lost_nothing_that_it_had_taken(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    taken = 0
    while taken < 3_000:
        taken = int(child.stdout.readline())
    os.kill(child.pid, signal.SIGKILL)
    rest = child.stdout.read().split()
    child.wait()
    child.stdout.close()
    taken = max(taken, *map(int, rest[:-1] or ["0"]))  # the last number may be cut
    TraceWriter(
        directory=tmp_path,
        identity=Identity(region="eu", broker=2001, boot_id="new"),
        clock_ns=lambda: 0,
        roll_period_s=1,
    ).recover()
    files = [TraceFileMetadata.decode(pq.read_schema(path).metadata) for path in tmp_path.rglob("ledger-*.parquet")]
    ranges = sorted((file.first_row_seq, file.last_row_seq) for file in files)
    assert ranges[0][0] == 0
    assert all(later[0] == earlier[1] + 1 for earlier, later in pairwise(ranges))
    assert ranges[-1][1] + 1 >= taken
    assert list((tmp_path / ".spool").iterdir()) == []
