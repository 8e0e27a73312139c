"""The generator: what it writes is what brokers write, every fault is what it says, and what it expects is right."""

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy")

import numpy as np
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from georelay.trace.files import TraceFileMetadata, TraceFileName, partition_path
from georelay.trace.histogram import LatencyHistogram, bucket_index
from georelay.trace.kinds import TraceKind
from georelay.trace.schema import SCHEMAS
from sla.errors import UsageError
from sla.generate.expected import EXPECTED_NAME, Expected
from sla.generate.intervals import IntervalSet, size
from sla.generate.latency_rows import bucket_indexes
from sla.generate.request import FAULTS, Fault, FaultKind, GenerateRequest
from sla.generate.run import run_generate
from tests.tiers import first, in_one_test

START = datetime.datetime(2026, 11, 20, 9, 58, tzinfo=datetime.UTC)
ANOMALIES = ("dup_flagged", "dup_unflagged", "gaps", "gap_records", "healed_records", "lost", "unexplained",
             "aborted", "expired", "order_violations")  # fmt: skip

Generate = Callable[..., Expected]
# A minute around a full hour, of a stream each for what all homes publish and for what one does.
BRIEF: dict[str, Any] = {"start": START.replace(minute=59, second=30), "seconds": 60, "partitions": 1}
# The same in three files of each writer: one before and one behind the one that a fault is put into.
THREE_FILES = BRIEF | {"start": START.replace(minute=59, second=20), "roll_s": 20}


@pytest.fixture(scope="module")
def generate(tmp_path_factory: pytest.TempPathFactory) -> Generate:
    """Generate a small world: two minutes before and one after a full hour. One that was made is not made again."""
    made: dict[str, Expected] = {}

    def run(*faults: str, is_new: bool = False, **values: Any) -> Expected:
        name = repr((faults, sorted(values.items())))
        if is_new or name not in made:
            wanted: dict[str, Any] = {"start": START, "seconds": 180, "rate_per_s": 40, "roll_s": 120, "brokers": 1}
            request = GenerateRequest(
                out=tmp_path_factory.mktemp("gen"), faults=tuple(map(Fault.parse, faults)), **wanted | values
            )
            made[name] = run_generate(request)
        return made[name]

    return run


def rows_of(expected: Expected, kind: TraceKind) -> list[dict[str, Any]]:
    """Return all rows of the readable files of a kind."""
    rows: list[dict[str, Any]] = []
    for path in sorted(expected.traces.rglob(f"{kind.value}-*.parquet")):
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            rows += file.read().to_pylist()
    return rows


def anomalies(expected: Expected) -> dict[str, int]:
    """Return the totals of integrity that are not 0."""
    totals = expected.totals()["integrity_hour"]
    return {name: totals[name] for name in ANOMALIES if totals[name]}


def test_one_seed_makes_the_same_traces_and_another_seed_others(generate: Generate) -> None:
    world = BRIEF | {"start": START.replace(minute=59, second=50), "seconds": 20}
    one, again, other = (generate(seed=3, **world), generate(seed=3, is_new=True, **world), generate(seed=4, **world))
    assert one.tables == again.tables
    assert rows_of(one, TraceKind.LEDGER) == rows_of(again, TraceKind.LEDGER)
    assert one.tables["hour"] != other.tables["hour"]


