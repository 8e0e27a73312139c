"""The command line and the whole report, from files written as brokers write them."""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from georelay.trace.files import TraceFileMetadata, TraceFileName, partition_path
from georelay.trace.schema import SCHEMAS, LedgerKind, TraceKind
from sla import cli
from sla.jobs.doctor import judge_java
from sla.sources.files import Period, find, verify

NOW_NS = 1_700_000_000 * 10**9
HOUR = datetime.timedelta(hours=1)
UTC = datetime.UTC


def write(
    directory: Path, kind: TraceKind, rows: list[dict[str, Any]], *, compression: str = "zstd", **changes: Any
) -> Path:
    """Write one trace file of broker eu/2001; `changes` overrule its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields: dict[str, Any] = {
        "kind": kind, "writer": "eu/2001", "boot_id": "b0", "first_row_seq": 0, "last_row_seq": len(rows) - 1,
        "rows": len(rows), "dropped": 0, "hist_grid": 5,
    } | changes  # fmt: skip
    metadata = TraceFileMetadata(**fields)
    folder = directory / partition_path("eu", NOW_NS)
    folder.mkdir(parents=True, exist_ok=True)
    name = TraceFileName(kind=kind, broker=2001, boot_id=metadata.boot_id, sequence=metadata.first_row_seq)
    table = pa.Table.from_pylist(rows, schema=SCHEMAS[kind]).replace_schema_metadata(metadata.encode())
    pq.write_table(table, folder / str(name), compression=compression, write_page_checksum=True)
    return folder / str(name)


def hist_row(second: int, n: int, good: int | None = None, **changes: Any) -> dict[str, Any]:
    good = n if good is None else good
    return {
        "second": NOW_NS // 10**9 + second, "origin": "us", "dest": "eu", "topic": "orders", "group": "", "grid": 5,
        "n": n, "n_good": good, "lat_sum_us": 5_000 * n, "lat_max_us": 5_100, "hist": [{"b": 393, "n": n}],
        "stage": "total", "n_good_lo": good, "n_good_hi": good, "clock_offset_us": 0, "clock_err_us": 0,
    } | changes  # fmt: skip


def ledger_row(kind: LedgerKind, second: int, first: int, end: int, sequence: int = 0) -> dict[str, Any]:
    at_ns = NOW_NS + second * 10**9
    return {
        "kind": kind.value, "region": "us" if kind is LedgerKind.COMMIT else "eu", "broker": "2001", "origin": "",
        "topic": "orders", "partition": 0, "epoch": 1, "group": None, "from_offset": first, "to_offset": end,
        "first_ns": at_ns, "last_ns": at_ns, "attempt": 1, "session_epoch": 7, "deliver_seq": sequence,
    }  # fmt: skip


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A clean run: 3000 records in 3 seconds. The name tries Spark's path expansion."""
    directory = tmp_path / "my [traces] {1} *"
    write(directory, TraceKind.LATENCY_HIST, [hist_row(second, 1_000) for second in range(3)])
    rows = [
        ledger_row(kind, second, second * 1_000, second * 1_000 + 1_000, second)
        for kind in (LedgerKind.COMMIT, LedgerKind.REPLICATED, LedgerKind.DELIVERED)
        for second in range(3)
    ]
    write(directory, TraceKind.LEDGER, rows[:5])
    write(directory, TraceKind.LEDGER, rows[5:], first_row_seq=5, last_row_seq=8)
    return directory


def run(*arguments: str | Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    try:
        status = cli.main([str(argument) for argument in arguments])
    except SystemExit as error:  # argparse
        status = int(error.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def report_of(
    spark: Any, traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], *extra: str
) -> tuple[int, dict[str, Any], str]:
    """Run a report on the session's Spark and return exit code, report.json and what was printed."""
    out = tmp_path / "report"
    status, printed, _ = run("report", "--traces", traces, "--out", out, *extra, capsys=capsys)
    return status, json.loads((out / "report.json").read_text()), printed


# --- without Spark


def test_a_missing_directory_exits_3_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run("report", "--traces", tmp_path / "nowhere", capsys=capsys)
    assert (status, out, err.count("\n")) == (3, "", 1)
    assert "does not exist" in err


def test_a_directory_without_traces_exits_3_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "some.parquet").write_bytes(b"")
    status, out, err = run("report", "--traces", tmp_path, capsys=capsys)
    assert (status, out, err.count("\n")) == (3, "", 1)
    assert "no traces in" in err


def test_a_file_as_directory_exits_2_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    status, _, err = run("report", "--traces", path, capsys=capsys)
    assert (status, err.count("\n")) == (2, 1)


