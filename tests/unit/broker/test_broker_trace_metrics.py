"""What traces lose can be seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from mesh.tracing import memory_file, open_rows
from mesh.tracing.recorder import Recorder, TraceSettings
from region.broker.trace_metrics import TraceCollector


async def test_ledger_rows_that_no_kill_would_spare_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_file, "MEMORY_FOLDER", tmp_path / "nowhere")
    monkeypatch.setattr(open_rows, "ROWS_MAX", 2)
    recorder = Recorder(
        region="eu",
        broker=2001,
        boot_id="b0",
        region_name=str,
        settings=TraceSettings(directory=tmp_path),
        clock_ns=lambda: 1_700_000_000 * 10**9,
    )
    recorder.start()
    for partition in range(3):
        recorder.committed(topic="t", origin=0, partition=partition, epoch=1, from_offset=0, to_offset=5, now_ns=1)
    values = {sample.name: sample.value for family in TraceCollector(recorder).collect() for sample in family.samples}
    await recorder.close()
    assert values["georelay_trace_rows_unkept_total"] == 1