def test_a_clean_world_has_nothing_to_complain_about(generate: Generate) -> None:
    expected = generate()
    assert anomalies(expected) == {}
    assert expected.files["readable"] == expected.files["written"] > 0
    totals = expected.totals()
    assert totals["avail_minute"]["probes"] == totals["avail_minute"]["probes_ok"] == 180 * 9
    assert totals["mirror_hour"]["missing"] <= 20  # what is on its way at the end of an hour
    assert totals["hour"]["n_good_lo"] <= totals["hour"]["n_true"] <= totals["hour"]["n_good_hi"]


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        ("gap:count=2", {"gaps": 2, "gap_records": 1, "lost": 1}),
        ("gap:count=2,heal=5", {"gaps": 2, "gap_records": 1, "healed_records": 1, "order_violations": 1}),
        ("duplicate:count=2", {"dup_unflagged": 1}),
        ("duplicate:flagged=1", {"dup_flagged": 1}),
        ("rebalance", {"dup_flagged": 1}),
        ("reorder:count=2", {"gaps": 2, "gap_records": 1, "healed_records": 1, "order_violations": 1}),
        ("aborted:count=2", {"gaps": 6, "gap_records": 3, "aborted": 3}),
        ("expired", {"gaps": 1, "gap_records": 1, "expired": 1}),
    ],
)
def test_a_fault_of_delivery_is_counted_once_and_as_nothing_else(
    generate: Generate, fault: str, wanted: dict[str, int]
) -> None:
    expected = generate(fault, **BRIEF)
    assert expected.files["faults_without_place"] == 0
    records = sum(done["records"] for done in expected.injected)
    assert anomalies(expected) == {name: times if name == "gaps" else times * records for name, times in wanted.items()}


@pytest.mark.parametrize("faults", [(), ("gap:count=2", "reorder", "duplicate", "rebalance", "expired", "aborted")])
def test_what_was_delivered_missed_or_is_pending_is_what_was_committed(
    generate: Generate, faults: tuple[str, ...]
) -> None:
    expected = generate(*faults, **BRIEF)
    ledger = rows_of(expected, TraceKind.LEDGER)
    spans: dict[tuple[Any, ...], int] = defaultdict(int)
    firsts: dict[tuple[Any, ...], int] = {}
    for row in ledger:
        stream = (row["topic"], row["origin"], row["partition"])
        if row["kind"] == "commit":
            spans[stream] = max(spans[stream], row["to_offset"])
        if row["kind"] == "delivered":
            unit = (*stream, row["region"])
            firsts[unit] = min(firsts.get(unit, row["from_offset"]), row["from_offset"])
    by_unit: dict[tuple[Any, ...], int] = defaultdict(int)
    pending: dict[tuple[Any, ...], int] = {}
    for row in expected.rows("integrity_hour"):
        unit = (row["topic"], row["origin"], row["partition"], row["dest"])
        by_unit[unit] += row["delivered"] - row["dup_flagged"] - row["dup_unflagged"]
        by_unit[unit] += row["gap_records"] - row["healed_records"]
        pending[unit] = row["pending"]  # the rows of a unit are in order of their hours
    assert {unit: by_unit[unit] + pending[unit] for unit in by_unit} == {
        unit: spans[unit[:3]] - first for unit, first in firsts.items()
    }


def test_files_are_those_of_brokers(generate: Generate) -> None:
    expected = generate(brokers=2)
    next_row: dict[tuple[str, str, TraceKind], int] = {}
    paths = sorted(expected.traces.rglob("*.parquet"), key=lambda path: path.name)
    assert len(paths) == expected.files["written"]
    for path in paths:
        name = TraceFileName.parse(path.name)
        assert name is not None
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
        metadata = TraceFileMetadata.decode(table.schema.metadata)
        assert table.schema.remove_metadata().equals(SCHEMAS[name.kind])
        assert (metadata.kind, metadata.boot_id, metadata.first_row_seq) == (name.kind, name.boot_id, name.sequence)
        assert metadata.rows == table.num_rows == metadata.last_row_seq - metadata.first_row_seq + 1
        run = (metadata.writer, metadata.boot_id, name.kind)
        assert metadata.first_row_seq == next_row.get(run, 0)
        next_row[run] = metadata.last_row_seq + 1
        hour = datetime.datetime.strptime(path.parts[-4] + path.parts[-3] + "+0000", "date=%Y-%m-%dhour=%H%z")
        opened = int(hour.timestamp()) * 10**9
        assert path.parent.relative_to(expected.traces) == Path(partition_path(metadata.writer.split("/")[0], opened))