def test_a_period_without_traces_exits_3(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run("report", "--traces", traces, "--from", "2024-01-01", capsys=capsys)
    assert (status, "in that period" in err) == (3, True)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["report", "--from", "yesterday"],
        ["report", "--format", "pdf"],
        ["report", "--conf", "novalue"],
        ["report", "--from", "2024-01-02", "--to", "2024-01-01"],
    ],
)
def test_wrong_arguments_exit_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments, capsys=capsys)[0] == 2


def test_the_command_without_traces_does_not_load_spark(tmp_path: Path) -> None:
    code = (
        "import sys; from sla import cli; status = cli.main(['report', '--traces', sys.argv[1]]);"
        "print(status, 'pyspark' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert answer.stdout == "3 False\n"


@pytest.mark.parametrize(
    ("text", "is_ok"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "21" 2023-09-19', True),
        ('java version "1.8.0_401"', False),
        ('openjdk version "11.0.2"', False),
        ("Error: no JVM", False),
    ],
)
def test_doctor_judges_java_versions(text: str, *, is_ok: bool) -> None:
    assert judge_java("java", text).is_ok is is_ok


def test_doctor_says_in_one_line_how_to_get_java(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    status, out, _ = run("doctor", capsys=capsys)
    assert status == 4
    assert next(line for line in out.splitlines() if line.startswith("FAIL")).endswith("or set JAVA_HOME")


def test_no_java_stops_a_report_with_one_line(
    traces: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    status, _, err = run("report", "--traces", traces, capsys=capsys)
    assert (status, err.count("\n"), "install Java" in err) == (4, 1, True)


def test_files_of_the_neighbouring_hours_are_read(traces: Path) -> None:
    closed = datetime.datetime(2023, 11, 14, 22, tzinfo=UTC)  # the hour of the files
    assert len(find(traces, Period(start=closed + 1.5 * HOUR))) == 3
    assert find(traces, Period(start=closed + 2 * HOUR)) == []
    assert len(find(traces, Period(end=closed))) == 3
    assert find(traces, Period(end=closed - HOUR)) == []


def test_rows_missing_between_files_are_counted(traces: Path) -> None:
    write(
        traces,
        TraceKind.LEDGER,
        [ledger_row(LedgerKind.COMMIT, 9, 0, 1)],
        first_row_seq=20,
        last_row_seq=20,
        dropped=11,
    )
    files = verify(find(traces, Period()))
    assert (files.rows_missing(TraceKind.LEDGER), files.rows_dropped()) == (11, 11)
    assert (files.is_complete(TraceKind.LEDGER), files.is_complete(TraceKind.LATENCY_HIST)) == (False, True)


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99], ids=["empty", "stub", "half", "no-footer"])
def test_a_torn_file_is_set_aside(traces: Path, keep: float) -> None:
    path = find(traces, Period())[0]
    raw = path.read_bytes()
    path.write_bytes(raw[: keep if isinstance(keep, int) else int(len(raw) * keep)])
    files = verify(find(traces, Period()))
    assert [bad.path for bad in files.bad] == [path]
    assert files.bad[0].reason


def test_a_flipped_byte_that_decodes_cleanly_is_still_set_aside(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = write(tmp_path, TraceKind.LEDGER, [ledger_row(LedgerKind.COMMIT, 0, 0, 1)], compression="none")
    column = pq.ParquetFile(path).metadata.row_group(0).column(SCHEMAS[TraceKind.LEDGER].names.index("to_offset"))
    assert _flip_until_it_lies(path, column) != [1]
    (bad,) = verify(find(tmp_path, Period())).bad
    assert (bad.path, "crc" in bad.reason.lower()) == (path, True), bad.reason


def _flip_until_it_lies(path: Path, column: Any) -> list[int]:
    """Flip one bit after the other in the column until the file reads without an error but with another value."""
    import pyarrow.parquet as pq

    whole = path.read_bytes()
    start = column.dictionary_page_offset
    for position in range(start, start + column.total_compressed_size):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 2]) + whole[position + 1 :])
        try:
            offsets: list[int] = pq.read_table(path, columns=["to_offset"], partitioning=None).to_pydict()["to_offset"]
        except (OSError, ValueError):
            continue
        if len(offsets) == 1 and offsets != [1]:
            return offsets
    raise AssertionError("no flip changes the value silently")


def test_a_file_with_another_row_count_or_grid_is_set_aside(tmp_path: Path) -> None:
    write(tmp_path, TraceKind.LATENCY_HIST, [hist_row(0, 1)], hist_grid=6)
    write(tmp_path, TraceKind.LEDGER, [ledger_row(LedgerKind.COMMIT, 0, 0, 1)], last_row_seq=1)
    reasons = [bad.reason for bad in verify(find(tmp_path, Period())).bad]
    assert reasons == [
        "histogram grid 6 is not known; this report reads grid 5",
        "the file holds 1 rows, its metadata says 1 numbered 0 to 1",
    ]


