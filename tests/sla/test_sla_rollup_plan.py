"""Which files an hour is made of, when it is built again, and what stands on disk in between. No Spark."""

from __future__ import annotations

import dataclasses
import datetime
import fcntl
import json
import re
from pathlib import Path
from typing import Any

import pytest

from georelay.trace.files import TraceFileMetadata, TraceFileName
from georelay.trace.kinds import TraceKind
from sla.errors import JobFailed, UsageError
from sla.jobs.rollup_plan import EARLY_HOURS, LATE_HOURS, SPAN_S_MAX, HourInputs, built, check_length, decide
from sla.rollups import HourAction, HourRun, RollupStore
from sla.sources.layout import FilePlace, Period, hour_folder
from sla.sources.location import Location
from sla.sources.manifest import BadFile, GoodFile, TraceFiles
from sla.tables import HOUR_S, RollupTable

T0 = 500_000 * HOUR_S
SETTLE_S = 900


def place(kind: TraceKind, hour_s: int, first: int) -> FilePlace:
    name = TraceFileName(kind=kind, broker=1001, boot_id="b", sequence=first)
    return FilePlace(hour_s=hour_s, region="us", name=name, relative=f"{hour_folder(hour_s)}/region=us/{name}")


def good(
    kind: TraceKind, hour: int, first: int = 0, *, rows: int = 10, times: tuple[int, int] | None = None, digest: int = 1
) -> GoodFile:
    """Return a file in the folder of an hour (from T0) with rows of [first, last] seconds (from T0)."""
    metadata = TraceFileMetadata(
        kind=kind, writer="us/1001", boot_id="b", first_row_seq=first, last_row_seq=first + rows - 1, rows=rows,
        dropped=0, hist_grid=5,
    )  # fmt: skip
    low, high = (None, None) if times is None else (T0 + times[0], T0 + times[1])
    return GoodFile(
        place=place(kind, T0 + hour * HOUR_S, first), metadata=metadata, size_bytes=1, digest=digest, time_min_s=low,
        time_max_s=high,
    )  # fmt: skip


def inputs(*files: GoodFile, bad: tuple[BadFile, ...] = (), settle_s: int = SETTLE_S) -> HourInputs:
    location = Location.open("/nowhere")
    return HourInputs(TraceFiles(location=location, good=files, bad=bad), settle_s=settle_s)


def hours_of(file: GoodFile) -> list[int]:
    """Return the hours (from T0) that look at a file."""
    made = inputs(file)
    return [hour for hour in range(-40, 40) if made.of(T0 + hour * HOUR_S).files.good]


@pytest.mark.parametrize(
    ("file", "hours"),
    [
        (good(TraceKind.LATENCY_HIST, 0, times=(0, 3_599)), [0]),
        (good(TraceKind.LATENCY_HIST, 1, times=(3_599, 3_600)), [0, 1]),
        (good(TraceKind.LATENCY_HIST, 5, times=(0, 10)), [0]),
        (good(TraceKind.PROBE, 0, times=(-1, 0)), [-1, 0]),
        (good(TraceKind.LEDGER, 0, times=(900, 3_599)), [0, 1]),
        (good(TraceKind.LEDGER, 0, times=(899, 899)), [-1, 0, 1]),
        (good(TraceKind.CLOCK, 0, times=(0, 10)), [0, 1]),
        (good(TraceKind.LATENCY_HIST, 0), [-1, 0, 1]),
        (good(TraceKind.LATENCY_HIST, 0, times=(-(10**9), -(10**9) + 5)), []),
        (good(TraceKind.DELIVERY, 0, times=(0, 10)), []),
    ],
    ids=["one hour", "two hours", "late", "late probe", "ledger", "settled", "clock", "no times", "1970", "sampled"],
)
def test_an_hour_is_made_of_every_file_with_rows_of_its_time(file: GoodFile, hours: list[int]) -> None:
    assert hours_of(file) == hours


