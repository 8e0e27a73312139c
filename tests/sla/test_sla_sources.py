"""Trace files found, verified, counted and set aside: without Spark."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from georelay.trace.files import TraceFileMetadata, TraceFileName
from georelay.trace.kinds import LedgerKind, TraceKind
from georelay.trace.schema import SCHEMAS
from sla.errors import JobFailed, NoTraces, UsageError
from sla.jobs.verify import VerifyRequest, run_verify
from sla.sources.layout import HOUR_S, FilePlace, Period, find_places
from sla.sources.location import Location
from sla.sources.manifest import TIME_COLUMNS, BadFile, GoodFile, TraceFiles, hour_inputs
from sla.sources.proven import ProvenFiles
from sla.sources.quarantine import Quarantine
from sla.sources.verify import Depth, verify_files
from tests.tiers import first

TraceWriter = Callable[..., str]
T0 = 1_700_000_000 // 3_600 * 3_600
UTC = datetime.UTC
LATER_NS = 4_000_000_000 * 10**9  # every file of a test is old by then
FOLDER = "date=2023-11-14/hour=22/region=eu"


def moment(hours: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(T0 + hours * HOUR_S, tz=UTC)


def verified(directory: Path, **changes: Any) -> TraceFiles:
    return run_verify(VerifyRequest(traces=directory, **changes))


def reasons(files: TraceFiles) -> list[str]:
    return [bad.reason for bad in files.bad]


def flip_a_page(path: Path) -> None:
    """Flip a bit of the first column's dictionary, behind the page's header."""
    position = pq.read_metadata(path).row_group(0).column(0).data_page_offset - 1
    raw = bytearray(path.read_bytes())
    raw[position] ^= 0x10
    path.write_bytes(raw)


def place(hour: int, first: int, *, kind: TraceKind = TraceKind.LEDGER, broker: int = 2001) -> FilePlace:
    name = TraceFileName(kind=kind, broker=broker, boot_id="b0", sequence=first)
    at = moment(hour)
    found = FilePlace.parse(f"date={at:%Y-%m-%d}/hour={at:%H}/region=eu/{name}")
    assert found is not None
    return found


def good(hour: int, first: int, last: int, *, dropped: int = 0, **where: Any) -> GoodFile:
    stands = place(hour, first, **where)
    metadata = TraceFileMetadata(
        kind=stands.kind, writer=stands.writer, boot_id="b0", first_row_seq=first, last_row_seq=last,
        rows=last - first + 1, dropped=dropped, hist_grid=5,
    )  # fmt: skip
    return GoodFile(place=stands, metadata=metadata, size_bytes=100, digest=first * 1_000 + last)


def manifest(*files: GoodFile, bad: tuple[BadFile, ...] = ()) -> TraceFiles:
    return TraceFiles.sorted_out(Location.open("traces"), files, bad)


# --- where files stand


def test_a_place_is_read_from_the_path_and_nothing_else_is_a_trace_file() -> None:
    found = FilePlace.parse(f"{FOLDER}/ledger-2001-54b1c987107e-000042.parquet")
    assert found is not None
    assert (found.hour_s, found.region, found.kind, found.writer) == (T0, "eu", TraceKind.LEDGER, "eu/2001")
    for other in (
        "ledger-2001-b0-000042.parquet", f"{FOLDER}/notes.parquet", f"{FOLDER}/other-2001-b0-000042.parquet",
        f"{FOLDER}/deeper/ledger-2001-b0-000042.parquet",
        "date=2023-13-41/hour=22/region=eu/ledger-1-b0-000000.parquet",
        "date=2023-11-14/hour=24/region=eu/ledger-1-b0-000000.parquet",
    ):  # fmt: skip
        assert FilePlace.parse(other) is None, other


def test_a_period_lists_its_hours_and_the_margins_asked_for(tmp_path: Path, write_trace: TraceWriter) -> None:
    for hour in range(-30, 30):
        write_trace(tmp_path, 1, first=hour + 30, hour_s=T0 + hour * HOUR_S)
    (tmp_path / "date=2023-11-14" / "hour=22" / "region=eu" / ".tmp-x.parquet").touch()
    (tmp_path / ".spool").mkdir()
    location = Location.open(tmp_path)

    def hours(period: Period, **margins: int) -> list[int]:
        return [(found.hour_s - T0) // HOUR_S for found, _ in find_places(location, period, **margins)]

    assert hours(Period()) == list(range(-30, 30))
    assert hours(Period(start=moment(0), end=moment(2))) == [-1, 0, 1, 2]
    assert hours(Period(start=moment(0.5), end=moment(1.5))) == [-1, 0, 1, 2]
    assert hours(Period(start=moment(0), end=moment(1)), hours_before=0, hours_after=3) == [0, 1, 2, 3]
    assert hours(Period(start=moment(28))) == [27, 28, 29]
    assert hours(Period(end=moment(-28))) == [-30, -29, -28]


def test_names_in_progress_are_never_listed(tmp_path: Path) -> None:
    for name in ("a", "deep/b", ".c", "_d", "deep/.e", ".deep/f", "_deep/g"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    location = Location.open(tmp_path)
    assert [entry.relative for entry in location.files()] == ["a", "deep/b"]
    assert (location.folders(), location.folders("nowhere"), location.files("nowhere")) == (["deep"], [], [])


@pytest.mark.parametrize(("failures", "is_listed"), [(2, True), (3, False)])
def test_a_folder_that_retention_removes_while_it_is_listed_is_listed_again(
    tmp_path: Path, failures: int, *, is_listed: bool
) -> None:
    class Vanishing:
        def __init__(self) -> None:
            self.left = failures

        def get_file_info(self, selector: Any) -> Any:
            if self.left:
                self.left -= 1
                raise FileNotFoundError(selector.base_dir)
            return pa.fs.LocalFileSystem().get_file_info(selector)

    (tmp_path / "a").touch()
    location = Location(uri="somewhere", filesystem=Vanishing(), root=str(tmp_path))
    if is_listed:
        assert [entry.relative for entry in location.files()] == ["a"]
        return
    with pytest.raises(FileNotFoundError):
        location.files()


@pytest.mark.parametrize(
    ("where", "error"), [("ftp://host/x", UsageError), ("s3://", UsageError), ("abfs://nothing", UsageError)]
)
def test_a_uri_that_cannot_be_understood_is_one_line(where: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        Location.open(where)
    assert str(caught.value).count("\n") == 0


def test_stores_are_opened_by_scheme_and_know_what_stands_beside() -> None:
    store = Location.open("s3://bucket/mesh/traces?region=us-east-1&endpoint_override=localhost:9000")
    assert (store.root, store.is_local, store.path("x")) == ("bucket/mesh/traces", False, "bucket/mesh/traces/x")
    beside = store.sibling("quarantine")
    assert beside is not None
    assert beside.uri == "s3://bucket/mesh/quarantine?region=us-east-1&endpoint_override=localhost:9000"
    assert beside.root == "bucket/mesh/quarantine"
    assert Location.open("s3://bucket?region=us-east-1").sibling("quarantine") is None
    assert Location.open("file:///some/traces").sibling("q") == Location.open("/some/q")


# --- good or bad


def test_a_file_is_known_by_its_footer_and_its_times(tmp_path: Path, write_trace: TraceWriter) -> None:
    row = {"second": T0 + 7, "hist": [{"b": 1, "n": 1}, {"b": 2, "n": 5}]}
    write_trace(tmp_path, [row, row | {"second": T0 + 3}], kind=TraceKind.LATENCY_HIST)
    write_trace(tmp_path, 5, writing={"row_group_size": 2})
    hist, ledger = verified(tmp_path).good
    assert (hist.kind, hist.time_min_s, hist.time_max_s) == (TraceKind.LATENCY_HIST, T0 + 3, T0 + 7)
    assert (ledger.kind, ledger.time_min_s, ledger.time_max_s) == (TraceKind.LEDGER, T0, T0 + 4)
    assert (ledger.metadata.rows, ledger.is_whole, ledger.hour_s, ledger.region) == (5, True, T0, "eu")


def test_every_kind_has_a_time_column() -> None:
    assert {kind for kind in TraceKind if TIME_COLUMNS[kind][0] in SCHEMAS[kind].names} == set(TraceKind)


@pytest.mark.parametrize("keep", [0, 4, 11, 0.3, 0.99], ids=["empty", "magic", "stub", "third", "no-end"])
def test_a_torn_file_is_bad(tmp_path: Path, write_trace: TraceWriter, keep: float) -> None:
    path = tmp_path / write_trace(tmp_path, 100)
    raw = path.read_bytes()
    path.write_bytes(raw[: keep if isinstance(keep, int) else int(len(raw) * keep)])
    files = verified(tmp_path)
    assert (files.good, len(files.bad), files.is_complete(TraceKind.LEDGER)) == ((), 1, False)


@pytest.mark.parametrize(("part", "step"), first(2, [("pages", 23), ("footer", 37), ("footer", 11)]))
def test_a_flipped_bit_is_found_or_changes_nothing_that_is_read(
    tmp_path: Path, write_trace: TraceWriter, part: str, step: int
) -> None:
    write_trace(tmp_path, [{"group": "g"}, {}])
    location = Location.open(tmp_path)
    ((where, entry),) = find_places(location, Period())
    path = tmp_path / where.relative
    whole, rows = path.read_bytes(), pq.read_table(path, partitioning=None)
    (known,) = verified(tmp_path).good
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    unseen = []
    for position in range(0, footer, step) if part == "pages" else range(footer, len(whole), step):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ (1 << position % 8)]) + whole[position + 1 :])
        files = verify_files(location, [(where, entry)], depth=Depth.ALL, proven=ProvenFiles(None))
        if files.good and not _is_the_same(files.good[0], known, path, rows):
            unseen.append(position)
    assert unseen == []


def _is_the_same(file: GoodFile, known: GoodFile, path: Path, rows: Any) -> bool:
    # `dropped` and the version stand nowhere else: nothing can contradict them.
    metadata = replace(file.metadata, dropped=0, schema_version=known.metadata.schema_version)
    is_same_file = replace(file, metadata=metadata, digest=known.digest) == known
    return is_same_file and bool(pq.read_table(path, partitioning=None).equals(rows))


@pytest.mark.parametrize("wrong", ["group", "to_offset", "first_ns"])
def test_what_the_footer_says_must_be_true_of_the_rows(tmp_path: Path, write_trace: TraceWriter, wrong: str) -> None:
    """Two files of one length, the footer of one behind the pages of the other: all checksums are right."""
    options = {"compression": "none", "use_dictionary": False}
    values = {"group": ("a", "b"), "to_offset": (5, 6), "first_ns": (T0 * 10**9, T0 * 10**9 + 10**9)}[wrong]
    path = tmp_path / write_trace(tmp_path, [{wrong: values[0]}], writing=options)
    pages = path.read_bytes()
    write_trace(tmp_path, [{wrong: values[1]}], writing=options)
    other = path.read_bytes()
    footer = len(pages) - 8 - int.from_bytes(pages[-8:-4], "little")
    assert len(other) == len(pages)
    path.write_bytes(pages[:footer] + other[footer:])
    assert pq.read_table(path, partitioning=None, page_checksum_verification=True)[wrong].to_pylist() == [values[0]]
    assert reasons(verified(tmp_path)) == [f"the rows of column {wrong} are not in the range that the footer says"]


def test_footers_alone_do_not_find_a_flipped_page_and_the_default_does(
    tmp_path: Path, write_trace: TraceWriter
) -> None:
    path = tmp_path / write_trace(tmp_path, 100)
    flip_a_page(path)
    assert [file.is_whole for file in verified(tmp_path, depth=Depth.FOOTERS).good] == [False]
    (bad,) = verified(tmp_path).bad
    assert ("crc" in bad.reason.lower(), bad.rows_expected, bad.is_damaged) == (True, 100, True)


def test_a_file_must_be_what_its_path_says(tmp_path: Path, write_trace: TraceWriter) -> None:
    write_trace(tmp_path, 1, writer="us/2001")
    write_trace(tmp_path, 1, boot="b1", boot_id="b2")
    write_trace(tmp_path, 1, boot="b3", first_row_seq=5, last_row_seq=5)
    write_trace(tmp_path, 1, boot="b4", last_row_seq=8)
    write_trace(tmp_path, [{}], boot="b5", kind=TraceKind.LATENCY_HIST, hist_grid=6)
    files = verified(tmp_path)
    assert (len(files.good), len(files.bad)) == (0, 5)
    assert set(reasons(files)) == {
        "the file says it is us/2001 b0 from row 0, its path says otherwise",
        "the file says it is eu/2001 b2 from row 0, its path says otherwise",
        "the file says it is eu/2001 b3 from row 5, its path says otherwise",
        "the file holds 1 rows, its metadata says 1 numbered 0 to 8",
        "histogram grid 6 is not known; this report reads grid 5",
    }


def test_older_and_newer_schemas_are_read_and_foreign_ones_refused(tmp_path: Path, write_trace: TraceWriter) -> None:
    ours = SCHEMAS[TraceKind.LEDGER]

    def replaced(name: str, kind: Any, *, is_nullable: bool = False) -> Any:
        return ours.set(ours.get_field_index(name), pa.field(name, kind, nullable=is_nullable))

    without_version = ours.remove(ours.get_field_index("schema_version"))
    renamed = ours.set(ours.get_field_index("group"), pa.field("groep", pa.string()))
    write_trace(tmp_path, 2, boot="old", schema=without_version, schema_version=1)
    write_trace(tmp_path, 2, boot="renamed", schema=renamed)
    write_trace(tmp_path, 2, boot="oldest", schema=renamed, schema_version=1)
    write_trace(tmp_path, 2, boot="narrow", schema=replaced("from_offset", pa.int32()))
    write_trace(tmp_path, 2, boot="new", schema=ours.append(pa.field("later", pa.string())), schema_version=4)
    write_trace(tmp_path, 2, boot="second", schema=ours.remove(ours.get_field_index("records")), schema_version=2)
    write_trace(tmp_path, 2, boot="coded", schema=replaced("topic", pa.dictionary(pa.int32(), pa.string())))
    write_trace(tmp_path, 2, boot="wide", schema=replaced("partition", pa.int64()))
    write_trace(tmp_path, 2, boot="text", schema=replaced("to_offset", pa.float64()))
    write_trace(tmp_path, 2, boot="less", schema=ours.remove(ours.get_field_index("topic")))
    nullable = replaced("topic", pa.string(), is_nullable=True)
    write_trace(tmp_path, [{"topic": None}, {}], boot="null", schema=nullable)
    files = verified(tmp_path)
    assert {file.metadata.boot_id for file in files.good} == {"old", "second", "narrow", "new", "coded"}
    assert {bad.place.name.boot_id: bad.reason for bad in files.bad} == {
        "renamed": "column group is missing",
        "oldest": "column groep is not known in version 1 of the schema",
        "wide": "column partition is int64, not int32",
        "text": "column to_offset is double, not int64",
        "less": "column topic is missing",
        "null": "column topic holds nulls",
    }


def test_a_file_that_disappears_between_list_and_look_is_nobodys(tmp_path: Path, write_trace: TraceWriter) -> None:
    write_trace(tmp_path, 1)
    location = Location.open(tmp_path)
    found = find_places(location, Period())
    (tmp_path / found[0][0].relative).unlink()
    files = verify_files(location, found, depth=Depth.NEW, proven=ProvenFiles(None))
    assert (files.good, files.bad) == ((), ())


def test_a_file_that_the_disk_will_not_give_is_bad_and_never_moved(tmp_path: Path, write_trace: TraceWriter) -> None:
    path = tmp_path / "traces" / write_trace(tmp_path / "traces", 1)
    path.unlink()
    path.symlink_to(path)  # opening it fails with ELOOP, whoever asks
    location = Location.open(tmp_path / "traces")
    where = FilePlace.parse(path.relative_to(tmp_path / "traces").as_posix())
    assert where is not None
    files = verify_files(location, [(where, _entry(where))], depth=Depth.NEW, proven=ProvenFiles(None))
    (bad,) = files.bad
    assert (bad.is_damaged, Quarantine(Location.open(tmp_path / "q")).take(location, bad, now_ns=LATER_NS)) == (
        False,
        False,
    )


def _entry(where: FilePlace) -> Any:
    from sla.sources.location import Entry

    return Entry(relative=where.relative, size_bytes=0, mtime_ns=None)


# --- what is counted


def test_rows_missing_dropped_and_silent_are_counted_in_their_hour() -> None:
    hist = TraceKind.LATENCY_HIST
    bad = BadFile(place=place(1, 40, broker=2002), size_bytes=9, reason="torn")
    files = manifest(
        good(0, 0, 9), good(0, 10, 19), good(1, 25, 30, dropped=3), good(2, 31, 31, dropped=4),
        good(0, 7, 9, dropped=7, broker=2002), good(2, 50, 59, dropped=7, broker=2002),
        good(0, 5, 9, dropped=2, kind=hist), good(2, 10, 11, dropped=2, kind=hist),
        bad=(bad,),
    )  # fmt: skip
    rows = {((row.ts_s - T0) // HOUR_S, row.kind.value): row for row in hour_inputs(files)}
    assert sorted(rows) == [(hour, kind) for hour in range(3) for kind in ("latency_hist", "ledger")]
    ledger = [rows[hour, "ledger"] for hour in range(3)]
    assert [(row.files, row.bytes, row.rows) for row in ledger] == [(3, 300, 23), (1, 100, 6), (2, 200, 11)]
    assert [(row.missing_rows, row.dropped_rows) for row in ledger] == [(0, 7), (5, 3), (40, 1)]
    assert [row.gone_rows for row in ledger] == [7, 5, 41]  # dropped ones are numbered, too
    assert [row.quarantined_files for row in ledger] == [0, 1, 0]
    assert ledger[1].writers == ("eu/2001",)
    assert [row.silent_writers for row in ledger] == [(), (), ()]  # 2002 wrote in hour 1: what it wrote is bad
    hists = [rows[hour, "latency_hist"] for hour in range(3)]
    assert [(row.files, row.dropped_rows) for row in hists] == [(1, 0), (0, 0), (1, 0)]
    assert hists[1].silent_writers == ("eu/2001",)
    assert (files.rows_missing(TraceKind.LEDGER), files.rows_dropped()) == (45, 11)
    assert (files.is_complete(TraceKind.LEDGER), files.is_complete(hist)) == (False, True)


def test_rows_that_one_writer_dropped_are_gone_beside_those_that_another_lacks() -> None:
    (row,) = hour_inputs(manifest(good(0, 0, 9), good(0, 20, 29), good(0, 15, 19, dropped=15, broker=2002)))
    assert (row.missing_rows, row.dropped_rows, row.gone_rows) == (10, 15, 25)


def silent_hours(*files: GoodFile, seen: dict[str, int] | None = None) -> dict[str, list[int]]:
    """Return the hours (from T0) in which writers of clock rows are silent."""
    found: dict[str, list[int]] = {}
    for row in hour_inputs(manifest(*files), clock_seen=seen or {}):
        for writer in row.silent_writers:
            found.setdefault(writer, []).append((row.ts_s - T0) // HOUR_S)
    return found


def clock(hours: Iterable[int], broker: int = 2001) -> list[GoodFile]:
    return [good(hour, hour * 10, hour * 10 + 9, broker=broker, kind=TraceKind.CLOCK) for hour in hours]


def test_a_broker_without_clock_rows_is_silent_in_every_hour_until_it_is_seen_again() -> None:
    all_day = clock(range(24))
    assert silent_hours(*all_day, *clock([*range(8), *range(18, 24)], 2002)) == {"eu/2002": list(range(8, 18))}
    assert silent_hours(*all_day, *clock(range(8), 2002)) == {"eu/2002": list(range(8, 24))}
    assert silent_hours(*all_day, *clock(range(8, 24), 2002)) == {"eu/2002": [7]}  # it may be new
    outcome = [good(hour, hour, hour, broker=2002, kind=TraceKind.OUTCOME) for hour in (0, 9)]
    assert silent_hours(*all_day, *outcome) == {"eu/2002": [1, 8, 10]}  # nobody asked for anything, or it was silent


def test_a_broker_that_stops_right_after_the_hour_is_not_silent_in_it_when_its_last_file_was_begun_before() -> None:
    (last,) = clock([0])
    ledger = [good(hour, hour * 10, hour * 10 + 9) for hour in (0, 1)]
    assert silent_hours(*ledger, replace(last, time_max_s=T0 + HOUR_S - 1)) == {"eu/2001": [1]}
    assert silent_hours(*ledger, replace(last, time_max_s=T0 + HOUR_S)) == {}
    assert silent_hours(*ledger, replace(last, time_max_s=T0 + 2 * HOUR_S)) == {"eu/2001": [1]}  # its clock was wrong
    assert silent_hours(*ledger, good(2, 20, 29), replace(last, time_max_s=T0 + HOUR_S)) == {"eu/2001": [2]}


def test_a_silence_that_began_before_the_files_goes_on_and_one_of_a_week_is_a_broker_that_was_removed() -> None:
    long = clock(range(200))
    assert silent_hours(*long, seen={"eu/2002": T0 - 3 * HOUR_S, "eu/2001": T0}) == {"eu/2002": list(range(166))}
    assert silent_hours(*long, *clock([180], 2002)) == {"eu/2002": [179, *range(181, 200)]}
    assert silent_hours(*long, seen={"eu/2002": T0 - 8 * 24 * HOUR_S}) == {}
    assert silent_hours(*clock([5])[:0], seen={"eu/2002": T0}) == {}


def test_the_hours_at_both_ends_name_nobody_silent_outside_them() -> None:
    assert [row.silent_writers for row in hour_inputs(manifest(good(0, 0, 1)))] == [()]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=8).map(
        lambda spans: [good(index % 3, first, first + extra) for index, (first, extra) in enumerate(spans)]
    )
)
def test_a_row_number_is_never_counted_twice_and_never_lost_without_a_bad_file(files: list[GoodFile]) -> None:
    result = manifest(*files)
    kept = [seq for file in result.good for seq in range(file.metadata.first_row_seq, file.metadata.last_row_seq + 1)]
    assert len(kept) == len(set(kept))
    assert len(result.good) + len(result.bad) + len(result.superseded) == len(files)
    everything = {seq for file in files for seq in range(file.metadata.first_row_seq, file.metadata.last_row_seq + 1)}
    assert result.bad or set(kept) == everything


def test_an_overlap_that_is_no_copy_is_named() -> None:
    files = manifest(good(0, 0, 9), good(0, 5, 12))
    assert [file.metadata.first_row_seq for file in files.good] == [0]
    assert reasons(files) == [f"its rows 5 to 9 are also in {place(0, 0).relative}"]


def test_near_an_hour_are_its_neighbours_and_the_hash_changes_with_any_file() -> None:
    files = manifest(*(good(hour, hour + 5, hour + 5) for hour in range(-5, 6)))
    near = files.near(T0)
    assert [file.hour_s - T0 for file in near.good] == [-HOUR_S, 0, HOUR_S]
    assert near.input_hash() == manifest(*(good(hour, hour + 5, hour + 5) for hour in (-1, 0, 1))).input_hash()
    assert files.near(T0 + HOUR_S).input_hash() != near.input_hash()
    worse = replace(near, bad=(BadFile(place=place(0, 99), size_bytes=1, reason="torn"),))
    assert worse.input_hash() != near.input_hash()
    assert [len(files.of(kind).good) for kind in (TraceKind.LEDGER, TraceKind.CLOCK)] == [11, 0]


def test_other_rows_under_the_same_numbers_are_another_input(tmp_path: Path, write_trace: TraceWriter) -> None:
    write_trace(tmp_path, 5)
    before = verified(tmp_path)
    write_trace(tmp_path, [{"to_offset": 2, "from_offset": i} for i in range(5)])
    after = verified(tmp_path)
    assert before.good[0].metadata == after.good[0].metadata
    assert before.input_hash() != after.input_hash()


# --- what is remembered


def test_a_proven_file_is_not_read_again_until_it_changes(tmp_path: Path, write_trace: TraceWriter) -> None:
    traces, memory = tmp_path / "traces", tmp_path / "rollups" / "_verified"
    path = traces / write_trace(traces, 100)
    first = verified(traces, proven=memory)
    status = path.stat()
    flip_a_page(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a disk rots: nobody wrote
    assert verified(traces, proven=memory) == first
    (bad,) = verified(traces, proven=memory, depth=Depth.ALL).bad
    assert bad.rows_expected == 100
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    path.write_bytes(b"torn")
    assert [(bad.rows_expected, bad.size_bytes) for bad in verified(traces, proven=memory).bad] == [(100, 4)]


def test_what_is_gone_is_forgotten_when_its_hour_changes(tmp_path: Path, write_trace: TraceWriter) -> None:
    traces, memory = tmp_path / "traces", tmp_path / "memory"
    torn, gone = write_trace(traces, 2), write_trace(traces, 2, first=2)
    verified(traces, proven=memory)
    (traces / gone).unlink()
    (traces / torn).write_bytes(b"torn")
    new = write_trace(traces, 2, first=4)
    verified(traces, proven=memory)
    (written,) = memory.rglob("*.json")
    assert set(json.loads(written.read_bytes())["files"]) == {torn, new}


@pytest.mark.parametrize("changed", ["time", "size"])
def test_a_file_with_another_time_or_size_is_not_known(tmp_path: Path, write_trace: TraceWriter, changed: str) -> None:
    traces, memory = tmp_path / "traces", tmp_path / "memory"
    path = traces / write_trace(traces, 100)
    verified(traces, proven=memory)
    written_ns = path.stat().st_mtime_ns
    if changed == "time":
        flip_a_page(path)
        written_ns += 1
    else:
        path.write_bytes(path.read_bytes()[:-1])
    os.utime(path, ns=(written_ns, written_ns))
    assert len(verified(traces, proven=memory).bad) == 1


def test_what_only_the_footer_proved_is_read_whole_later(tmp_path: Path, write_trace: TraceWriter) -> None:
    traces, memory = tmp_path / "traces", tmp_path / "memory"
    write_trace(traces, 3)
    assert [file.is_whole for file in verified(traces, proven=memory, depth=Depth.FOOTERS).good] == [False]
    assert [file.is_whole for file in verified(traces, proven=memory).good] == [True]
    assert [file.is_whole for file in verified(traces, proven=memory, depth=Depth.FOOTERS).good] == [True]


@pytest.mark.parametrize(
    "document",
    [b"", b"[]", b'{"version":9,"files":{}}', b'{"version":1,"files":[]}', b'{"version":1,"files":{"x":{}}}'],
)
def test_a_memory_that_cannot_be_read_is_as_good_as_none(
    tmp_path: Path, write_trace: TraceWriter, document: bytes
) -> None:
    traces, memory = tmp_path / "traces", tmp_path / "memory"
    write_trace(traces, 3)
    before = verified(traces, proven=memory)
    (written,) = memory.rglob("*.json")
    good_document = written.read_bytes()
    written.write_bytes(document)
    assert verified(traces, proven=memory) == before
    assert written.read_bytes() == good_document


def test_a_memory_with_a_changed_row_is_not_believed(tmp_path: Path, write_trace: TraceWriter) -> None:
    traces, memory = tmp_path / "traces", tmp_path / "memory"
    write_trace(traces, 3)
    before = verified(traces, proven=memory)
    (written,) = memory.rglob("*.json")
    document = json.loads(written.read_bytes())
    (row,) = document["files"].values()
    for name, value in (("digest", 5), ("metadata", {"rows": 3}), ("time_s", 1), ("is_whole", "yes")):
        written.write_text(json.dumps({"version": 1, "files": {before.good[0].relative: row | {name: value}}}))
        assert verified(traces, proven=memory) == before, name


# --- the job


def test_nothing_to_verify_says_why(tmp_path: Path, write_trace: TraceWriter) -> None:
    with pytest.raises(NoTraces, match="does not exist"):
        verified(tmp_path / "nowhere")
    with pytest.raises(NoTraces, match="no file date="):
        verified(tmp_path)
    write_trace(tmp_path / "traces", 1)
    with pytest.raises(NoTraces, match="in that period"):
        verified(tmp_path / "traces", period=Period(start=moment(5)))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        verified(tmp_path / "file")


def test_a_memory_that_cannot_be_written_fails_the_job_with_one_line(tmp_path: Path, write_trace: TraceWriter) -> None:
    write_trace(tmp_path / "traces", 1)
    (tmp_path / "rollups").touch()
    with pytest.raises(JobFailed, match="cannot be verified") as caught:
        verified(tmp_path / "traces", proven=tmp_path / "rollups" / "_verified")
    assert "\n" not in str(caught.value)


def test_the_steps_of_a_long_job_are_told(tmp_path: Path, write_trace: TraceWriter) -> None:
    for number in range(501):
        (tmp_path / f"{FOLDER}").mkdir(parents=True, exist_ok=True)
        (tmp_path / FOLDER / f"ledger-2001-b0-{number:06}.parquet").touch()
    steps: list[str] = []
    run_verify(VerifyRequest(traces=tmp_path), steps.append)
    assert steps[1:] == ["verifying 501 trace files", "verifying trace files: 500 of 501"]


# --- other filesystems


@pytest.mark.parametrize("store", ["uri", "subtree", "memory"])
def test_a_store_is_verified_remembered_and_cleared_like_a_directory(
    tmp_path: Path, write_trace: TraceWriter, store: str
) -> None:
    traces = tmp_path / "top" / "traces"
    write_trace(traces, 10, kind=TraceKind.LEDGER)
    torn = write_trace(traces, 10, first=10)
    (traces / torn).write_bytes((traces / torn).read_bytes()[:-1])
    location, beside = _open(store, tmp_path / "top")
    proven = ProvenFiles(replace(location, root=beside.root.replace("quarantine", "proven")))
    found = find_places(location, Period())
    files = verify_files(location, found, depth=Depth.NEW, proven=proven)
    assert (len(files.good), [bad.relative for bad in files.bad]) == (1, [torn])
    assert [proven.recall(where, entry) is not None for where, entry in found] == [True, False]
    quarantine = Quarantine(beside)
    assert quarantine.take(location, files.bad[0], now_ns=LATER_NS)
    assert [where.relative for where, _ in find_places(location, Period())] == [files.good[0].relative]
    (moved,) = quarantine.moved(Period(), [])
    assert (moved.relative, moved.reason) == (torn, files.bad[0].reason)


def _open(store: str, top: Path) -> tuple[Location, Location]:
    if store == "uri":
        location = Location.open((top / "traces").as_uri())
        beside = location.sibling("quarantine")
        assert beside is not None
        return location, beside
    if store == "subtree":
        filesystem = pa.fs.SubTreeFileSystem(str(top), pa.fs.LocalFileSystem())
    else:
        filesystem = pa.fs._MockFileSystem(datetime.datetime(2023, 11, 14, tzinfo=UTC))
        pa.fs.copy_files(str(top), "", source_filesystem=pa.fs.LocalFileSystem(), destination_filesystem=filesystem)
    return (
        Location(uri="store:traces", filesystem=filesystem, root="traces"),
        Location(uri="store:quarantine", filesystem=filesystem, root="quarantine"),
    )


def test_every_ledger_kind_can_be_verified(tmp_path: Path, write_trace: TraceWriter) -> None:
    write_trace(tmp_path, [{"kind": kind.value} for kind in LedgerKind])
    assert verified(tmp_path).rows_of(TraceKind.LEDGER) == len(LedgerKind)