# --- with Spark

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed")


@needs_java
def test_a_clean_run_passes_and_its_counts_are_exact(
    spark: Any, traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report, printed = report_of(spark, traces, tmp_path, capsys)
    assert (status, report["verdict"], report["inputs"]["rows"]) == (0, "PASS", 12)
    (pair,) = report["latency"]
    assert (pair["origin"], pair["dest"], pair["n"], pair["share_good"]) == ("us", "eu", 3_000, 1.0)
    assert (pair["p50_ms"], pair["p99_9_ms"]) == (pytest.approx(5.0, rel=0.011), None)
    assert report["totals"] == [{"topic": "orders", "origin": "", "region": "eu", "delivered": 3_000}]
    assert report["coverage"][0] | {"topic": 0} == {
        "topic": 0, "origin": "", "region": "eu", "committed": 3_000, "replicated": 3_000, "missing": 0,
    }  # fmt: skip
    assert printed.splitlines()[-3] == "PASS"
    markdown = (tmp_path / "report" / "report.md").read_text()
    assert "| us -\\> eu | 3,000 |" in markdown
    assert "n too small" in markdown


@needs_java
def test_injected_faults_breach_and_are_named(
    spark: Any, traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty = [
        ledger_row(LedgerKind.COMMIT, 4, 3_000, 4_000),
        ledger_row(LedgerKind.DELIVERED, 4, 3_007, 3_100, 3),  # 7 lost
        ledger_row(LedgerKind.DELIVERED, 4, 3_200, 3_300, 4),
        ledger_row(LedgerKind.DELIVERED, 4, 3_100, 3_200, 5),  # 100 out of order
        ledger_row(LedgerKind.DELIVERED, 4, 0, 11, 6),  # 11 duplicated
    ]
    write(traces, TraceKind.LEDGER, faulty, first_row_seq=9, last_row_seq=13)
    status, report, printed = report_of(spark, traces, tmp_path, capsys)
    (row,) = report["integrity"]
    assert (status, row["lost"], row["duplicated"], row["out_of_order"], row["unexplained"]) == (1, 7, 11, 100, 0)
    assert "BREACH: orders/0 in eu: 7 lost, 11 duplicated, 100 out of order" in printed


@needs_java
def test_a_flipped_byte_is_set_aside_named_and_takes_the_pass_away(
    spark: Any, traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(traces, TraceKind.LEDGER, [ledger_row(LedgerKind.COMMIT, 9, 0, 1)], first_row_seq=9, last_row_seq=9)
    raw = bytearray(path.read_bytes())
    raw[60] ^= 0xFF
    path.write_bytes(raw)
    status, report, printed = report_of(spark, traces, tmp_path, capsys)
    assert (status, report["verdict"]) == (3, "INCONCLUSIVE")
    assert [item["file"] for item in report["inputs"]["quarantined"]] == [path.relative_to(traces).as_posix()]
    assert path.name in printed


@needs_java
def test_a_period_counts_only_its_own_seconds(
    spark: Any, traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = datetime.datetime.fromtimestamp(NOW_NS // 10**9 + 1, tz=UTC)
    end = start + datetime.timedelta(seconds=1)
    status, report, _ = report_of(
        spark, traces, tmp_path, capsys, "--from", start.isoformat(), "--to", end.isoformat(), "--format", "json"
    )
    assert (status, report["latency"][0]["n"], report["totals"][0]["delivered"]) == (3, 1_000, 1_000)
    assert not (tmp_path / "report" / "report.md").exists()


@needs_java
def test_only_unreadable_files_are_no_data(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in find(traces, Period()):
        path.write_bytes(b"torn")
    status, _, err = run("report", "--traces", traces, "--out", tmp_path, capsys=capsys)
    assert (status, err.count("all 3 trace files are unreadable")) == (3, 1)


def test_files_of_the_other_kinds_are_verified_and_not_taken_for_latencies(traces: Path) -> None:
    probe = {
        "origin": "us", "dest": "eu", "prober": "us/1001", "seq": 1, "sent_ns": 1, "published_ns": 1,
        "delivered_ns": 1, "outcome": "ok", "timeout_ms": 5_000,
    }  # fmt: skip
    write(traces, TraceKind.PROBE, [probe])
    files = verify(find(traces, Period()))
    assert (files.bad, files.rows, files.rows_of(TraceKind.LATENCY_HIST, TraceKind.LEDGER)) == ((), 13, 12)
