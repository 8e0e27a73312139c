"""The command line and the whole report, from files written as brokers write them."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from georelay.trace.files import TraceFileMetadata, TraceFileName, partition_path
from georelay.trace.kinds import LedgerKind, TraceKind
from georelay.trace.schema import SCHEMAS
from sla import cli
from sla.commands import arguments
from sla.errors import NoTraces, UsageError
from sla.jobs.doctor import judge_java
from sla.jobs.report import span_of
from sla.sources.layout import FilePlace, Period
from sla.sources.location import Location
from sla.sources.manifest import GoodFile, TraceFiles

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
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], *extra: str
) -> tuple[int, dict[str, Any], str]:
    """Run a report on the session's Spark and return exit code, report.json and what was printed."""
    out = tmp_path / "report"
    status, printed, err = run("report", "--traces", traces, "--out", out, *extra, capsys=capsys)
    assert "georelay-sla: Spark" not in err, err
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
    for given in (("--traces", path), ("--out", path)):
        status, _, err = run("report", *given, capsys=capsys)
        assert (status, err.count("\n"), "must be a directory" in err) == (2, 1, True)


def test_a_period_without_traces_exits_3(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run("report", "--traces", traces, "--last", "1h", capsys=capsys)
    assert (status, "in that period" in err) == (3, True)


def test_only_unreadable_files_are_no_data(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in traces.rglob("*.parquet"):
        path.write_bytes(b"torn")
    status, _, err = run("report", "--traces", traces, "--out", tmp_path, capsys=capsys)
    assert (status, err.count("all 3 trace files are unreadable")) == (3, 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "required: COMMAND"),
        ("report --from yesterday", "'yesterday' is no ISO 8601 time"),
        ("report --format pdf", "unknown format 'pdf'; known: html, md, json, parquet, junit"),
        ("report --conf novalue", "not of the form key=value"),
        ("report --from 2024-01-02 --to 2024-01-01", "--from must be before --to"),
        ("report --last 24h --to 2024-01-01", "--last goes up to now"),
        ("report --last forever", "'forever' is no length of time"),
        ("report --last 999999999d", "is no length of time"),
        ("report --fail-on sometimes", "invalid choice: 'sometimes'"),
        ("report --traces s3://bucket/traces", "say with --rollups DIR"),
        ("report --targets /nowhere/targets.toml", "/nowhere/targets.toml"),
        ("report --traces ftp://host/traces --rollups r", "unknown scheme 'ftp'"),
        ("verify --quarantine q --no-quarantine", "not allowed with argument"),
        ("compact --older-than soon", "'soon' is no length of time"),
        ("gen --out o --fault meteor", "unknown fault 'meteor'"),
        ("gen --out o --rate 0", "--rate must be from 1"),
        ("gen", "required: --out"),
    ],
)
def test_wrong_arguments_exit_2_with_one_line_that_says_what(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(*given.split(), capsys=capsys)
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert said in err


def test_commands_without_work_for_spark_do_not_load_it(traces: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from sla import cli; status = cli.main(sys.argv[1:]);"
        "print(status, sorted({'pyspark', 'matplotlib', 'pandas'} & set(sys.modules)))"
    )
    for arguments_, expected in (
        (["report", "--traces", tmp_path / "nowhere"], "3 []"),
        (["verify", "--traces", traces], "0 []"),
    ):
        answer = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments_)], capture_output=True, text=True, check=True
        )
        assert answer.stdout.splitlines()[-1] == expected


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
    assert {"jinja2", "matplotlib"} <= set(out.split())


