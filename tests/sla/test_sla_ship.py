"""Trace files of many hosts in one place: what arrives, what a kill leaves, what is never done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sla import cli
from sla.errors import JobFailed, NoTraces, UsageError
from sla.jobs.compact import CompactRequest, run_compact
from sla.jobs.ship import ShipRequest, run_ship
from sla.jobs.verify import VerifyRequest, run_verify
from sla.sources.location import Location
from tests.sla.conftest import TRACE_HOUR_S
from tests.sla.s3_stand_in import CREDENTIALS, StandIn

TraceWriter = Callable[..., str]
LATER_NS = 4_000_000_000 * 10**9


def files_in(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(directory).parts)
    }


def write_host(write_trace: TraceWriter, directory: Path, region: str, broker: int) -> None:
    for hour in range(3):
        for first in (0, 10):
            hour_s, boot = TRACE_HOUR_S + hour * 3_600, f"b{hour}"
            write_trace(directory, 10, first=first, region=region, broker=broker, hour_s=hour_s, boot=boot)


def test_reports_judge_the_same_rows_in_a_bucket_as_in_the_directories_of_all_hosts(
    tmp_path: Path, write_trace: TraceWriter, store: StandIn
) -> None:
    both = tmp_path / "both"
    for region, broker in (("us", 1001), ("eu", 2001)):
        for directory in (tmp_path / region, both):
            write_trace(directory, 60, region=region, broker=broker)
        done = run_ship(ShipRequest(traces=tmp_path / region, to=store.uri("mesh/traces")))
        assert (done.files, done.known, done.kept, done.gone) == (1, 0, [], 0)
    assert store.files() == {f"mesh/traces/{name}": raw for name, raw in files_in(both).items()}
    in_bucket = run_verify(VerifyRequest(traces=store.uri("mesh/traces")))
    assert in_bucket.rows == 120
    assert in_bucket.input_hash() == run_verify(VerifyRequest(traces=both)).input_hash()


def test_a_second_run_asks_the_store_for_nothing_and_sends_only_what_is_new(
    tmp_path: Path, write_trace: TraceWriter, store: StandIn
) -> None:
    write_host(write_trace, tmp_path, "eu", 2001)
    run_ship(ShipRequest(traces=tmp_path, to=store.uri("traces")))
    store.requests.clear()
    assert run_ship(ShipRequest(traces=tmp_path, to=store.uri("traces"))).known == 6
    assert store.requests == []
    write_trace(tmp_path, 10, first=20, region="eu")
    done = run_ship(ShipRequest(traces=tmp_path, to=store.uri("traces")))
    assert (done.files, done.known, len(store.files())) == (1, 6, 7)
    assert [method for method, path in store.requests if path.endswith(".parquet")] == ["PUT", "HEAD"]


def test_what_is_open_and_what_is_no_trace_file_stays(tmp_path: Path, write_trace: TraceWriter) -> None:
    traces, there = tmp_path / "traces", tmp_path / "there"
    relative = write_trace(traces, 10)
    for name in (f"{Path(relative).parent}/.tmp-ledger-2001-b0-000010.parquet", ".spool/ledger-2001-b0-000010.wal"):
        (traces / name).parent.mkdir(parents=True, exist_ok=True)
        (traces / name).write_bytes(b"open")
    (traces / Path(relative).parent / "notes.txt").write_bytes(b"mine")
    assert run_ship(ShipRequest(traces=traces, to=there)).files == 1
    assert list(files_in(there)) == [relative]


def test_what_the_place_expired_or_compacted_is_not_sent_again_but_when_somebody_asks(
    tmp_path: Path, write_trace: TraceWriter
) -> None:
    traces, there = tmp_path / "traces", tmp_path / "there"
    for first in (0, 10, 20):
        write_trace(traces, 10, first=first)
    run_ship(ShipRequest(traces=traces, to=there))
    run_compact(CompactRequest(traces=there, clock_ns=lambda: LATER_NS))
    assert len(files_in(there)) == 1
    assert run_ship(ShipRequest(traces=traces, to=there)).files == 0
    assert len(files_in(there)) == 1
    assert run_ship(ShipRequest(traces=traces, to=there, is_again=True)).files == 3
    files = run_verify(VerifyRequest(traces=there))
    assert (files.rows, len(files.superseded)) == (30, 3)


def test_nothing_is_deleted_here_or_there(tmp_path: Path, write_trace: TraceWriter) -> None:
    traces, there = tmp_path / "traces", tmp_path / "there"
    write_host(write_trace, traces, "eu", 2001)
    before = files_in(traces)
    run_ship(ShipRequest(traces=traces, to=there))
    assert files_in(traces) == files_in(there) == before
    for path in traces.rglob("*-000000.parquet"):
        path.unlink()
    run_ship(ShipRequest(traces=traces, to=there, is_again=True))
    assert files_in(there) == before


def test_what_can_be_read_there_is_never_written_over_and_what_is_torn_is(
    tmp_path: Path, write_trace: TraceWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    traces, there = tmp_path / "traces", tmp_path / "there"
    whole, torn = write_trace(traces, 10), write_trace(traces, 10, first=10)
    assert write_trace(there, 9) == whole
    theirs = (there / whole).read_bytes()
    (there / torn).write_bytes((traces / torn).read_bytes()[:-1])
    assert cli.main(["ship", "--traces", str(traces), "--into", str(there)]) == 0
    assert (there / whole).read_bytes() == theirs
    assert (there / torn).read_bytes() == (traces / torn).read_bytes()
    out = capsys.readouterr().out
    assert f"{whole}: another file is there and is kept" in out
    assert "1 file of" in out and "1 other file kept there" in out


def test_killed_in_the_middle_it_goes_on_behind_the_last_file_that_arrived(
    tmp_path: Path, write_trace: TraceWriter, store: StandIn
) -> None:
    write_host(write_trace, tmp_path, "eu", 2001)
    size_bytes = sum(map(len, files_in(tmp_path).values()))
    command = [sys.executable, "-m", "sla", "ship", "--traces", str(tmp_path), "--into", store.uri("traces")]
    slowly = ["--mb-per-s", f"{size_bytes / 1e6 / 6:.4f}"]  # a second for each of the six
    killed = subprocess.Popen([*command, *slowly], env={**os.environ, **CREDENTIALS})
    while not store.files():
        assert killed.poll() is None
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    arrived = set(store.files())
    assert 0 < len(arrived) < 6
    store.requests.clear()
    done = run_ship(ShipRequest(traces=tmp_path, to=store.uri("traces")))
    assert (done.files, done.known) == (6 - len(arrived), len(arrived))
    sent = {path.removeprefix("/bucket/") for method, path in store.requests if method in ("PUT", "POST")}
    assert not sent & arrived
    assert store.files() == {f"traces/{name}": raw for name, raw in files_in(tmp_path).items()}


def test_a_run_whose_memory_a_kill_tore_knows_a_file_by_its_size(tmp_path: Path, write_trace: TraceWriter) -> None:
    traces, there = tmp_path / "traces", tmp_path / "there"
    write_host(write_trace, traces, "eu", 2001)
    run_ship(ShipRequest(traces=traces, to=there))
    (memory, *_) = sorted((traces / ".shipped").rglob("date=*"))
    memory.write_text(memory.read_text()[:-20])
    (there / ".left.1.tmp").write_bytes(b"")
    done = run_ship(ShipRequest(traces=traces, to=there))
    assert (done.files, done.known) == (0, 6)
    assert run_ship(ShipRequest(traces=traces, to=there)).known == 6


def test_a_killed_copy_into_a_directory_leaves_nothing_behind_it(tmp_path: Path, write_trace: TraceWriter) -> None:
    traces, there = tmp_path / "traces", tmp_path / "there"
    relative = write_trace(traces, 10)
    left = there / Path(relative).parent / f".{Path(relative).name}.4711.tmp"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    run_ship(ShipRequest(traces=traces, to=there))
    assert [path.name for path in left.parent.iterdir()] == [Path(relative).name]


def test_hours_that_this_host_has_no_files_of_are_forgotten(tmp_path: Path, write_trace: TraceWriter) -> None:
    traces, there = tmp_path / "traces", tmp_path / "there"
    write_host(write_trace, traces, "eu", 2001)
    run_ship(ShipRequest(traces=traces, to=there))
    hour = min(traces.glob("date=*/hour=*"))
    for path in [*hour.rglob("*.parquet"), hour / "region=eu"]:
        path.unlink() if path.is_file() else path.rmdir()
    hour.rmdir()
    run_ship(ShipRequest(traces=traces, to=there))
    assert len(list((traces / ".shipped").rglob("date=*"))) == 2
    assert len(files_in(there)) == 6


def test_it_sends_no_more_bytes_a_second_than_it_may(tmp_path: Path, write_trace: TraceWriter) -> None:
    traces = tmp_path / "traces"
    write_host(write_trace, traces, "eu", 2001)
    now_s, size_bytes = [0.0], sum(map(len, files_in(traces).values()))

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    request = ShipRequest(
        traces=traces, to=tmp_path / "there", bytes_per_s=1_000, clock_s=lambda: now_s[0], sleep=sleep
    )
    run_ship(request)
    assert now_s[0] == pytest.approx(size_bytes / 1_000)


def test_a_file_that_expires_before_its_turn_is_counted_and_no_error(
    tmp_path: Path, write_trace: TraceWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = tmp_path / "traces"
    first, second = write_trace(traces, 10), write_trace(traces, 10, first=10)

    def expire(_: str) -> None:
        (traces / second).unlink(missing_ok=True)

    done = run_ship(ShipRequest(traces=traces, to=tmp_path / "there"), expire)
    assert (done.files, done.gone) == (1, 1)
    assert list(files_in(tmp_path / "there")) == [first]


def test_a_store_that_refuses_ends_it_with_one_line_and_the_next_run_goes_on(
    tmp_path: Path, write_trace: TraceWriter, store: StandIn
) -> None:
    write_host(write_trace, tmp_path, "eu", 2001)
    store.parts_max = 0
    with pytest.raises(JobFailed, match=r"stopped after 0 files: .*") as caught:
        run_ship(ShipRequest(traces=tmp_path, to=store.uri("traces")))
    assert "\n" not in str(caught.value) and "endpoint_override" not in str(caught.value)
    store.parts_max = 10_000
    assert run_ship(ShipRequest(traces=tmp_path, to=store.uri("traces"))).files == 6
    assert store.files() == {f"traces/{name}": raw for name, raw in files_in(tmp_path).items()}


def test_places_that_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    for traces, to in (("s3://b/x?region=r", "there"), ("traces", "traces"), ("traces", "traces/in"), ("traces", ".")):
        where = traces if "://" in traces else tmp_path / traces
        with pytest.raises(UsageError):
            run_ship(ShipRequest(traces=where, to=tmp_path / to))
    with pytest.raises(NoTraces, match="trace_dir"):
        run_ship(ShipRequest(traces=tmp_path / "absent", to=tmp_path / "there"))


@pytest.mark.parametrize("given", ["0", "-1", "x", "nan", "1e9"])
def test_a_rate_that_is_none_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ship", "--into", "x", "--mb-per-s", given]) == 2
    assert "is no number from 0.001 to 10000" in capsys.readouterr().err


def test_a_place_is_shown_without_its_credentials() -> None:
    uri = "s3://key:secret@bucket/mesh/traces?region=us-east-1&scheme=http"
    assert Location.open(uri).shown == "s3://bucket/mesh/traces"
