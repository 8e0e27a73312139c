"""The tables of some consecutive hours as DataFrames: which transform gets which rows. Nothing is written here."""

from __future__ import annotations

import functools
from functools import reduce
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from georelay.trace.kinds import TraceKind
from sla.session import QUICK_BYTES_MAX
from sla.sources.manifest import TraceFiles
from sla.sources.reading import check_row_count, read
from sla.tables import DDL, HOUR_S, RollupTable
from sla.transforms.accounts import accounts_by_hour
from sla.transforms.availability import probes_by_minute, requests_by_minute
from sla.transforms.clock import clock_by_hour, clock_fits, revised, with_peer_region
from sla.transforms.integrity import integrity_by_hour
from sla.transforms.latency import latency_by_minute
from sla.transforms.moments import NS_PER_S, hour_of, second_of
from sla.transforms.positions import QUIET_S, SCOPE_MIRROR, carry_of, deliveries_of, live, marked, with_until
from sla.transforms.repeats import slot_widths
from sla.transforms.streams import mirrors_by_hour, streams_by_hour
from sla.transforms.throughput import throughput_by_minute

LEDGER_COLUMNS: Final = (
    "kind", "region", "broker", "origin", "topic", "partition", "epoch", "group", "from_offset", "to_offset",
    "first_ns", "attempt", "session_epoch", "deliver_seq", "records",
)  # fmt: skip
FILES_READ_AGAIN_MAX: Final = 16


class HourTables:
    """The tables of consecutive hours.

    Args:
        files: every file that holds rows of them (sla.jobs.rollup_plan.HourInputs).
        writers: who writes traces, as `us/1001`.
        hours: their starts, ascending, seconds since 1970.
        settle_s: see RollupRequest.
        work: folder for what several tables need. It is written and read back, not cached: a plan on top of a cached
            one is as long as both, and Spark looks at all of it with each step.
    """

    def __init__(
        self,
        spark: SparkSession,
        files: TraceFiles,
        writers: list[str],
        hours: list[int],
        *,
        settle_s: int,
        work: Path,
    ) -> None:
        self._spark = spark
        self._files = files
        self._writers = writers
        self._hours = hours
        self._settle_s = settle_s
        self._work = work
        self._is_small = files.size_bytes <= QUICK_BYTES_MAX
        self._end_s = hours[-1] + HOUR_S

    def _read(self, kind: TraceKind) -> DataFrame:
        rows = read(self._spark, self._files, kind, LEDGER_COLUMNS if kind is TraceKind.LEDGER else None)
        return self._narrow(rows)

    def _narrow(self, rows: DataFrame) -> DataFrame:
        # Few rows are one task from the file to the table: shuffles would take longer than all else.
        return rows.coalesce(1) if self._is_small else rows

    def _kept(self, rows: DataFrame, name: str) -> DataFrame:
        """Return the same rows, computed once."""
        path = str(self._work / name)
        rows.write.parquet(path)
        return self._narrow(self._spark.read.schema(rows.schema).parquet(path))

    @functools.cached_property
    def _ledger(self) -> DataFrame:
        rows = self._read(TraceKind.LEDGER).where("to_offset > from_offset OR records > 0")  # no other is of records
        rows = _between(rows, self._hours[0] - HOUR_S, self._end_s + self._settle_s)
        # It is read ten times. Of small files, opening them is most of the work: then they are read once.
        is_scattered = len(self._files.paths(TraceKind.LEDGER)) > FILES_READ_AGAIN_MAX
        return self._kept(rows, "ledger") if is_scattered else rows

    def cold_carry(self) -> DataFrame | None:
        """Return what the rows of the hour before say of the consumers' positions at its end; None: nothing."""
        start_s = self._hours[0]
        times = [file.time_min_s for file in self._files.of(TraceKind.LEDGER).good]
        if all(time_s is not None and time_s >= start_s for time_s in times):
            return None
        ledger = _between(self._ledger, start_s - HOUR_S, start_s)
        return carry_of(marked(deliveries_of(ledger), None), ledger, None, [start_s - HOUR_S])

    def built(self, carry: DataFrame | None) -> dict[RollupTable, DataFrame]:
        """Return the tables that have input, `hour` and `inputs_hour` excepted.

        Args:
            carry: `sessions_hour` of the hour before the first; None: it hands nothing on.
        """
        frames: dict[RollupTable, DataFrame] = {}
        fits = None
        if self._has(TraceKind.CLOCK):
            clock = with_peer_region(self._rows(TraceKind.CLOCK, "t4_ns", HOUR_S), self._writers)
            fits = self._kept(clock_fits(clock.where(hour_of(second_of("t4_ns")).isin(self._hours))), "fits")
            frames[RollupTable.CLOCK_HOUR] = clock_by_hour(clock, fits, self._hours)
        if self._has(TraceKind.LATENCY_HIST):
            rows = self._rows(TraceKind.LATENCY_HIST, "second")
            frames[RollupTable.MINUTE] = latency_by_minute(revised(rows, fits))
        if self._has(TraceKind.PROBE):
            frames[RollupTable.AVAIL_MINUTE] = probes_by_minute(self._rows(TraceKind.PROBE, "seq"))
        if self._has(TraceKind.OUTCOME):
            frames[RollupTable.REQUESTS_MINUTE] = requests_by_minute(self._rows(TraceKind.OUTCOME, "second"))
        if carry is not None or self._has(TraceKind.LEDGER):
            frames |= self._ledger_tables(carry)
        return frames

    def _ledger_tables(self, carry: DataFrame | None) -> dict[RollupTable, DataFrame]:
        hours, settle_s = self._hours, self._settle_s
        ledger = self._ledger
        deliveries = deliveries_of(ledger)
        inside = deliveries.where(F.col("hour_s").isin(hours))
        carry, alive, has_groups = self._carry(carry, inside)
        positions = self._kept(marked(inside, alive), "positions")
        of_group, is_apart = _first_look(positions)
        frames = {
            RollupTable.SESSIONS_HOUR: carry_of(positions, ledger, carry, hours, has_groups=has_groups or of_group)
        }
        if not self._has(TraceKind.LEDGER):
            return frames
        later = deliveries.where(F.col("hour_s") >= self._end_s)
        widths = self._kept(slot_widths(positions, later), "widths") if is_apart else None
        mirrors = None if carry is None else carry.where(F.col("scope") == SCOPE_MIRROR)
        return frames | {
            RollupTable.INTEGRITY_HOUR: integrity_by_hour(
                positions, later, ledger, alive, hours, settle_s=settle_s, widths=widths
            ),
            RollupTable.ACCOUNT_HOUR: accounts_by_hour(ledger, hours),
            RollupTable.STREAM_HOUR: streams_by_hour(ledger, hours),
            RollupTable.MIRROR_HOUR: mirrors_by_hour(ledger, mirrors, hours, settle_s=settle_s),
            RollupTable.THROUGHPUT_MINUTE: throughput_by_minute(ledger, carry, hours),
        }

    def _carry(self, carry: DataFrame | None, inside: DataFrame) -> tuple[DataFrame | None, DataFrame | None, bool]:
        """Return the carry, what of it counts for who comes back in these hours, and whether a group is in it."""
        if carry is None:
            return None, None, False
        carry = self._narrow(carry)
        found = carry.agg(F.max(F.col("group") != ""), F.min("last_ns")).first()
        assert found is not None  # an aggregate without keys has one row
        if found[1] is None:
            return None, None, False
        has_groups = bool(found[0])
        if found[1] >= (self._hours[-1] - QUIET_S) * NS_PER_S:
            return carry, carry, has_groups  # nobody can have been quiet for so long
        carry = self._kept(with_until(carry, inside), "carry")
        return carry, live(carry), has_groups

    def _has(self, kind: TraceKind) -> bool:
        return bool(self._files.paths(kind))

    def _rows(self, kind: TraceKind, column: str, before_s: int = 0) -> DataFrame:
        rows = self._read(kind)
        units = NS_PER_S if column.endswith("_ns") else 1
        low, high = (self._hours[0] - before_s) * units, self._end_s * units
        return rows.where((F.col(column) >= low) & (F.col(column) < high))


