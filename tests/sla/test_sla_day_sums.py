"""Sums of a day are those of its hours, exactly; they count while the hours name the files that they were made of."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from sla.day_sums import DAY_SUMS, DaySums, summed, write_sums
from sla.rollup_files_core import DAY_S, KEEP_S, whole_days
from sla.rollup_manifests import DayRun
from sla.rollups import RollupStore
from sla.sources.layout import hour_folder
from sla.sources.location import Location
from sla.tables import HOUR_S, RollupTable
from tests.sla.rollup_days import DAY0_S, LATER_S, run

LATENCY, PROBES = DAY_SUMS[RollupTable.HOUR], DAY_SUMS[RollupTable.AVAIL_MINUTE]
HIST = pa.list_(pa.struct([("b", pa.int32()), ("n", pa.int64())]))
RANGES = pa.list_(pa.struct([("f", pa.int64()), ("t", pa.int64())]))
OFFSETS = st.integers(0, 12) | st.integers(2**63 - 9, 2**63 - 1)
HISTS = st.none() | st.dictionaries(st.integers(0, 5), st.integers(1, 2**40), max_size=4)


def schema_of(sums: DaySums) -> pa.Schema:
    columns = [("ts_s", pa.int64()), *((name, pa.string()) for name in sums.keys)]
    columns += [(name, pa.int64()) for name in (*sums.sums, *sums.maxima)]
    return pa.schema([*columns, *[("hist", HIST)] * sums.has_hist, *[("ranges", RANGES)] * sums.has_ranges])


@st.composite
def rows_of(draw: st.DrawFn, sums: DaySums) -> list[dict[str, Any]]:
    row: dict[str, st.SearchStrategy[Any]] = {name: st.sampled_from(["a", "b", ""]) for name in sums.keys}
    row |= {name: st.none() | st.integers(0, 2**40) for name in (*sums.sums, *sums.maxima)}
    row |= {"ts_s": st.integers(DAY0_S, DAY0_S + DAY_S - 1)}
    if sums.has_hist:
        row["hist"] = HISTS.map(lambda hist: None if hist is None else [{"b": b, "n": hist[b]} for b in sorted(hist)])
    if sums.has_ranges:
        pairs = st.tuples(OFFSETS, OFFSETS).map(lambda pair: {"f": min(pair), "t": max(pair)})
        row["ranges"] = st.none() | st.lists(pairs, max_size=4)
    found: list[dict[str, Any]] = draw(st.lists(st.fixed_dictionaries(row), max_size=12))
    return found


def added(rows: Iterable[dict[str, Any]], sums: DaySums) -> list[dict[str, Any]]:
    """Return the sums, one by one."""
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in sums.keys), []).append(row)
    days = []
    for key, mine in sorted(found.items()):
        day: dict[str, Any] = {"ts_s": DAY0_S, **dict(zip(sums.keys, key, strict=True))}
        for names, total in ((sums.sums, sum), (sums.maxima, max)):
            for name in names:
                known = [row[name] for row in mine if row[name] is not None]
                day[name] = total(known) if known else None
        if sums.has_hist:
            hist: dict[int, int] = {}
            for bucket in (bucket for row in mine for bucket in row["hist"] or ()):
                hist[bucket["b"]] = hist.get(bucket["b"], 0) + bucket["n"]
            day["hist"] = [{"b": b, "n": hist[b]} for b in sorted(hist)]
        if sums.has_ranges:
            day["ranges"] = united(each for row in mine for each in row["ranges"] or ())
        days.append(day)
    return days


def united(ranges: Iterable[dict[str, int]]) -> list[dict[str, int]]:
    """Return the ranges that cover the same offsets, one by one; those that touch are one."""
    found: list[dict[str, int]] = []
    for each in sorted(ranges, key=lambda each: (each["f"], each["t"])):
        if found and each["f"] <= found[-1]["t"]:
            found[-1] = {"f": found[-1]["f"], "t": max(found[-1]["t"], each["t"])}
        else:
            found.append(each)
    return found


@given(st.data(), st.sampled_from(list(DAY_SUMS.values())), st.integers(1, 5))
def test_the_sums_of_a_day_are_those_of_its_rows_however_they_are_stored(
    tmp_path_factory: Any, data: st.DataObject, sums: DaySums, group_rows: int
) -> None:
    rows = data.draw(rows_of(sums))
    root = tmp_path_factory.mktemp("rollups")
    table = pa.Table.from_pylist(rows, schema=schema_of(sums))
    pq.write_table(table, root / "day.parquet", row_group_size=group_rows)
    write_sums(Location.open(root), sums, day_s=DAY0_S, source="day.parquet", target="sums.parquet")
    found = pq.read_table(root / "sums.parquet")
    assert found.to_pylist() == added(rows, sums)
    assert found.schema.field("ts_s").type == pa.int64()
    assert summed(table, sums).num_rows == found.num_rows


def install(store: RollupStore, hour: int, probes: int) -> None:
    hour_s = DAY0_S + hour * HOUR_S
    staging = store.staging()
    folder = staging / PROBES.of.value / hour_folder(hour_s)
    folder.mkdir(parents=True)
    row = {"ts_s": hour_s, "origin": "us", "dest": "eu", **dict.fromkeys(PROBES.sums, probes)}
    rows = pa.Table.from_pylist([row, row | {"ts_s": hour_s + 60}], schema=schema_of(PROBES))
    pq.write_table(rows, folder / f"part-{uuid.uuid4().hex}.parquet")
    store.install(staging, run(hour))
    shutil.rmtree(staging)


def sums_of(store: RollupStore, start_s: int = DAY0_S, end_s: int = DAY0_S + DAY_S) -> int | None:
    """Return the probes that a reader of sums sees of the day; None: it reads hours or minutes."""
    snapshot = store.snapshot()
    runs = snapshot.runs(start_s, end_s)
    found = whole_days(PROBES.name, PROBES.of.value, runs, snapshot._days, start_s=start_s, end_s=end_s)
    return sum(pq.read_table(store.root / path)["probes"][0].as_py() for path in found.values()) if found else None


def job(store: RollupStore, hours: dict[int, int], *, now_s: float = LATER_S) -> None:
    with store.writing(hours=[DAY0_S + hour * HOUR_S for hour in hours] or [DAY0_S], clock_s=lambda: now_s):
        for hour, probes in hours.items():
            install(store, hour, probes)
        store.merge(DAY0_S, now_s=now_s)


def test_sums_count_from_the_merge_until_an_hour_is_made_again(tmp_path: Path) -> None:
    store = RollupStore.open(tmp_path)
    job(store, {1: 10, 2: 20}, now_s=LATER_S - 1)
    assert sums_of(store) is None
    job(store, {})
    assert sums_of(store) == 60
    with store.writing(clock_s=lambda: LATER_S):
        install(store, 2, 300)
    assert sums_of(store) is None  # the hour's rows are no longer in the day
    job(store, {})
    assert sums_of(store) == 620
    with store.writing(clock_s=lambda: LATER_S):
        install(store, 3, 1)  # of before nothing was known
    assert sums_of(store) is None
    job(store, {})
    (tmp_path / "_runs" / hour_folder(DAY0_S + HOUR_S) / "_run.json").unlink()
    assert sums_of(store) is None  # an hour that does not count
    job(store, {})
    assert sums_of(store) == 602


def test_a_part_of_a_day_is_not_read_from_its_sums(tmp_path: Path) -> None:
    store = RollupStore.open(tmp_path)
    job(store, {0: 10, 23: 20})
    assert sums_of(store, DAY0_S - DAY_S, DAY0_S + 2 * DAY_S) == 60
    assert sums_of(store, DAY0_S + 1) is None
    assert sums_of(store, DAY0_S, DAY0_S + DAY_S - 1) is None


def test_a_day_that_was_merged_before_there_were_sums_gets_them_at_the_next_job(tmp_path: Path) -> None:
    store = RollupStore.open(tmp_path)
    job(store, {1: 10, 2: 20})
    day = store.day(DAY0_S)
    assert day is not None
    files = {name: file for name, file in day.files.items() if name != PROBES.name}
    (path,) = tmp_path.glob("_runs/*/_day.json")
    path.write_bytes(DayRun(day_s=DAY0_S, files=files).encode())
    assert sums_of(store) is None
    job(store, {})
    assert sums_of(store) == 60
    written = path.read_bytes()
    job(store, {})
    assert path.read_bytes() == written, "there is nothing to do"


def test_sums_that_no_day_names_any_more_are_deleted_after_a_while(tmp_path: Path) -> None:
    store = RollupStore.open(tmp_path)
    job(store, {1: 10, 2: 20})
    (old,) = tmp_path.glob(f"{PROBES.name}/*/day-*.parquet")
    job(store, {2: 30})
    for step in range(2):
        assert old.exists()
        job(store, {}, now_s=LATER_S + step * KEEP_S)
    assert not old.exists()
    assert sums_of(store) == 80


def test_a_job_reads_the_manifest_of_an_hour_once(tmp_path: Path, monkeypatch: Any) -> None:
    store = RollupStore.open(tmp_path)
    job(store, {1: 10, 2: 20})
    store = RollupStore.open(tmp_path)  # of another process
    decoded: list[int] = []
    decode = type(run(0)).decode

    def counted(raw: bytes) -> Any:
        found = decode(raw)
        decoded.append(found.hour_s)
        return found

    monkeypatch.setattr(type(run(0)), "decode", counted)
    with store.writing(hours=[DAY0_S], clock_s=lambda: LATER_S):
        for hour in (1, 2, 1):
            assert store.run(DAY0_S + hour * HOUR_S) is not None
        store.merge(DAY0_S, now_s=LATER_S)
        assert sorted(decoded) == [DAY0_S + HOUR_S, DAY0_S + 2 * HOUR_S]
        store.write_run(run(1, revision=7, parts={}))
        found = store.run(DAY0_S + HOUR_S)
        assert found is not None and found.revision == 7, "what is read next is what stands"
    RollupStore.open(tmp_path).write_run(run(1, revision=8, parts={}))
    later = store.run(DAY0_S + HOUR_S)
    assert later is not None and later.revision == 8, "another job may have written since"
