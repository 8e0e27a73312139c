"""Columns and file names of traces: a change here is a change of a stored format."""

from __future__ import annotations

import pytest

from georelay.trace.files import TraceFileMetadata, TraceFileName, partition_path
from georelay.trace.kinds import SCHEMA_VERSION, TraceKind
from georelay.trace.schema import RECORDED_COLUMNS, SCHEMAS

METADATA = TraceFileMetadata(
    kind=TraceKind.LEDGER,
    writer="eu/2001",
    boot_id="b0",
    first_row_seq=5,
    last_row_seq=9,
    rows=5,
    dropped=2,
    hist_grid=5,
)


COLUMNS = {
    TraceKind.DELIVERY: """
        origin_region string! | origin_broker string | dest_region string! | dest_broker string! | topic string!
        partition int32! | epoch int64! | group string | session_epoch int64! | base_offset int64! | count int32!
        bytes int64! | publish_first_ns int64! | publish_last_ns int64! | commit_ns int64 | replicated_ns int64
        delivered_first_ns int64! | delivered_last_ns int64! | acked_ns int64 | lat_max_us int64! | attempt int16!
        deliver_seq int64! | sample_weight double! | sample_reason string! | traceparent fixed_size_binary[16]
        row_seq int64! | boot_id string! | schema_version int16
    """,
    TraceKind.LATENCY_HIST: """
        second int64! | origin string! | dest string! | topic string! | group string! | grid int16! | n int64!
        n_good int64! | lat_sum_us int64! | lat_max_us int64!
        hist list<element: struct<b: int32 not null, n: int64 not null> not null>! | stage string!
        n_good_lo int64 | n_good_hi int64 | clock_offset_us int64 | clock_err_us int64 | schema_version int16
    """,
    TraceKind.LEDGER: """
        kind string! | region string! | broker string! | origin string! | topic string! | partition int32!
        epoch int64! | group string | from_offset int64! | to_offset int64! | first_ns int64! | last_ns int64!
        attempt int16! | session_epoch int64! | deliver_seq int64! | schema_version int16 | records int64
    """,
    TraceKind.OUTCOME: """
        second int64! | region string! | gateway string! | op string! | attempts int64! | ok int64!
        client_error int64! | server_error int64! | timeout int64! | offered int64! | schema_version int16
    """,
    TraceKind.PROBE: """
        origin string! | dest string! | prober string! | seq int64! | sent_ns int64! | published_ns int64
        delivered_ns int64 | outcome string! | timeout_ms int32! | schema_version int16
    """,
    TraceKind.CLOCK: """
        region string! | broker string! | peer string! | t1_ns int64! | t2_ns int64! | t3_ns int64! | t4_ns int64!
        theta_ns int64! | delta_ns int64! | host_maxerr_us int64 | host_unsync bool! | mono_ns int64!
        boot_id string! | schema_version int16
    """,
}


@pytest.mark.parametrize("kind", list(TraceKind))
def test_a_kind_has_the_columns_of_version_3(kind: TraceKind) -> None:
    assert SCHEMA_VERSION == 3
    expected = [column.strip() for line in COLUMNS[kind].strip().splitlines() for column in line.split(" | ")]
    assert [f"{field.name} {field.type}{'' if field.nullable else '!'}" for field in SCHEMAS[kind]] == expected


def test_what_a_recorder_gives_is_every_column_but_the_stamps() -> None:
    assert RECORDED_COLUMNS[TraceKind.CLOCK][-1] == "mono_ns"
    assert RECORDED_COLUMNS[TraceKind.DELIVERY][-1] == "traceparent"


def test_a_file_name_reads_back() -> None:
    name = TraceFileName(kind=TraceKind.LATENCY_HIST, broker=1001, boot_id="a1b2", sequence=7)
    assert str(name) == "latency_hist-1001-a1b2-000007.parquet"
    assert TraceFileName.parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    [".tmp-ledger-1-b-000000.parquet", "gossip-1-b-000000.parquet", "ledger-1-b.parquet", "ledger-1-B-0.parquet"],
)
def test_a_foreign_or_unfinished_file_name_is_no_trace(text: str) -> None:
    assert TraceFileName.parse(text) is None


def test_the_folder_is_the_hour_in_utc() -> None:
    assert str(partition_path("eu", 1_700_000_000 * 10**9)) == "date=2023-11-14/hour=22/region=eu"


def test_metadata_reads_back() -> None:
    assert TraceFileMetadata.decode(METADATA.encode()) == METADATA


@pytest.mark.parametrize("key", list(METADATA.encode()))
def test_metadata_without_a_key_is_refused_by_name(key: bytes) -> None:
    raw = METADATA.encode()
    del raw[key]
    with pytest.raises(ValueError, match=key.removeprefix(b"georelay.").decode()):
        TraceFileMetadata.decode(raw)


def test_metadata_with_text_for_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="rows is 'many'"):
        TraceFileMetadata.decode(METADATA.encode() | {b"georelay.rows": b"many"})