def _between(ledger: DataFrame, start_s: int, end_s: int) -> DataFrame:
    return ledger.where((F.col("first_ns") >= start_s * NS_PER_S) & (F.col("first_ns") < end_s * NS_PER_S))


def check_rows(spark: SparkSession, files: TraceFiles) -> None:
    """Refuse more or fewer rows than were verified.

    Raises:
        JobFailed: the numbers differ for a kind.
    """
    kinds = [kind for kind in TraceKind if files.paths(kind)]
    if not kinds:
        return
    counted = [read(spark, files, kind).select(F.lit(kind.value).alias("kind")) for kind in kinds]
    found = {row["kind"]: row["count"] for row in reduce(DataFrame.unionAll, counted).groupBy("kind").count().collect()}
    for kind in kinds:
        check_row_count(files, kind, found.get(kind.value, 0))


def _first_look(positions: DataFrame) -> tuple[bool, bool]:
    """Return whether any group reads, and whether any delivery does not begin where its unit stood."""
    found = positions.agg(F.max(F.col("group") != ""), F.max(F.col("from_offset") != F.col("reach"))).first()
    assert found is not None  # an aggregate without keys has one row
    return bool(found[0]), bool(found[1])


def write_table(rows: DataFrame, table: RollupTable, folder: Path) -> None:
    """Write a table below `folder`, one file per hour, sorted by its columns: equal rows make equal files."""
    schema = StructType.fromDDL(DDL[table])
    moment = F.timestamp_seconds("ts_s")
    day, hour = F.date_format(moment, "yyyy-MM-dd"), F.date_format(moment, "HH")
    columns = [F.col(field.name).cast(field.dataType).alias(field.name) for field in schema]
    order = [field.name for field in schema if field.name != "hist"]
    (
        rows.select(*columns)
        .withColumns({"date": day, "hour": hour})
        .repartition("date", "hour")
        .sortWithinPartitions("date", "hour", *order)
        .write.partitionBy("date", "hour")
        .parquet(str(folder / table.value))
    )