def test_a_clock_that_is_set_to_another_year_makes_no_hour_long_to_look_for() -> None:
    file = good(TraceKind.LATENCY_HIST, 0, times=(-(10**9), 10**9))
    assert hours_of(file) == list(range(-24, 3))


def test_an_hour_is_made_of_the_same_files_whatever_period_is_asked_for() -> None:
    """Files every five minutes, open over the turn of each hour, and late ones as late as they may be."""
    files = [
        good(kind, second // HOUR_S, index * 10, times=(second, second + 299), digest=index + 2)
        for kind in (TraceKind.LEDGER, TraceKind.CLOCK, TraceKind.LATENCY_HIST)
        for index, second in enumerate(range(-4 * HOUR_S - 120, 30 * HOUR_S, 300))
    ]
    files += [good(TraceKind.PROBE, hour, hour * 10, times=(0, 5), digest=hour) for hour in range(30)]
    period = Period(start=datetime.datetime.fromtimestamp(T0 + 1_800, tz=datetime.UTC),
                    end=datetime.datetime.fromtimestamp(T0 + HOUR_S - 60, tz=datetime.UTC))  # fmt: skip
    listed = [
        file
        for file in files
        if period.may_hold(
            datetime.datetime.fromtimestamp(file.hour_s, tz=datetime.UTC),
            hours_before=EARLY_HOURS,
            hours_after=LATE_HOURS,
        )
    ]
    narrow, wide = inputs(*listed).of(T0), inputs(*files).of(T0)
    assert (narrow.hash, narrow.row_ranges()) == (wide.hash, wide.row_ranges())


@pytest.mark.parametrize(
    ("times", "outside"),
    [
        ((0, 5), None),
        ((-LATE_HOURS * HOUR_S, 3 * HOUR_S - 1), None),
        ((-LATE_HOURS * HOUR_S - 1, -LATE_HOURS * HOUR_S - 1), (T0 - LATE_HOURS * HOUR_S, T0 + 3 * HOUR_S)),
        ((0, 3 * HOUR_S), (T0 - LATE_HOURS * HOUR_S, T0 + 3 * HOUR_S)),
        (None, None),
    ],
    ids=["own hour", "as late and as early as may be", "later", "ahead", "unknown"],
)
def test_a_file_with_rows_that_no_hour_looks_for_is_named(
    times: tuple[int, int] | None, outside: tuple[int, int] | None
) -> None:
    file = good(TraceKind.LATENCY_HIST, 0, times=times)
    assert inputs(file).beyond() == ([] if outside is None else [(file, *outside)])


def test_compaction_changes_neither_the_choice_nor_the_hash_of_an_hour() -> None:
    apart = [
        good(TraceKind.LATENCY_HIST, 1, 0, times=(3_000, 3_599), digest=3),
        good(TraceKind.LATENCY_HIST, 1, 10, times=(3_600, 3_700), digest=4),
    ]
    whole = good(TraceKind.LATENCY_HIST, 1, 0, rows=20, times=(3_000, 3_700), digest=7)
    for hour in (0, 1):
        before, after = inputs(*apart).of(T0 + hour * HOUR_S), inputs(whole).of(T0 + hour * HOUR_S)
        assert (before.hash, before.row_ranges()) == (after.hash, after.row_ranges())
        assert before.row_ranges() == {"latency_hist/1001/b": [[0, 19]]}


def test_the_hash_of_an_hour_knows_its_rows_its_bad_files_and_the_settle_time() -> None:
    file = good(TraceKind.PROBE, 0, times=(0, 5))
    bad = BadFile(place=place(TraceKind.PROBE, T0 - HOUR_S, 90), size_bytes=3, reason="torn")
    far = BadFile(place=place(TraceKind.PROBE, T0 - 2 * HOUR_S, 90), size_bytes=3, reason="torn")
    plain = inputs(file).of(T0).hash
    assert inputs(file, bad=(far,)).of(T0).hash == plain
    others = [
        inputs(dataclasses.replace(file, digest=2)).of(T0),
        inputs(file, bad=(bad,)).of(T0),
        inputs(file, settle_s=60).of(T0),
    ]
    assert len({plain, *(other.hash for other in others)}) == 4


def run(**changes: Any) -> HourRun:
    values: dict[str, Any] = {
        "hour_s": T0, "revision": 0, "is_final": True, "is_revised": False, "input_hash": "i", "carry_hash": "c",
        "carry_out_hash": "o", "rows_read": {"ledger": 10}, "files": 1, "quarantined": 0, "missing_rows": 0,
        "settle_s": SETTLE_S, "row_ranges": {"ledger/1001/b": [[0, 9]]}, "built_at": "2027-01-15T08:00:00+00:00",
        "code_version": "v1",
    }  # fmt: skip
    return HourRun(**(values | changes))


MORE = {"ledger/1001/b": [[0, 20]], "probe/1001/b": [[0, 1]]}
LESS = {"ledger/1001/b": [[0, 4], [6, 30]], "probe/1001/b": [[0, 1]]}


@pytest.mark.parametrize(
    ("wanted", "found", "is_forced", "action"),
    [
        (run(), None, False, HourAction.BUILT),
        (run(), run(), False, HourAction.CURRENT),
        (run(), run(), True, HourAction.BUILT),
        (run(input_hash="j", row_ranges=MORE), run(), False, HourAction.BUILT),
        (run(input_hash="j", row_ranges=LESS), run(), False, HourAction.KEPT),
        (run(input_hash="j", row_ranges={}), run(), True, HourAction.KEPT),
        (run(carry_hash="d"), run(), False, HourAction.BUILT),
        (run(carry_hash="d", row_ranges={}, input_hash="j"), run(), False, HourAction.KEPT),
        (run(code_version="v2"), run(), False, HourAction.BUILT),
        (run(built_at="later", revision=7), run(), False, HourAction.CURRENT),
    ],
    ids=["new", "same", "forced", "more", "less", "gone", "carry", "carry, gone", "code", "time"],
)
def test_an_hour_is_built_when_something_changed_and_never_from_less(
    wanted: HourRun, found: HourRun | None, is_forced: bool, action: HourAction
) -> None:
    assert decide(wanted, found, is_forced=is_forced).action is action


def test_an_unchanged_hour_becomes_final_in_its_manifest_only() -> None:
    early = run(is_final=False)
    assert decide(run(), early, is_forced=False).is_final_now
    assert not decide(early, early, is_forced=False).is_final_now
    assert not decide(run(), run(), is_forced=False).is_final_now


def test_rows_of_a_kept_hour_that_it_was_not_made_of_are_counted_by_kind_and_region() -> None:
    old = inputs(good(TraceKind.LEDGER, 0, 0, times=(100, 200))).of(T0)
    found = run(row_ranges=old.row_ranges())
    assert old.rows_not_of(found) == {}
    later = inputs(
        good(TraceKind.LEDGER, 0, 10, rows=5, times=(300, 400)),  # of the hour, by the same broker
        good(TraceKind.LEDGER, 0, 20, rows=7, times=(3_700, 3_800)),  # of the hour behind it
        good(TraceKind.LATENCY_HIST, 1, 0, rows=3, times=(3_599, 3_600)),
        good(TraceKind.PROBE, 0, 0, rows=2),  # it does not say when
        good(TraceKind.LEDGER, -1, 0, rows=9, times=(-90, -80)),
    ).of(T0)
    assert decide(run(row_ranges=later.row_ranges(), input_hash="j"), found, is_forced=False).action is HourAction.KEPT
    assert later.rows_not_of(found) == {
        (TraceKind.LEDGER, "us"): 5, (TraceKind.LATENCY_HIST, "us"): 3, (TraceKind.PROBE, "us"): 2,
    }  # fmt: skip


def test_rows_that_an_hour_has_in_part_are_counted_in_part() -> None:
    made = inputs(good(TraceKind.LEDGER, 0, 0, rows=30, times=(100, 200))).of(T0)
    found = run(row_ranges={"ledger/1001/b": [[-5, 4], [10, 12], [28, 40]], "ledger/1002/b": [[0, 99]]})
    assert made.rows_not_of(found) == {(TraceKind.LEDGER, "us"): 30 - 5 - 3 - 2}


@pytest.mark.parametrize(
    ("wanted", "found", "revision", "is_revised"),
    [
        (run(), None, 1, False),
        (run(input_hash="j"), run(revision=1, is_final=False), 2, False),
        (run(input_hash="j"), run(revision=1), 2, True),
        (run(), run(revision=2, is_revised=True, code_version="v0"), 3, True),
        (run(), run(revision=1, code_version="v0"), 2, False),
        (run(carry_hash="d"), run(revision=1), 2, True),
        (run(carry_hash="d"), run(revision=1, carry_hash=""), 2, False),
        (run(input_hash="j", settle_s=300), run(revision=1), 2, False),
        (run(input_hash="j", carry_hash="d", code_version="v2"), run(revision=1), 2, False),
    ],
    ids=[
        "first", "not final", "late rows", "once revised", "code", "carry", "hour before came to be known",
        "settle time", "code that takes other rows",
    ],
)  # fmt: skip
def test_an_hour_is_revised_when_what_happened_in_it_is_told_otherwise_after_it_was_final(
    wanted: HourRun, found: HourRun | None, revision: int, is_revised: bool
) -> None:
    made = built(wanted, found)
    assert (made.revision, made.is_revised, made.action) == (revision, is_revised, HourAction.BUILT)


@pytest.mark.parametrize("changes", [{"settle_s": 300}, {"code_version": "v2"}, {}])
def test_rows_that_came_late_revise_an_hour_whatever_else_changed(changes: dict[str, Any]) -> None:
    late = run(input_hash="j", **changes)
    assert built(late, run(revision=1), has_new_rows=True).is_revised
    assert not built(late, run(revision=1, is_final=False), has_new_rows=True).is_revised


@pytest.mark.parametrize(
    ("hours", "folders", "known", "expected"),
    [
        (range(-3, 4), (0, 1), set(), [0, 1]),
        (range(-3, 4), (0, 2), set(), [0, 1, 2]),
        (range(-3, 4), (0, 0), {-2, 3}, [-2, 0, 3]),
        (range(-3, 4), (9, 10), set(), []),
    ],
    ids=["only those of the files", "and between them", "and those that are known", "none"],
)
def test_hours_that_nothing_is_known_of_are_not_rolled_up(
    hours: range, folders: tuple[int, int], known: set[int], expected: list[int]
) -> None:
    made = inputs(*(good(TraceKind.PROBE, hour, 10 * index, times=(hour * HOUR_S, hour * HOUR_S + 5)) for index, hour in enumerate(folders)))  # fmt: skip  # noqa: E501
    at = [T0 + hour * HOUR_S for hour in hours]
    found = [hour_s for hour_s in at if made.is_known(hour_s) or (hour_s - T0) // HOUR_S in known]
    assert [(hour_s - T0) // HOUR_S for hour_s in found] == expected


def test_late_rows_make_the_hours_before_the_first_folder_known() -> None:
    made = inputs(good(TraceKind.PROBE, 0, times=(-5 * HOUR_S, -5 * HOUR_S + 1)))
    assert [hour for hour in range(-9, 9) if made.is_known(T0 + hour * HOUR_S)] == [-5, 0]


def test_a_period_of_more_than_ten_years_is_refused_with_what_to_do() -> None:
    check_length(T0, T0 + SPAN_S_MAX)
    with pytest.raises(UsageError, match=r"2027.* to 2037.*: 10 years at most; .*--from and --to"):
        check_length(T0, T0 + SPAN_S_MAX + 1)


# --- the store


def stage(store: RollupStore, name: str) -> Path:
    staging = store.staging()
    folder = staging / RollupTable.MINUTE.value / hour_folder(T0)
    folder.mkdir(parents=True)
    (folder / name).write_bytes(b"rows")
    return staging


def test_an_hour_is_replaced_whole_and_counts_with_its_manifest_only(tmp_path: Path) -> None:
    store = RollupStore.open(tmp_path)
    (tmp_path / ".staging-of-a-killed-job").mkdir()
    with store.writing():
        store.install(stage(store, "part-1.parquet"), run(revision=1))
        store.install(stage(store, "part-2.parquet"), run(revision=2))
        killed = stage(store, "part-3.parquet")
        store.write_run(run(hour_s=T0 + HOUR_S))
    assert store.run(T0) == run(revision=2)
    assert store.snapshot().reading(RollupTable.MINUTE).hour_files == (f"minute/{hour_folder(T0)}/part-2.parquet",)
    assert [found.hour_s for found in store.runs()] == [T0, T0 + HOUR_S]
    assert [found.hour_s for found in store.runs(T0 + 1, T0 + HOUR_S)] == [T0]
    assert [found.hour_s for found in store.runs(T0 + HOUR_S, None)] == [T0 + HOUR_S]
    with store.writing():
        assert not killed.exists()
    manifest = tmp_path / "_runs" / hour_folder(T0) / "_run.json"
    manifest.unlink()
    assert (store.run(T0), len(store.runs())) == (None, 1)


def test_a_job_that_is_killed_between_two_tables_leaves_the_hour_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RollupStore.open(tmp_path)
    with store.writing():
        store.install(stage(store, "part-1.parquet"), run(revision=1))
        staging = stage(store, "part-2.parquet")
        monkeypatch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.install(staging, run(revision=2))
    found = store.run(T0)
    assert (found, found and found.parts_of("minute")) == (run(revision=1), ("part-1.parquet",))


@pytest.mark.parametrize(
    "raw",
    [b"", b"{}", b"[]", b"{", json.dumps({"manifest_version": 4}).encode(), run().encode().replace(b"revision", b"r")],
)
def test_a_manifest_that_cannot_be_read_is_an_error_that_names_it_and_says_what_to_do(
    tmp_path: Path, raw: bytes
) -> None:
    store = RollupStore.open(tmp_path)
    store.write_run(run())
    path = tmp_path / "_runs" / hour_folder(T0) / "_run.json"
    path.write_bytes(raw)
    what_to_do = "use that version" if b": 4" in raw else "restore it from a copy, or delete it"
    with pytest.raises(JobFailed, match=re.escape(str(path))) as failed:
        store.run(T0)
    assert what_to_do in str(failed.value)
    path.unlink()
    path.mkdir()  # what the disk does not give is no hour that was never rolled up
    with pytest.raises(JobFailed, match="cannot be read"):
        store.run(T0)


def test_a_second_job_waits_and_says_so_and_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sla.rollups.LOCK_WAIT_S_MAX", 0.01)
    monkeypatch.setattr("sla.rollups._LOCK_POLL_S", 0.02)
    store, steps = RollupStore.open(tmp_path), list[str]()
    (tmp_path / "_runs").mkdir()
    with (tmp_path / "_runs" / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(JobFailed, match="another job writes to"), store.writing(steps.append):
            pytest.fail("two jobs write at the same time")
    assert steps == ["waiting for another job that writes roll-ups"]
    with store.writing(steps.append):
        assert len(steps) == 1


def test_roll_ups_in_an_object_store_are_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match="must be a directory"):
        RollupStore.open("s3://bucket/rollups?region=nowhere-1")
