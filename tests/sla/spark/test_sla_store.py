"""An object store by its real client: a stand-in for S3 on loopback."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from georelay.trace.kinds import TraceKind
from sla.errors import JobFailed
from sla.jobs.compact import CompactRequest, run_compact
from sla.jobs.verify import VerifyRequest, run_verify
from sla.sources.reading import read
from tests.sla.s3_stand_in import StandIn

TraceWriter = Callable[..., str]
LATER_NS = 4_000_000_000 * 10**9


def test_a_bucket_is_verified_cleared_compacted_and_remembered(
    tmp_path: Path, write_trace: TraceWriter, store: StandIn
) -> None:
    for first in (0, 10, 20):
        write_trace(tmp_path, 10, first=first)
    torn = write_trace(tmp_path, 10, boot="b1")
    store.put_all(tmp_path, "mesh/traces")
    store.objects[f"mesh/traces/{torn}"] = store.objects[f"mesh/traces/{torn}"][:-1]
    traces, proven = store.uri("mesh/traces"), store.uri("mesh/rollups/_verified")
    files = run_verify(VerifyRequest(traces=traces, proven=proven, is_moving=True, clock_ns=lambda: LATER_NS))
    assert (files.rows, [bad.is_moved for bad in files.bad]) == (30, [True])
    assert sorted(key.split("/")[1] for key in store.objects if torn in key) == ["quarantine", "quarantine"]
    assert any(key.startswith("mesh/rollups/_verified/date=2023-11-14/") for key in store.objects)
    store.requests.clear()
    assert run_verify(VerifyRequest(traces=traces, proven=proven)) == files
    assert [path for method, path in store.requests if method == "GET" and path.endswith(".parquet")] == []
    done = run_compact(CompactRequest(traces=traces, clock_ns=lambda: LATER_NS))
    assert (done.files_before, done.files_after, done.rows) == (3, 1, 30)
    assert [key for key in store.files() if key.startswith("mesh/traces")] == [
        "mesh/traces/date=2023-11-14/hour=22/region=eu/ledger-2001-b0-000000000000.parquet"
    ]
    assert run_verify(VerifyRequest(traces=traces)).input_hash() == files.input_hash()


def test_a_store_that_refuses_fails_with_one_line(store: StandIn) -> None:
    store.is_closed = True
    with pytest.raises(JobFailed, match=r"403|ACCESS_DENIED") as caught:
        run_verify(VerifyRequest(traces=store.uri("mesh/traces")))
    assert "\n" not in str(caught.value)


def test_a_compaction_that_the_store_refuses_leaves_every_object_as_it_was(
    tmp_path: Path, write_trace: TraceWriter, store: StandIn
) -> None:
    for first in (0, 10, 20):
        write_trace(tmp_path, 10, first=first)
    store.put_all(tmp_path, "traces")
    run_compact(CompactRequest(traces=store.uri("traces"), clock_ns=lambda: LATER_NS))
    late = write_trace(tmp_path, 10, first=30)
    store.objects[f"traces/{late}"] = (tmp_path / late).read_bytes()
    before = store.files()
    store.parts_max = 0
    with pytest.raises(JobFailed, match="compaction stopped"):
        run_compact(CompactRequest(traces=store.uri("traces"), clock_ns=lambda: LATER_NS))
    assert store.files() == before
    store.parts_max = 10_000
    run_compact(CompactRequest(traces=store.uri("traces"), clock_ns=lambda: LATER_NS))
    assert [len(store.files()), run_verify(VerifyRequest(traces=store.uri("traces"))).rows] == [1, 40]


def test_spark_reads_a_bucket_without_jars(
    spark: Any, tmp_path: Path, write_trace: TraceWriter, store: StandIn
) -> None:
    write_trace(tmp_path, 1_000)
    store.put_all(tmp_path, "traces")
    files = run_verify(VerifyRequest(traces=store.uri("traces")))
    assert os.environ["AWS_ACCESS_KEY_ID"] == "key"
    rows = read(spark, files, TraceKind.LEDGER, ["to_offset"])
    assert sorted(row[0] for row in rows.collect()) == list(range(1, 1_001))
