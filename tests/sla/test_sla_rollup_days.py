"""Hours become days and are taken back, with a crash at every step: a reader has every hour once. No Spark."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sla.errors import JobFailed
from sla.rollup_files_core import CLOSED_AFTER_S, DAY_S, KEEP_S, merges, needed, reading, sweep
from sla.rollup_manifests import DayFile, DayRun, UnknownManifest
from sla.rollups import HourRun, RollupStore
from sla.sources.layout import date_folder
from sla.tables import HOUR_S
from tests.sla.rollup_days import (
    DAY0_S,
    LATER_S,
    OTHER,
    TABLE,
    install,
    made_as_before,
    rows_of,
    run,
    seen,
    table_of,
)
from tests.tiers import first

# --- what is decided


def states_of(hour: int) -> list[tuple[HourRun | None, tuple[str, ...] | None]]:
    """Return every state of an hour: its manifest, and what a day says that it holds of it."""
    runs = [None, run(hour, parts={"t": []}), run(hour, parts={"t": ["new"]})]
    return list(itertools.product(runs, [None, ("old",), ("new",)]))


def test_in_every_state_an_hour_is_read_from_its_day_or_from_its_own_files_or_has_no_rows() -> None:
    for early, late, has_day in itertools.product(states_of(0), states_of(1), (True, False)):
        expect_each_hour_once(early, late, has_day=has_day)


def expect_each_hour_once(first: Any, second: Any, *, has_day: bool) -> None:
    runs = [found for found, _ in (first, second) if found is not None]
    holds = {DAY0_S + hour * HOUR_S: held for hour, (_, held) in enumerate((first, second)) if held is not None}
    days = {DAY0_S: DayRun(day_s=DAY0_S, files={"t": DayFile(name="day", holds=holds)})} if has_day and holds else {}
    found = reading("t", runs, days)
    wanted = needed(runs, days, ["t"])
    assert set(found.day_files) | set(found.hour_files) <= wanted
    for hour, (manifest, held) in enumerate((first, second)):
        hour_s = DAY0_S + hour * HOUR_S
        is_counted = bool(found.day_files) and found.low_s <= hour_s < found.high_s and hour_s not in found.absent
        from_day = is_counted and bool(days) and held is not None
        from_own = sum(f"/hour={hour:02}/" in path for path in found.hour_files)
        has_rows = manifest is not None and manifest.parts_of("t") != ()
        assert from_day + from_own == has_rows, (hour, found)
        assert not from_day or held == ("new",), "rows of another revision"


def test_a_day_is_merged_when_nothing_late_can_come_and_again_when_an_hour_was_rolled_up_again() -> None:
    runs = [run(hour, parts={"t": [f"part-{hour}"], "empty": []}) for hour in (3, 5, 7)]
    closed_s = DAY0_S + DAY_S + CLOSED_AFTER_S
    assert merges(DAY0_S, runs, None, ["t", "empty"], now_s=closed_s - 1) == []
    (made,) = merges(DAY0_S, runs, None, ["t", "empty"], now_s=closed_s)
    assert (made.kept_file, made.files) == (
        None,
        tuple(f"t/date=2023-11-14/hour=0{hour}/part-{hour}" for hour in (3, 5, 7)),
    )
    day = DayRun(day_s=DAY0_S, files={"t": DayFile(name="day-1", holds=made.holds)})
    assert merges(DAY0_S, runs, day, ["t", "empty"], now_s=closed_s) == []
    revised = [runs[0], run(5, parts={"t": ["part-9"]}), runs[2]]
    (again,) = merges(DAY0_S, revised, day, ["t", "empty"], now_s=closed_s)
    assert (again.kept_file, again.files) == ("t/date=2023-11-14/day-1", ("t/date=2023-11-14/hour=05/part-9",))
    assert again.kept == {runs[0].hour_s, runs[2].hour_s}
    assert merges(DAY0_S, runs[:1], None, ["t"], now_s=closed_s) == [], "one file is no fewer than one"


def test_what_nobody_needs_stays_for_an_hour_after_it_was_first_seen() -> None:
    first = sweep(["a", "b"], {"gone": 1}, now_s=10_000)
    assert (first.deleted, dict(first.unneeded_since)) == ((), {"a": 10_000, "b": 10_000})
    second = sweep(["a", "b", "c"], first.unneeded_since, now_s=10_000 + KEEP_S - 1)
    assert second.deleted == ()
    third = sweep(["b", "c"], second.unneeded_since, now_s=10_000 + KEEP_S)
    assert (third.deleted, list(third.unneeded_since)) == (("b",), ["c"])
    # A clock that was a year ahead is set right.
    assert sweep(["a"], {"a": 10**9}, now_s=20_000).unneeded_since == {"a": 20_000}


# --- what stands on the disk


def job(store: RollupStore, changes: dict[int, str], *, now_s: float = LATER_S, hours: int = 24) -> None:
    """Do what a roll-up of the first hours of a day does around Spark."""
    with store.writing(hours=[DAY0_S + hour * HOUR_S for hour in range(hours)], clock_s=lambda: now_s):
        for hour, word in changes.items():
            install(store, hour, word)
        store.merge(DAY0_S, now_s=now_s)


def test_a_day_stands_in_one_file_and_a_revised_hour_reopens_it(tmp_path: Path) -> None:
    store = RollupStore.open(tmp_path)
    job(store, dict.fromkeys(range(24), "a"))
    found = store.snapshot().reading(TABLE)
    assert (len(found.day_files), found.hour_files, found.absent) == (1, (), ())
    assert seen(store) == [(hour, "a") for hour in range(24)]
    job(store, {7: "b"}, now_s=LATER_S - 1)  # before the day is closed once more
    found = store.snapshot().reading(TABLE)
    assert (len(found.day_files), len(found.hour_files), found.absent) == (1, 1, (DAY0_S + 7 * HOUR_S,))
    revised = [(hour, "b" if hour == 7 else "a") for hour in range(24)]
    assert seen(store) == revised
    job(store, {})
    found = store.snapshot().reading(TABLE)
    assert (len(found.day_files), found.hour_files, found.absent) == (1, (), ())
    assert seen(store) == revised
    part = store.snapshot().reading(TABLE, DAY0_S + 6 * HOUR_S, DAY0_S + 8 * HOUR_S)
    assert rows_of(store, part) == [(6, "a"), (7, "b")]


def test_files_of_what_was_replaced_stay_for_readers_and_go_with_a_later_job(tmp_path: Path) -> None:
    store = RollupStore.open(tmp_path)
    job(store, {1: "a", 2: "a"}, now_s=DAY0_S)
    early = store.snapshot()
    assert seen(store, early) == [(1, "a"), (2, "a")]
    job(store, {1: "b"})
    merged = store.snapshot()
    assert seen(store, merged) == [(1, "b"), (2, "a")]
    job(store, {2: "c"}, now_s=LATER_S + 1)
    job(store, {}, now_s=LATER_S + KEEP_S)
    assert (seen(store, early), seen(store, merged)) == ([(1, "a"), (2, "a")], [(1, "b"), (2, "a")])
    job(store, {}, now_s=LATER_S + 1 + KEEP_S)
    assert seen(store) == [(1, "b"), (2, "c")]
    job(store, {}, now_s=LATER_S + 1 + 2 * KEEP_S)
    assert len(list(tmp_path.glob("*/date=*/**/*.parquet"))) == 2, "one file per table is left"
    assert not list(tmp_path.glob("*/date=*/hour=*/part-*"))
    assert seen(store) == [(1, "b"), (2, "c")]


def test_hours_whose_manifests_name_no_files_are_read_adopted_and_merged(tmp_path: Path) -> None:
    store = RollupStore.open(tmp_path)
    for hour in range(3):
        made_as_before(store, hour, "a")
    assert seen(store) == [(0, "a"), (1, "a"), (2, "a")]
    before = store.snapshot()
    seen(store, before)
    job(store, {1: "b"}, now_s=DAY0_S)
    assert seen(store) == [(0, "a"), (1, "b"), (2, "a")]
    job(store, {})
    for step in range(3):
        job(store, {}, now_s=LATER_S + step * KEEP_S)
    assert not list(tmp_path.glob("*/date=*/hour=*/part-*"))
    assert seen(store) == [(0, "a"), (1, "b"), (2, "a")]


@pytest.mark.parametrize("name", ["hour=02/_run.json", "_day.json"])
@pytest.mark.parametrize("raw", [b'{"manifest_version": 4}', b"{torn"], ids=["newer", "torn"])
def test_what_an_unreadable_manifest_may_name_is_neither_deleted_nor_passed_over(
    tmp_path: Path, name: str, raw: bytes
) -> None:
    store = RollupStore.open(tmp_path)
    job(store, {1: "a", 2: "a"})
    (path,) = tmp_path.glob(f"_runs/*/{name}")
    good = path.read_bytes()
    path.write_bytes(raw)
    before = set(tmp_path.rglob("*.parquet"))
    for step in range(4):
        now_s = LATER_S + step * KEEP_S
        with pytest.raises(JobFailed, match=re.escape(str(path))):
            job(store, {1: "b"}, now_s=now_s)  # rows of the same day
        with store.writing(clock_s=functools.partial(float, now_s)):  # a job elsewhere
            pass
    assert before <= set(tmp_path.rglob("*.parquet"))
    with pytest.raises(JobFailed, match=re.escape(str(path))):
        store.runs(DAY0_S, DAY0_S + DAY_S)
    assert store.runs(DAY0_S + DAY_S) == []  # other days are read as before
    path.write_bytes(good)
    assert [word for _, word in seen(store)] in (["a", "a"], ["b", "a"])


def test_files_of_a_job_that_was_killed_before_the_first_manifest_of_a_date_go_too(tmp_path: Path) -> None:
    store = RollupStore.open(tmp_path)
    job(store, {1: "a"}, now_s=DAY0_S)
    for path in tmp_path.glob("_runs/date=*/hour=*/_run.json"):
        path.unlink()
        path.parent.rmdir()
        path.parent.parent.rmdir()
    for step, is_there in ((0, True), (1, False)):
        with store.writing(hours=[DAY0_S + HOUR_S], clock_s=functools.partial(float, DAY0_S + step * KEEP_S)):
            assert bool(list(tmp_path.glob("*/date=*/hour=*/part-*"))) == is_there, step


def test_a_column_that_came_later_is_null_in_a_day_of_older_hours(tmp_path: Path) -> None:
    store = RollupStore.open(tmp_path)
    job(store, {1: "a", 2: "a"}, now_s=DAY0_S)
    (path,) = store.hour_path(TABLE, DAY0_S + 2 * HOUR_S).iterdir()
    pq.write_table(table_of(2, "a").append_column("extra", [[1, 2]]), path)
    job(store, {})
    (day,) = store.snapshot().reading(TABLE).day_files
    extras = pq.ParquetFile(tmp_path / day).read()["extra"].to_pylist()
    assert extras == [None, None, 1, 2]


def test_an_hour_that_cannot_be_read_stops_the_merge_and_changes_nothing(tmp_path: Path) -> None:
    store = RollupStore.open(tmp_path)
    job(store, {1: "a", 2: "a"}, now_s=DAY0_S)
    (path,) = store.hour_path(TABLE, DAY0_S + 2 * HOUR_S).iterdir()
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with store.writing(clock_s=lambda: LATER_S), pytest.raises((OSError, pa.ArrowException)):
        store.merge(DAY0_S, now_s=LATER_S)
    path.write_bytes(raw)
    assert seen(store) == [(1, "a"), (2, "a")]
    assert store.day(DAY0_S) is None


def test_a_day_that_does_not_read_back_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RollupStore.open(tmp_path)
    job(store, {1: "a", 2: "a"}, now_s=DAY0_S)
    written = pq.ParquetWriter.write_table

    def forgetful(self: Any, table: Any, **options: Any) -> None:
        written(self, table.slice(1), **options)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", forgetful)
    with store.writing(clock_s=lambda: LATER_S), pytest.raises(JobFailed, match="does not read back"):
        store.merge(DAY0_S, now_s=LATER_S)
    assert not list(tmp_path.rglob("day-*"))
    assert seen(store) == [(1, "a"), (2, "a")]


# --- crashes


class Killed(BaseException):
    """The process ends here."""


STEPS = ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync")


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[str]]]:
    """Return a function that ends the process at its n-th change of the disk: nothing after it is done either."""
    done: list[str] = []
    limit = -1

    def guarded(name: str) -> Callable[..., Any]:
        original = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if limit >= 0:
                if len(done) >= limit:
                    raise Killed
                done.append(name)
            # A step of its own, but nothing that this test could see: the kernel keeps what was written.
            return None if name == "fsync" else original(*arguments, **options)

        return call

    for name in STEPS:
        monkeypatch.setattr(os, name, guarded(name))

    def at(number: int) -> list[str]:
        nonlocal limit
        limit = number
        done.clear()
        return done

    yield at
    limit = -1


short_job = functools.partial(job, hours=3)


class Scenario(NamedTuple):
    """What a job finds, and the job."""

    found: Callable[[RollupStore], None]
    change: Callable[[RollupStore], None]


def two_hours(store: RollupStore) -> None:
    short_job(store, {1: "a", 2: "a"}, now_s=DAY0_S)


def a_day(store: RollupStore) -> None:
    short_job(store, {1: "a", 2: "a"})


def hours_as_before(store: RollupStore) -> None:
    made_as_before(store, 1, "a")
    made_as_before(store, 2, "a")


def what_nobody_needs(store: RollupStore) -> None:
    two_hours(store)
    short_job(store, {2: "b"})
    short_job(store, {}, now_s=LATER_S + 1)


def revise(store: RollupStore) -> None:
    short_job(store, {2: "b"})


SCENARIOS = {
    "first_merge": Scenario(two_hours, lambda store: short_job(store, {})),
    "sweep": Scenario(what_nobody_needs, lambda store: short_job(store, {}, now_s=LATER_S + 1 + KEEP_S)),
    "revised_hour": Scenario(a_day, revise),
    "adopted": Scenario(hours_as_before, revise),
}


@pytest.mark.parametrize("name", first(2, SCENARIOS))
def test_a_job_that_is_killed_at_any_step_leaves_every_hour_once_and_the_next_job_ends_what_it_began(
    tmp_path: Path, killed_at: Callable[[int], list[str]], name: str
) -> None:
    scenario = SCENARIOS[name]
    killed_at(-1)
    before = RollupStore.open(tmp_path / "before")
    scenario.found(before)
    old = seen(before)

    def copied(folder: str) -> RollupStore:
        return RollupStore.open(shutil.copytree(before.root, tmp_path / folder))

    whole = copied("whole")
    steps = killed_at(10**6)
    scenario.change(whole)
    count = len(steps)
    killed_at(-1)
    new = seen(whole)
    assert count > 5
    found = set()
    for number in range(count):
        store = copied(str(number))
        reader = store.snapshot()
        assert seen(store, reader) == old
        killed_at(number)
        with pytest.raises(Killed):
            scenario.change(store)
        killed_at(-1)
        now = seen(store)
        assert now in (old, new), number
        found.add(now == new)
        assert seen(store, reader) == old, "a reader of before lost a file"
        scenario.change(store)
        assert seen(store) == new
        assert len(store.snapshot().reading(TABLE).day_files) == 1
        assert store.snapshot().reading(OTHER).hour_files == ()
    assert old == new or found == {True, False}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"manifest_version": 4, "day_s": 0, "files": {}}',
        b'{"manifest_version": 3, "day_s": 0, "files": {}}',
        b'{"manifest_version": 2, "day_s": 0, "files": {}}',
        b'{"manifest_version": true, "day_s": 0, "files": {}}',
        b'{"manifest_version": 1, "day_s": 0.5, "files": {}}',
        b'{"manifest_version": 1, "day_s": 0, "files": {}, "more": 1}',
        b'{"manifest_version": 1, "day_s": 0, "files": null}',
        b'{"manifest_version": 1, "day_s": 0, "files": {"t": {"name": "../x", "holds": {}}}}',
        b'{"manifest_version": 1, "day_s": 0, "files": {"t": {"name": "x", "holds": {"0": ["a/b"]}}}}',
        b'{"manifest_version": 1, "day_s": 0, "files": {"t": {"name": "x", "holds": {"zero": []}}}}',
    ],
)
def test_a_days_manifest_that_is_none_is_told_from_none(raw: bytes) -> None:
    with pytest.raises(UnknownManifest, match="newer" if b": 4" in raw else "damaged"):
        DayRun.decode(raw)


def test_manifests_keep_their_layout() -> None:
    day = DayRun(day_s=DAY0_S, files={"minute": DayFile(name="day-1.parquet", holds={DAY0_S: ("part-1.parquet",)})})
    earlier = (
        b'{"day_s": 1699920000, "files": {"minute": {"holds": {"1699920000": ["part-1.parquet"]}, '
        b'"name": "day-1.parquet"}}, "manifest_version": 1}\n'
    )
    golden = earlier.replace(b'"manifest_version": 1}', b'"manifest_version": 3, "crc32": 2157605352}')
    second = earlier.replace(b'"manifest_version": 1}', b'"manifest_version": 2, "crc32": 2575384745}')
    assert day.encode() == golden
    assert [DayRun.decode(raw) for raw in (golden, second, earlier)] == [day, day, day]
    hour = run(0, parts={"minute": ["part-1.parquet"]})
    earlier = (
        b'{"manifest_version": 1, "built_at": "2027-01-15T08:00:00+00:00", "carry_hash": "c", "carry_out_hash": "o", '
        b'"code_version": "v1", "files": 1, "hour_s": 1699920000, "input_hash": "i", "is_final": true, '
        b'"is_revised": false, "missing_rows": 0, "parts": {"minute": ["part-1.parquet"]}, "quarantined": 0, '
        b'"revision": 1, "row_ranges": {}, "rows_read": {}, "settle_s": 900}\n'
    )
    second = json.dumps(json.loads(earlier) | {"manifest_version": 2}, sort_keys=True).encode()
    second = second[:-1] + b', "crc32": 2846793459}\n'
    for raw in (hour.encode(), second, earlier):
        found = HourRun.decode(raw)
        assert found == hour and found.parts == hour.parts
    more = {"manifest_version": 3, "missing_ranges": None, "crc32": 2155997889}
    assert json.loads(hour.encode()) == json.loads(earlier) | more


def test_no_bit_that_flips_makes_another_manifest() -> None:
    holds = {DAY0_S: ("part-1.parquet",)}
    day = DayRun(day_s=DAY0_S, files={"minute": DayFile(name="day-1.parquet", holds=holds)})
    hour = run(0, parts={"minute": ["part-1.parquet"]}, row_ranges={"ledger/1/b": [[0, 9]]})
    decoders: tuple[tuple[bytes, Callable[[bytes], object]], ...] = (
        (hour.encode(), HourRun.decode),
        (day.encode(), DayRun.decode),
    )
    for raw, decode in decoders:
        for bit in range(8 * len(raw)):
            flipped = bytearray(raw)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(UnknownManifest):
                decode(bytes(flipped))


@pytest.mark.parametrize(
    "changes",
    [
        {"files": None}, {"files": True}, {"revision": "1"}, {"is_final": 1}, {"row_ranges": None},
        {"row_ranges": {"ledger/1/b": [[0]]}}, {"row_ranges": {"ledger/1/b": None}}, {"rows_read": {"ledger": "9"}},
        {"row_ranges": {"ledger/1/b": [[0, True]]}}, {"row_ranges": {"ledger/1/b": [0, 9]}}, {"settle_s": False},
        {"input_hash": None}, {"parts": {"minute": None}}, {"missing_ranges": {"ledger/eu/1/b": [[0]]}},
        {"missing_ranges": []},
    ],
)  # fmt: skip
def test_a_manifest_without_a_checksum_says_at_least_what_is_of_the_right_type(changes: dict[str, Any]) -> None:
    earlier = json.loads(run(0, parts={}).encode()) | {"manifest_version": 1}
    del earlier["crc32"]
    assert HourRun.decode(json.dumps(earlier).encode()) == run(0, parts={})
    with pytest.raises(UnknownManifest, match="damaged"):
        HourRun.decode(json.dumps(earlier | changes).encode())


def test_a_manifest_in_the_folder_of_another_time_is_damaged(tmp_path: Path) -> None:
    store = RollupStore.open(tmp_path)
    job(store, {1: "a", 2: "a"})
    (hour,) = tmp_path.glob("_runs/date=*/hour=02/_run.json")
    good = hour.read_bytes()
    hour.write_bytes(hour.parent.with_name("hour=01").joinpath("_run.json").read_bytes())
    with pytest.raises(JobFailed, match=f"{re.escape(str(hour))} is damaged: restore it from a copy"):
        store.run(DAY0_S + 2 * HOUR_S)
    hour.write_bytes(good)
    other = tmp_path / "_runs" / date_folder(DAY0_S + DAY_S) / "_day.json"
    other.parent.mkdir()
    other.write_bytes((tmp_path / "_runs" / date_folder(DAY0_S) / "_day.json").read_bytes())
    with pytest.raises(JobFailed, match=f"{re.escape(str(other))} is damaged: restore it from a copy"):
        store.day(DAY0_S + DAY_S)