@pytest.mark.parametrize("command", ["report", "rollup"])
def test_no_java_stops_what_needs_it_with_one_line(
    traces: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    status, _, err = run(command, "--traces", traces, capsys=capsys)
    assert (status, err.count("\n"), "install Java" in err) == (4, 1, True)


def test_verify_names_bad_files_moves_them_and_exits_3(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = traces.rglob("latency_hist-*.parquet")
    path.write_bytes(path.read_bytes()[:-9])
    os.utime(path, (0, 0))  # nobody writes it any more
    status, out, _ = run("verify", "--traces", traces, "--no-quarantine", capsys=capsys)
    assert (status, path.exists(), path.name in out) == (3, True, True)
    status, out, _ = run("verify", "--traces", traces, "--quarantine", tmp_path / "bad", capsys=capsys)
    assert (status, path.exists(), "(moved to the quarantine)" in out) == (3, False, True)
    assert "1 file set aside, 0 rows missing" in out


def test_generated_traces_verify_and_compact_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ("gen", "--out", tmp_path, "--seconds", "20", "--rate", "50", "--start", "2026-01-01T00:00")
    status, out, _ = run(*made, "--regions", "us,eu", "--fault", "gap:count=2", capsys=capsys)
    assert (status, "expected.json" in out) == (0, True)
    assert run(*made, capsys=capsys)[0] == 2  # there are traces already
    traces = tmp_path / "traces"
    status, out, _ = run("compact", "--traces", traces, capsys=capsys)
    assert (status, "0 files of 0 B became 0 of 0 B" in out) == (0, True)  # one file of each kind, run and hour
    status, out, _ = run("verify", "--traces", traces, "--deep", "--last", "1m", capsys=capsys)
    assert (status, out) == (3, "")
    status, out, _ = run("verify", "--traces", traces, "--deep", capsys=capsys)
    assert (status, "0 files set aside, 0 rows missing" in out) == (0, True)


def test_long_work_says_a_line_now_and_then_where_no_line_can_be_drawn_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("sla.commands.arguments.time.monotonic", lambda: now[0])
    with arguments.progress() as on_step:
        for at_s, step in ((1, "a"), (9.9, "b"), (10, "c [x]"), (11, "d"), (20.5, "e")):
            now[0] = at_s
            on_step(step)
    assert capsys.readouterr().err == "georelay-sla: c [x] ...\ngeorelay-sla: e ...\n"


def test_last_ends_with_the_minute_that_begins_now() -> None:
    asked = arguments.OneLineParser()
    arguments.add_period(asked)
    period = arguments.period_of(asked.parse_args(["--last", "90m"]), now_s=lambda: 1_700_000_059.9)
    assert period.end == datetime.datetime.fromtimestamp(1_700_000_040, tz=UTC)
    assert period.start == period.end - 1.5 * HOUR


def good_file(kind: TraceKind, first_s: int | None, last_s: int | None) -> GoodFile:
    name = TraceFileName(kind=kind, broker=2001, boot_id="b0", sequence=first_s or 0)
    place = FilePlace(hour_s=1_700_002_800, region="eu", name=name, relative=str(first_s))
    metadata = TraceFileMetadata(
        kind=kind, writer="eu/2001", boot_id="b0", first_row_seq=0, last_row_seq=0, rows=1, dropped=0, hist_grid=5
    )
    return GoodFile(place=place, metadata=metadata, size_bytes=1, digest=1, time_min_s=first_s, time_max_s=last_s)


def span(period: Period, *files: GoodFile) -> tuple[int, int]:
    found = span_of(period, TraceFiles(location=Location.open("traces"), good=files))
    return found.start_s, found.end_s


def test_a_report_of_everything_is_of_the_minutes_with_rows() -> None:
    hour_s = 1_700_002_800
    traffic = good_file(TraceKind.LATENCY_HIST, hour_s + 61, hour_s + 200)
    assert span(Period(), traffic) == (hour_s + 60, hour_s + 240)
    assert span(Period(), traffic, good_file(TraceKind.CLOCK, hour_s, hour_s + 900)) == (hour_s + 60, hour_s + 240)
    assert span(Period(), traffic, good_file(TraceKind.OUTCOME, 1, hour_s * 2)) == (hour_s, hour_s + 3_600)
    assert span(Period(), good_file(TraceKind.CLOCK, hour_s, hour_s + 59)) == (hour_s, hour_s + 60)
    assert span(Period(), good_file(TraceKind.PROBE, None, None)) == (hour_s, hour_s + 3_600)


def test_a_period_is_rounded_outward_to_whole_minutes() -> None:
    hour_s = 1_700_002_800
    start, end = (datetime.datetime.fromtimestamp(hour_s + at, tz=UTC) for at in (59.5, 120.001))
    assert span(Period(start=start, end=end), good_file(TraceKind.CLOCK, 0, 0)) == (hour_s, hour_s + 180)
    with pytest.raises(NoTraces, match="in that period"):
        span(Period(start=start + 48 * HOUR), good_file(TraceKind.CLOCK, 0, 0))


def test_roll_ups_stand_beside_the_traces_unless_these_are_in_a_store(tmp_path: Path) -> None:
    asked = arguments.OneLineParser()
    arguments.add_traces(asked)
    given = asked.parse_args(["--traces", str(tmp_path / "traces")])
    assert arguments.rollups_of(given) == str(tmp_path / "rollups")
    with pytest.raises(UsageError, match="--rollups DIR"):
        arguments.rollups_of(asked.parse_args(["--traces", "s3://bucket/traces"]))


# --- with Spark

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed")


@needs_java
@pytest.mark.usefixtures("spark")
def test_a_clean_run_passes_its_counts_are_exact_and_the_next_job_rolls_nothing_up(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report, printed = report_of(
        traces, tmp_path, capsys, "--format", "html,md,json,parquet,junit", "--fail-on", "breach"
    )
    verdicts = {target["name"]: target["verdict"] for target in report["targets"]}
    assert (status, verdicts["latency"], verdicts["integrity"]) == (0, "PASS", "PASS")
    (pair,) = report["latency"]
    (total,) = (stage for stage in pair["stages"] if stage["stage"] == "total")
    assert (pair["origin"], pair["dest"], total["n"], total["within"]["lo"]) == ("us", "eu", 3_000, 1.0)
    assert (total["quantiles"]["p50_ms"], total["quantiles"]["p99_9_ms"]) == (pytest.approx(5.0, rel=0.011), None)
    (reader,) = report["integrity"]["readers"]
    assert (reader["published"], reader["delivered"], reader["delivered_once"], reader["pending"]) == (3_000,) * 3 + (
        0,
    )
    out = tmp_path / "report"
    assert {path.name for path in out.iterdir()} == {
        "report.html", "report.md", "report.json", "summary.parquet", "junit.xml",
    }  # fmt: skip
    assert f"wrote {out / 'junit.xml'}" in printed
    runs = {path: path.read_bytes() for path in (tmp_path / "rollups" / "_runs").rglob("_run.json")}
    assert runs
    status, out_text, _ = run("rollup", "--traces", traces, capsys=capsys)
    assert (status, "0 hours rolled up, 1 unchanged, 0 kept" in out_text) == (0, True)
    assert {path: path.read_bytes() for path in runs} == runs


@needs_java
@pytest.mark.usefixtures("spark")
@pytest.mark.slow
def test_a_second_report_says_the_same_and_rolls_nothing_up(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, report, _ = report_of(traces, tmp_path, capsys, "--format", "json")
    runs = {path: path.read_bytes() for path in (tmp_path / "rollups" / "_runs").rglob("_run.json")}
    assert runs
    _, again, _ = report_of(traces, tmp_path, capsys, "--format", "json")
    del report["made"]["generated_at"], again["made"]["generated_at"]
    assert again == report
    assert {path: path.read_bytes() for path in runs} == runs


@needs_java
@pytest.mark.usefixtures("spark")
@pytest.mark.slow
def test_a_period_whose_traces_are_gone_is_reported_from_its_roll_ups(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, before, _ = report_of(traces, tmp_path, capsys, "--format", "json")
    manifests = {path: path.read_bytes() for path in (tmp_path / "rollups").rglob("*.json")}
    shutil.rmtree(traces)
    status, _, err = run("report", "--traces", traces, capsys=capsys)
    assert (status, "does not exist" in err) == (3, True), "a path that is mistyped, or not mounted"
    traces.mkdir()
    status, after, printed = report_of(traces, tmp_path, capsys, "--format", "json", "--fail-on", "breach")
    text = "1 hour is from roll-ups alone: traces that it was made of are gone"
    note = f"{text}, and no trace file at all is left: is it the right directory?"
    assert {"code": "HOURS_KEPT", "text": note, "is_warning": True} in after["notes"]
    assert (status, text in printed) == (0, True)
    told = {"HOURS_KEPT", "MINUTES_CUT"}  # roll-ups know minutes, not seconds
    for report in (before, after):
        report["notes"] = [note for note in report["notes"] if note["code"] not in told]
        del report["made"]["generated_at"]
    assert after == before
    assert {path: path.read_bytes() for path in manifests} == manifests
    start = datetime.datetime.fromtimestamp(NOW_NS // 10**9, tz=UTC)
    status, after, _ = report_of(
        traces, tmp_path, capsys, "--from", start.isoformat(), "--format", "json", "--fail-on", "breach"
    )
    assert (status, after["latency"]) == (0, before["latency"])
    status, _, err = run("report", "--traces", traces, "--last", "1h", capsys=capsys)
    assert (status, "no traces in" in err) == (3, True)


@needs_java
@pytest.mark.usefixtures("spark")
@pytest.mark.slow
def test_an_hour_of_which_every_file_is_torn_is_a_doubt_beside_one_that_is_known_from_roll_ups(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, before, _ = report_of(traces, tmp_path, capsys, "--format", "json", "--fail-on", "breach")
    shutil.rmtree(traces)
    for region in ("us", "eu"):
        folder = traces / partition_path(region, NOW_NS + HOUR // datetime.timedelta(microseconds=1) * 1_000)
        folder.mkdir(parents=True)
        for kind in (TraceKind.LEDGER, TraceKind.LATENCY_HIST):
            (folder / str(TraceFileName(kind=kind, broker=2001, boot_id="b0", sequence=9))).write_bytes(b"torn")
    start = datetime.datetime.fromtimestamp(NOW_NS // 10**9, tz=UTC)
    asked = ("--from", start.isoformat(), "--to", (start + HOUR).isoformat(), "--format", "json")
    _, after, _ = report_of(traces, tmp_path, capsys, *asked)
    for name in ("latency", "integrity"):
        verdicts = [
            target["verdict"] for made in (before, after) for target in made["targets"] if target["name"] == name
        ]
        assert verdicts == ["PASS", "INCONCLUSIVE"]
    assert sum(row["quarantined_files"] for row in after["inputs"]["rows"]) == 4
    assert {"HOURS_KEPT", "HOURS_MISSING", "FILES_QUARANTINED"} <= {note["code"] for note in after["notes"]}


@needs_java
@pytest.mark.usefixtures("spark")
@pytest.mark.slow
def test_injected_faults_breach_a_flipped_byte_is_named_and_the_caller_decides_what_fails(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty = [
        ledger_row(LedgerKind.COMMIT, 4, 3_000, 4_000),
        ledger_row(LedgerKind.DELIVERED, 4, 3_007, 3_100, 3),  # 7 lost
        ledger_row(LedgerKind.DELIVERED, 4, 3_200, 3_300, 4),
        ledger_row(LedgerKind.DELIVERED, 4, 3_100, 3_200, 5),  # 100 out of order
        ledger_row(LedgerKind.DELIVERED, 4, 0, 11, 6),  # 11 duplicated
    ]
    write(traces, TraceKind.LEDGER, faulty, first_row_seq=9, last_row_seq=13)
    probe = {
        "origin": "us", "dest": "eu", "prober": "us/1001", "seq": NOW_NS // 10**9, "sent_ns": NOW_NS,
        "published_ns": NOW_NS, "delivered_ns": NOW_NS, "outcome": "ok", "timeout_ms": 5_000,
    }  # fmt: skip
    path = write(traces, TraceKind.PROBE, [probe])
    raw = bytearray(path.read_bytes())
    raw[60] ^= 0xFF
    path.write_bytes(raw)
    status, report, printed = report_of(traces, tmp_path, capsys, "--fail-on", "never")
    (reader,) = report["integrity"]["readers"]
    counted = (reader["lost"], reader["dup_unflagged"], reader["order_violations"], reader["unexplained"])
    assert (status, report["verdict"], counted) == (0, "BREACH", (7, 11, 100, 0))
    assert [item["file"] for item in report["inputs"]["quarantined"]] == [path.relative_to(traces).as_posix()]
    assert path.name in printed
    page = (tmp_path / "report" / "report.html").read_text()
    assert path.name in page and "1 file set aside" in page
    start = datetime.datetime.fromtimestamp(NOW_NS // 10**9 + 1, tz=UTC)
    status, report, _ = report_of(traces, tmp_path, capsys, "--from", start.isoformat(), "--format", "json")
    assert (status, report["made"]["period_from"]) == (1, "2023-11-14T22:13:00+00:00")
    assert "PERIOD_ROUNDED" in {note["code"] for note in report["notes"]}


# --- documents


def test_the_page_of_the_report_names_every_command_and_option() -> None:
    page = (Path(cli.__file__).parents[1] / "docs" / "sla" / "report.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| `")
    ]
    documented = {row[0].strip("`"): set(row[1].split()) for row in rows if row[0].startswith("`--")}
    (subparsers,) = (action for action in cli._parser()._actions if isinstance(action, argparse._SubParsersAction))
    options: dict[str, set[str]] = {}
    commands = {row[0].strip("`") for row in rows if not row[0].startswith("`--")} & set(subparsers.choices)
    assert commands == set(subparsers.choices) - {"cluster", "live"}  # they have pages of their own
    for command in commands:
        for action in subparsers.choices[command]._actions:
            for name in action.option_strings:
                options.setdefault(name, set()).add(command)
    del options["-h"], options["--help"]
    assert documented == options