def test_histograms_hold_every_delivery_that_its_consumer_waited_for(generate: Generate) -> None:
    expected = generate("wrong-clock:region=ap", "duplicate", "rebalance", "slow-pair", **BRIEF)
    known: dict[tuple[Any, ...], int | None] = {}
    found: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
    for row in rows_of(expected, TraceKind.LATENCY_HIST):
        if row["stage"] == "total":
            key = (row["second"], row["origin"], row["dest"], row["topic"])
            assert known.setdefault(key, row["clock_err_us"]) == row["clock_err_us"]
            values = (row["n"], row["n_good"], row["n_good_lo"], row["n_good_hi"], row["lat_sum_us"])
            found[key] = [one + other for one, other in zip(found[key], values, strict=True)]
    histograms: dict[tuple[Any, ...], LatencyHistogram] = {}
    last_session = {(row["topic"], row["partition"], row["origin_region"], row["dest_region"]): 0
                    for row in rows_of(expected, TraceKind.DELIVERY)}  # fmt: skip
    assert last_session
    again = {(done["topic"], done["partition"], done["region"]): (done["first"], done["end"])
             for done in expected.injected if done["kind"] == "rebalance"}  # fmt: skip
    sessions: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for row in rows_of(expected, TraceKind.DELIVERY):
        place = (row["topic"], row["partition"], row["dest_region"])
        sessions[place].add(row["session_epoch"])
        is_new = row["session_epoch"] != min(sessions[place])
        first, end = again.get(place, (0, 0))
        if is_new and first <= row["base_offset"] < end:
            continue  # read again after a rebalance: nobody waited for it
        key = (row["publish_first_ns"] // 10**9, row["origin_region"], row["dest_region"], row["topic"])
        histogram = histograms.setdefault(key, LatencyHistogram(clock_error_us=known[key]))
        histogram.add(row["lat_max_us"], row["count"])
    assert {
        key: [histogram.n, histogram.n_good, histogram.n_good_lo, histogram.n_good_hi, histogram.lat_sum_us]
        for key, histogram in histograms.items()
    } == dict(found)


@pytest.mark.parametrize(
    "fault",
    first(3, ["wrong-clock:ms=-80", "clock-unknown", "clock-revised", "wrong-clock:ms=30", "asymmetric-path:ms=25"]),
)
def test_the_truth_lies_between_surely_and_perhaps_however_wrong_a_clock_is(generate: Generate, fault: str) -> None:
    expected = generate(fault, "slow-pair:ms=45", **BRIEF)
    rows = expected.rows("hour")
    judged = [row for row in rows if not row["n_clock_revised"]]
    assert [row for row in judged if not row["n_good_lo"] <= row["n_true"] <= row["n_good_hi"]] == []
    kind = Fault.parse(fault).kind
    assert (kind is FaultKind.CLOCK_REVISED) == (expected.totals()["hour"]["n_clock_revised"] > 0)
    assert (kind is FaultKind.CLOCK_UNKNOWN) == (expected.totals()["hour"]["n_clock_unknown"] > 0)
    assert any(row["n_good_lo"] < row["n_good_hi"] for row in rows)


def test_a_clock_that_is_set_is_seen_in_the_exchanges_of_both_sides(generate: Generate) -> None:
    expected = generate("clock-step:region=eu,ms=80", **BRIEF)
    steps: dict[tuple[str, str], int] = defaultdict(int)
    for row in expected.rows("clock_hour"):
        steps[row["region"], row["peer"]] += row["steps"]
    assert {pair for pair, number in steps.items() if number} == {
        ("eu", "us"),
        ("us", "eu"),
        ("eu", "ap"),
        ("ap", "eu"),
    }
    assert set(steps.values()) == {0, 1}


def test_a_cut_link_delays_deliveries_and_loses_probes(generate: Generate) -> None:
    expected = generate("link-cut:region=us,peer=eu,at=60,for=20")
    totals = expected.totals()["avail_minute"]
    # Due in its seconds 0 to 15: the last of them comes 5 s and its way later.
    assert totals["probes_late"] == 2 * 16
    slow = [row for row in expected.rows("hour") if row["lat_max_us"] > 15_000_000]
    assert {(row["origin"], row["dest"]) for row in slow if row["topic"] == "orders-0"} == {("us", "eu"), ("eu", "us")}
    assert anomalies(expected) == {}


def test_a_region_that_is_down_serves_nobody_and_its_consumers_come_back(generate: Generate) -> None:
    expected = generate("region-outage:region=ap,at=60,for=30")
    probes = expected.rows("avail_minute")
    # The last five of the outage are judged by others as lost, by ap itself not at all.
    lost = {(row["origin"], row["dest"]) for row in probes if row["probes_lost"]}
    assert lost == {("ap", "us"), ("ap", "eu"), ("us", "ap"), ("eu", "ap"), ("ap", "ap")} & lost
    assert ("ap", "us") in lost
    failed = [row for row in expected.rows("requests_minute") if row["server_error"] > 10]
    assert {(row["region"], row["source"]) for row in failed} == {("ap", "gateway")}
    sessions = {row["session_epoch"] for row in rows_of(expected, TraceKind.DELIVERY) if row["dest_region"] == "ap"}
    assert len(sessions) == 2 * 8  # one before and one behind it, of every stream
    assert anomalies(expected) == {}


def test_a_region_that_cannot_publish_is_refused_not_lost(generate: Generate) -> None:
    totals = generate("publish-refused:region=us,at=60,for=10").totals()["avail_minute"]
    assert (totals["probes_refused"], totals["probes_lost"]) == (3 * 10, 0)


@pytest.mark.parametrize("kind", first(2, ["missing-file", "corrupt-file", "torn-file", "empty-file", "wrong-schema"]))
def test_rows_of_a_file_that_cannot_be_read_are_expected_nowhere(generate: Generate, kind: str) -> None:
    clean, broken = generate(**THREE_FILES), generate(f"{kind}:region=eu,rows=latency_hist,at=30", **THREE_FILES)
    assert broken.files["broken"] == {kind: 1}
    for region in ("us", "ap"):
        assert [row for row in broken.rows("hour") if row["dest"] == region] == [
            row for row in clean.rows("hour") if row["dest"] == region
        ]
    gone = clean.totals()["hour"]["n"] - broken.totals()["hour"]["n"]
    assert 0 < gone < clean.totals()["hour"]["n"] / 3
    inputs = broken.totals()["inputs_hour"]
    assert inputs["quarantined_files"] == (kind != "missing-file")
    assert inputs["missing_rows"] > 0
    assert broken.rows("integrity_hour") == clean.rows("integrity_hour")


def test_late_files_are_in_a_later_hour_and_change_no_figure(generate: Generate) -> None:
    clean, late = generate(**THREE_FILES), generate("late-traces:region=us,at=5,for=10", **THREE_FILES)
    folders = {path.parts[-3] for path in late.traces.rglob("*.parquet") if path.parts[-2] == "region=us"}
    assert folders == {"hour=09", "hour=10"}
    assert len(list(late.traces.rglob("hour=10/region=us/*"))) > len(list(clean.traces.rglob("hour=10/region=us/*")))
    assert {name: rows for name, rows in late.tables.items() if name != "inputs_hour"} == {
        name: rows for name, rows in clean.tables.items() if name != "inputs_hour"
    }


def test_dropped_rows_are_said_by_their_writer(generate: Generate) -> None:
    expected = generate("dropped-rows:region=us,rows=outcome,count=5,at=30", **THREE_FILES)
    inputs = expected.totals()["inputs_hour"]
    assert (inputs["dropped_rows"], inputs["missing_rows"]) == (5, 5)


def test_a_silent_region_leaves_its_writers_silent(generate: Generate) -> None:
    expected = generate("silent-region:region=eu,at=120,for=60", brokers=2)  # from 10:00 on
    silent = [row for row in expected.rows("inputs_hour") if row["silent_writers"]]
    assert {row["region"] for row in silent} == {"eu"}
    assert {"eu/2001", "eu/2002"} <= {writer for row in silent for writer in row["silent_writers"]}
    assert {row["kind"] for row in silent} == {kind.value for kind in TraceKind}


def test_the_expected_file_says_what_was_returned(generate: Generate) -> None:
    expected = generate("gap", **BRIEF)
    read = Expected.read(expected.traces.parent / EXPECTED_NAME)
    assert (read.tables, read.injected, read.files, read.made_with, read.traces) == (
        expected.tables, expected.injected, expected.files, expected.made_with, expected.traces
    )  # fmt: skip


def test_rows_decide_the_length(generate: Generate) -> None:
    expected = generate(rows=9_000, rate_per_s=1_000)
    assert expected.made_with["seconds"] == 30
    assert expected.files["delivery_rows"] == pytest.approx(9_000, rel=0.1)


def test_a_directory_with_traces_is_not_written_over(generate: Generate) -> None:
    expected = generate(seconds=1)
    with pytest.raises(UsageError, match="exists already"):
        run_generate(GenerateRequest(out=expected.traces.parent, start=START, seconds=1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flood", "unknown fault 'flood'; known: gap, duplicate"),
        ("gap:size=3", "'size=3' is none of region=..., count=..., at=..."),
        ("gap:count=0", "count=0 is no whole number from 1 to 1000"),
        ("link-cut:for=soon", "for=soon is no whole number"),
        ("torn-file:rows=logs", "rows=logs is none of delivery"),
    ],
)
def test_a_wrong_fault_says_what_is_known(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace(".", r"\.")):
        Fault.parse(text)


@pytest.mark.parametrize(
    ("values", "faults", "message"),
    [
        ({"seconds": 0}, (), "--seconds must be from 1 to"),
        ({"regions": ("us", "us")}, (), "names a region twice"),
        ({"regions": ("US",)}, (), "'US' is no name of a region"),
        ({"regions": ("us",)}, ("link-cut",), "needs two regions"),
        ({}, ("gap:region=mars",), "'mars' is none of the regions"),
        ({"topics": 1}, ("rebalance",), "at least 2 topics"),
        ({}, ("dropped-rows:rows=ledger",), "rows of ledger are never dropped"),
        ({"start": START.replace(tzinfo=None)}, (), "--start must be a whole second"),
    ],
)
def test_a_world_that_cannot_be_is_refused(
    generate: Generate, values: dict[str, Any], faults: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        generate(*faults, **values)


@in_one_test("kind", FaultKind)
def test_a_fault_is_written_as_it_is_read(kind: FaultKind) -> None:
    values = ",".join(f"{name}={default}" for name, default in FAULTS[kind].items() if default)
    assert str(Fault.parse(f"{kind.value}:{values}" if values else kind.value)) == kind.value
    if "region" in FAULTS[kind]:
        assert str(Fault.parse(f"{kind.value}:region=eu")) == f"{kind.value}:region=eu"


def test_the_page_of_the_generator_names_every_fault() -> None:
    page = Path(__file__).parents[2] / "docs" / "sla" / "generate.md"
    rows = [line.split("|")[1] for line in page.read_text().splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`([a-z-]+)`", " ".join(rows))) == sorted(kind.value for kind in FaultKind)


def test_buckets_of_whole_arrays_are_those_of_the_sdk() -> None:
    values = {0, 1, *(2**k + d for k in range(1, 31) for d in (-1, 0, 1))}
    values |= {int(2 ** (b / 32)) + d for b in range(1, 1_000) for d in (0, 1)}
    array = np.array(sorted(values), dtype=np.int64)
    assert bucket_indexes(array).tolist() == [bucket_index(value) for value in array.tolist()]


_RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair))))


@given(_RANGES, st.integers(0, 40), st.integers(0, 60))
def test_a_set_of_ranges_is_a_set(ranges: list[tuple[int, int]], first: int, end: int) -> None:
    numbers = {number for low, high in ranges for number in range(low, high)}
    found = IntervalSet(ranges)
    assert {number for low, high in found for number in range(low, high)} == numbers
    assert found.size == len(numbers)
    assert all(high < low for (_, high), (low, _) in zip(list(found), list(found)[1:], strict=False))
    wanted = set(range(first, end))
    assert {number for low, high in found.within(first, end) for number in range(low, high)} == numbers & wanted
    assert {number for low, high in found.without(first, end) for number in range(low, high)} == wanted - numbers
    assert size(found.within(first, end)) == len(numbers & wanted)
