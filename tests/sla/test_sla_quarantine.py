"""Bad trace files set aside with their evidence: without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sla.errors import UsageError
from sla.sources.location import Location
from sla.sources.quarantine import Quarantine
from tests.sla.test_sla_sources import (
    LATER_NS,
    TraceWriter,
    reasons,
    verified,
)


def test_a_bad_file_is_moved_with_its_evidence_and_counted_ever_after(tmp_path: Path, write_trace: TraceWriter) -> None:
    traces = tmp_path / "traces"
    write_trace(traces, 10)
    relative = write_trace(traces, 10, first=10)
    whole = (traces / relative).read_bytes()
    (traces / relative).write_bytes(whole[:-1])
    seen = verified(traces)
    assert [bad.is_moved for bad in seen.bad] == [False]
    moved = verified(traces, is_moving=True, clock_ns=lambda: LATER_NS)
    assert [bad.is_moved for bad in moved.bad] == [True]
    assert not (traces / relative).exists()
    evidence = json.loads((tmp_path / "quarantine" / f"{relative}.json").read_text())
    assert (evidence["reason"], evidence["size_bytes"], evidence["moved_at_ns"]) == (
        seen.bad[0].reason,
        len(whole) - 1,
        LATER_NS,
    )
    later = verified(traces)
    assert reasons(later) == reasons(seen)
    assert later.input_hash() == seen.input_hash()
    (traces / relative).write_bytes(whole)  # its writer made it again
    assert verified(traces).bad == ()


def test_a_young_file_is_not_moved(tmp_path: Path, write_trace: TraceWriter) -> None:
    path = tmp_path / "traces" / write_trace(tmp_path / "traces", 10)
    path.write_bytes(b"still being copied")
    now_ns = path.stat().st_mtime_ns + 299 * 10**9
    assert [bad.is_moved for bad in verified(tmp_path / "traces", is_moving=True, clock_ns=lambda: now_ns).bad] == [
        False
    ]
    now_ns += 2 * 10**9
    assert [bad.is_moved for bad in verified(tmp_path / "traces", is_moving=True, clock_ns=lambda: now_ns).bad] == [
        True
    ]


def test_a_file_that_healed_is_not_moved(tmp_path: Path, write_trace: TraceWriter) -> None:
    traces = tmp_path / "traces"
    path = traces / write_trace(traces, 10)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    (bad,) = verified(traces).bad
    path.write_bytes(whole)
    assert not Quarantine(Location.open(tmp_path / "q")).take(Location.open(traces), bad, now_ns=LATER_NS)
    assert path.exists()


def test_only_bad_files_are_still_traces(tmp_path: Path, write_trace: TraceWriter) -> None:
    traces = tmp_path / "traces"
    (traces / write_trace(traces, 10)).write_bytes(b"")
    assert len(verified(traces, is_moving=True, clock_ns=lambda: LATER_NS).bad) == 1
    assert len(verified(traces).bad) == 1  # nothing but the quarantine is left


def test_the_quarantine_is_not_the_trace_directory(tmp_path: Path, write_trace: TraceWriter) -> None:
    write_trace(tmp_path, 1)
    with pytest.raises(UsageError, match="must not be the trace directory"):
        verified(tmp_path, quarantine=str(tmp_path), is_moving=True)
