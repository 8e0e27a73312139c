"""The roll-up job over files written as brokers write them, against the definitions counted record by record."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from georelay.trace.files import TraceFileMetadata, TraceFileName, partition_path
from georelay.trace.kinds import TraceKind
from georelay.trace.schema import SCHEMAS
from sla.jobs.rollup import RollupResult, hours_of, roll_up
from sla.jobs.verify import VerifyRequest, run_verify
from sla.rollup_files_core import own_files
from sla.rollups import HourAction, RollupStore
from sla.sources.layout import Period
from sla.tables import HOUR_S, RollupTable

T0 = 1_700_000_000 - 1_700_000_000 % HOUR_S
S = 10**9
SETTLE_S = 900
LATER_S = T0 + 1_000 * HOUR_S
INTEGRITY = (
    "sessions", "delivered", "dup_flagged", "dup_unflagged", "gaps", "gap_records", "healed_records", "lost",
    "unexplained", "aborted", "expired", "order_violations", "pending",
)  # fmt: skip


class Writer:
    """Writes trace files of one broker, with running row numbers."""

    def __init__(self, directory: Path, region: str = "eu", broker: int = 2001) -> None:
        self.directory = directory
        self.region = region
        self.broker = broker
        self._next: dict[TraceKind, int] = {}

    def write(self, kind: TraceKind, rows: Sequence[dict[str, Any]], *, hour_s: int) -> Path:
        """Write one file into the folder of an hour."""
        first = self._next.get(kind, 0)
        self._next[kind] = first + len(rows)
        metadata = TraceFileMetadata(
            kind=kind, writer=f"{self.region}/{self.broker}", boot_id="b0", first_row_seq=first,
            last_row_seq=first + len(rows) - 1, rows=len(rows), dropped=0, hist_grid=5,
        )  # fmt: skip
        folder = self.directory / partition_path(self.region, hour_s * S)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / str(TraceFileName(kind=kind, broker=self.broker, boot_id="b0", sequence=first))
        table = pa.Table.from_pylist(list(rows), schema=SCHEMAS[kind]).replace_schema_metadata(metadata.encode())
        pq.write_table(table, path, compression="zstd", write_page_checksum=True)
        return path


def ledger_row(kind: str, at_s: float, first: int, end: int, **changes: Any) -> dict[str, Any]:
    at_ns = int((T0 + at_s) * S)
    return {
        "kind": kind, "region": "us" if kind == "commit" else "eu", "broker": "2001", "origin": "", "topic": "orders",
        "partition": 0, "epoch": 1, "group": None, "from_offset": first, "to_offset": end, "first_ns": at_ns,
        "last_ns": at_ns, "attempt": 1, "session_epoch": 1, "deliver_seq": 0,
    } | changes  # fmt: skip


def roll(spark: Any, traces: Path, rollups: Path, *, now_s: float = LATER_S, **options: Any) -> RollupResult:
    files = run_verify(VerifyRequest(traces=traces, hours_after=24))
    hours = options.pop("hours", None) or hours_of(Period(), files)
    return roll_up(spark, files, RollupStore.open(rollups), hours, settle_s=SETTLE_S, now_s=now_s, **options)


def rows_of(rollups: Path, table: RollupTable) -> list[dict[str, Any]]:
    """Return the rows of a table, hour by hour, from the files that the manifests of the hours name."""
    found = []
    for run in RollupStore.open(rollups).runs():
        for path in own_files(run, table.value):
            found += pq.ParquetFile(rollups / path).read().to_pylist()
    return found


# --- the definitions, record by record


@dataclass
class Unit:
    """What a unit was handed."""

    reach: int | None = None
    by_session: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    session_end: dict[tuple[str, int], int] = field(default_factory=dict)

    def has(self, offset: int) -> bool:
        return any(offset in seen for seen in self.by_session.values())


def unit_name(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["group"],) if row["group"] else ("", row["broker"], row["session_epoch"])


def judged(rows: list[dict[str, Any]]) -> dict[tuple[int, str], dict[str, int]]:
    """Return `integrity_hour` of one topic by (hour, group), from ledger rows in any order."""

    def hour_of(row: dict[str, Any]) -> int:
        second = row["first_ns"] // S
        return int(second - second % HOUR_S)

    deliveries = [row for row in rows if row["kind"] == "delivered"]
    latest: dict[tuple[Any, ...], int] = {}
    for row in sorted(deliveries, key=lambda row: (hour_of(row), row["deliver_seq"])):
        moment = (hour_of(row), row["broker"], row["session_epoch"], row["group"])
        latest[moment] = max(latest.get(moment, 0), row["first_ns"])
        row["order"] = (hour_of(row), latest[moment], row["broker"], row["session_epoch"], row["deliver_seq"])
    units: dict[tuple[Any, ...], Unit] = {}
    facts: dict[tuple[int, str], dict[str, int]] = {}
    sessions: dict[tuple[int, str], set[tuple[str, int]]] = {}
    reaches: dict[tuple[int, str], int] = {}
    gaps: list[tuple[tuple[int, str], tuple[Any, ...], int, int]] = []
    for row in sorted(deliveries, key=lambda row: row["order"]):
        group = row["group"] or ""
        session = (row["broker"], row["session_epoch"])
        key = (hour_of(row), group)
        fact = facts.setdefault(key, dict.fromkeys(INTEGRITY, 0))
        sessions.setdefault(key, set()).add(session)
        name = unit_name(row)
        unit = units.setdefault(name, Unit())
        if unit.reach is not None and row["from_offset"] > unit.reach:
            fact["gaps"] += 1
            fact["gap_records"] += row["from_offset"] - unit.reach
            gaps.append((key, name, unit.reach, row["from_offset"]))
        own = unit.by_session.setdefault(session, set())
        end = unit.session_end.get(session, 0)
        fresh = []
        for offset in range(row["from_offset"], row["to_offset"]):
            fact["delivered"] += 1
            if unit.has(offset):
                is_flagged = row["attempt"] > 1 or offset not in own
                fact["dup_flagged" if is_flagged else "dup_unflagged"] += 1
                continue
            fresh.append(offset)
            if row["attempt"] == 1 and offset < end:
                fact["order_violations"] += 1
        own.update(range(row["from_offset"], row["to_offset"]))
        unit.session_end[session] = max(end, row["to_offset"])
        unit.reach = max(unit.reach or 0, row["to_offset"])
        reaches[key] = max(reaches.get(key, 0), unit.reach)
    for (hour_s, group), owner, start, stop in gaps:
        rest = set(range(start, stop))
        fact = facts[hour_s, group]
        of_owner = [row for row in deliveries if owner == unit_name(row)]
        for column, found, hours_before in (
            ("healed_records", of_owner, 1_000),
            ("aborted", [row for row in rows if row["kind"] == "aborted"], 1),
            ("expired", [row for row in rows if row["kind"] == "expired"], 1),
            ("lost", [row for row in rows if row["kind"] in ("commit", "replicated")], 1),
        ):
            low_ns, high_ns = (hour_s - hours_before * HOUR_S) * S, (hour_s + HOUR_S + SETTLE_S) * S
            for row in found:
                if low_ns <= row["first_ns"] < high_ns:
                    named = rest & set(range(row["from_offset"], row["to_offset"]))
                    fact[column] += len(named)
                    rest -= named
        fact["unexplained"] += len(rest)
    for key, fact in facts.items():
        fact["sessions"] = len(sessions[key])
        known = [
            row["to_offset"]
            for row in rows
            if row["kind"] in ("commit", "replicated") and row["first_ns"] < (key[0] + HOUR_S) * S
        ]
        fact["pending"] = max(0, max(known, default=0) - reaches[key])
    return facts


def random_ledger(rng: random.Random, *, hours: int) -> list[dict[str, Any]]:
    """Return sessions with every fault over some hours, and what was committed, aborted and expired meanwhile."""
    rows = []
    for hour in range(hours):
        for kind, region in (("commit", "us"), ("replicated", "eu"), ("aborted", "us"), ("expired", "eu")):
            for _ in range({"commit": 6, "replicated": 2}.get(kind, 1)):
                first = rng.randrange(hour * 30, hour * 30 + 60)
                at_s = hour * HOUR_S + rng.randrange(HOUR_S)
                rows.append(ledger_row(kind, at_s, first, first + rng.randrange(1, 15), region=region))
    for number in range(14):
        group = rng.choice([None, None, "g"])
        at_s, offset = rng.randrange(hours * HOUR_S), rng.randrange(60)
        broker = rng.choice(["2001", "2002"])
        for sequence in range(rng.randrange(1, 12)):
            size = rng.randrange(1, 12)
            rows.append(
                ledger_row(
                    "delivered",
                    at_s,
                    offset,
                    offset + size,
                    broker=broker,
                    group=group,
                    session_epoch=number,
                    deliver_seq=sequence,
                    attempt=rng.choice([1, 1, 1, 2]),
                )
            )
            offset = max(0, offset + size + rng.choice([0, 0, 0, 0, 7, -9, -25]))
            at_s += rng.choice([0, 1, 60, 900, 2_000]) - (rng.random() < 0.1)
            if not 0 <= at_s < hours * HOUR_S:
                break
    return rows


def write_ledger(directory: Path, rows: list[dict[str, Any]]) -> None:
    writer = Writer(directory)
    by_hour: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_hour.setdefault(row["first_ns"] // S // HOUR_S * HOUR_S, []).append(row)
    for hour_s, of_hour in sorted(by_hour.items()):
        writer.write(TraceKind.LEDGER, of_hour, hour_s=hour_s)


def found_in(rollups: Path) -> dict[tuple[str, int, str], dict[str, int]]:
    """Return `integrity_hour` by (topic, hour, group)."""
    return {
        (row["topic"], row["ts_s"], row["group"]): {name: row[name] for name in INTEGRITY}
        for row in rows_of(rollups, RollupTable.INTEGRITY_HOUR)
    }


@pytest.mark.slow
def test_random_faults_are_counted_as_record_by_record_however_their_hours_are_batched(
    spark: Any, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = []
    expected: dict[tuple[str, int, str], dict[str, int]] = {}
    for seed in range(24):
        of_topic = [row | {"topic": f"t{seed}"} for row in random_ledger(random.Random(seed), hours=2)]
        rows += of_topic
        facts = judged([dict(row) for row in of_topic])
        expected |= {(f"t{seed}", hour_s, group): fact for (hour_s, group), fact in facts.items()}
    for column in INTEGRITY:
        for hour_s in (T0, T0 + HOUR_S):
            found = sum(fact[column] for key, fact in expected.items() if key[1] == hour_s)
            assert found > 0, f"no {column} in one of the hours: the example shows nothing"
    write_ledger(tmp_path / "traces", rows)
    whole = roll(spark, tmp_path / "traces", tmp_path / "whole")
    assert [run.action for run in whole.hours] == [HourAction.BUILT] * 2
    assert found_in(tmp_path / "whole") == expected
    for hour in range(2):
        roll(spark, tmp_path / "traces", tmp_path / "parts", hours=[T0 + hour * HOUR_S])
    for table in RollupTable:
        assert rows_of(tmp_path / "whole", table) == rows_of(tmp_path / "parts", table), table


def hist_row(second: int, n: int, **changes: Any) -> dict[str, Any]:
    return {
        "second": T0 + second, "origin": "us", "dest": "eu", "topic": "orders", "group": "", "grid": 5, "n": n,
        "n_good": n, "lat_sum_us": 5_000 * n, "lat_max_us": 5_100, "hist": [{"b": 393, "n": n}], "stage": "total",
        "n_good_lo": n, "n_good_hi": n, "clock_offset_us": 0, "clock_err_us": 0,
    } | changes  # fmt: skip


def test_an_hour_is_built_once_and_again_when_late_rows_come_and_never_from_less(spark: Any, tmp_path: Path) -> None:
    traces, rollups = tmp_path / "traces", tmp_path / "rollups"
    writer = Writer(traces)
    first = writer.write(TraceKind.LATENCY_HIST, [hist_row(5, 100), hist_row(70, 1)], hour_s=T0)
    early = roll(spark, traces, rollups, now_s=T0 + HOUR_S).hours[0]
    assert (early.action, early.revision, early.is_final, early.is_revised) == (HourAction.BUILT, 1, False, False)
    # The settle time is over: only the manifest says so.
    final = roll(spark, traces, rollups).hours[0]
    assert (final.action, final.revision, final.is_final, final.is_revised) == (HourAction.CURRENT, 1, True, False)
    # A link was cut for five hours: what it delivered late counts in the second of publish.
    writer.write(TraceKind.LATENCY_HIST, [hist_row(70, 50, n_good=0, n_good_lo=0)], hour_s=T0 + 5 * HOUR_S)
    late = roll(spark, traces, rollups, hours=[T0]).hours[0]
    assert (late.action, late.revision, late.is_revised) == (HourAction.BUILT, 2, True)
    assert dict(late.rows_read)["latency_hist"] == 3
    minutes = [(row["ts_s"] - T0, row["n"], row["n_good"]) for row in rows_of(rollups, RollupTable.MINUTE)]
    (hour,) = rows_of(rollups, RollupTable.HOUR)
    assert minutes == [(0, 100, 100), (60, 51, 1)]
    assert (hour["n"], hour["n_good"], hour["hist"]) == (151, 101, [{"b": 393, "n": 151}])
    # Retention deletes the traces: what is known of them stays, whatever else comes.
    first.unlink()
    kept = roll(spark, traces, rollups, hours=[T0], is_forced=True).hours[0]
    assert (kept.action, kept.revision) == (HourAction.KEPT, 2)
    assert sum(row["n"] for row in rows_of(rollups, RollupTable.HOUR)) == 151


@pytest.mark.slow
def test_an_hour_without_rows_between_the_rows_of_a_file_is_built_and_empty(spark: Any, tmp_path: Path) -> None:
    traces, rollups = tmp_path / "traces", tmp_path / "rollups"
    Writer(traces).write(TraceKind.LATENCY_HIST, [hist_row(5, 1), hist_row(2 * HOUR_S, 1)], hour_s=T0 + HOUR_S)
    (empty,) = roll(spark, traces, rollups, hours=[T0 + HOUR_S]).hours
    assert (empty.action, empty.files, dict(empty.rows_read)["latency_hist"]) == (HourAction.BUILT, 1, 2)
    assert rows_of(rollups, RollupTable.MINUTE) == rows_of(rollups, RollupTable.HOUR) == []
