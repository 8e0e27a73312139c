"""Sums of a day: of a table whose rows add up, one row per key, made when the day's hours are merged.

Rule 1: the columns are those of the table, `ts_s` is the start of the day; integers only, so a day says exactly what
        its hours or minutes say together. Ranges of offsets add up to their union.
Rule 2: a day's sums stand in its manifest like a table of their own, with the files that they were made of: those of
        its hours. An hour that names others takes the day's sums back (sla.rollup_files_core.whole_days).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sla.day_ranges import RANGES, united
from sla.errors import JobFailed
from sla.sources.location import Location
from sla.tables import STREAM, RollupTable

_HIST: Final = "hist"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySums:
    """What is summed of a table.

    Args:
        name: of the folder, and in manifests.
        of: the table.
        keys, sums, maxima: columns; others are left out, and null for who reads them.
        has_hist: histograms are summed bucket by bucket.
        has_ranges: ranges of offsets are united.
    """

    name: str
    of: RollupTable
    keys: tuple[str, ...]
    sums: tuple[str, ...]
    maxima: tuple[str, ...] = ()
    has_hist: bool = False
    has_ranges: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns but `ts_s`."""
        lists = [_HIST] * self.has_hist + [RANGES] * self.has_ranges
        return (*self.keys, *self.sums, *self.maxima, *lists)


DAY_SUMS: Final = {
    sums.of: sums
    for sums in (
        DaySums(
            name="latency_day",
            of=RollupTable.HOUR,
            keys=("origin", "dest", "topic", "group", "stage"),
            sums=("n", "n_good", "n_good_lo", "n_good_hi", "n_clock_unknown", "n_clock_revised", "lat_sum_us"),
            maxima=("lat_max_us", "clock_err_max_us"),
            has_hist=True,
        ),
        DaySums(
            name="avail_day",
            of=RollupTable.AVAIL_MINUTE,
            keys=("origin", "dest"),
            sums=("probes", "probes_ok", "probes_late", "probes_lost", "probes_refused"),
        ),
        DaySums(
            name="requests_day",
            of=RollupTable.REQUESTS_MINUTE,
            keys=("region", "source", "op"),
            sums=("attempts", "ok", "client_error", "server_error", "timeout", "offered"),
            maxima=("writers",),
        ),
        DaySums(
            name="throughput_day",
            of=RollupTable.THROUGHPUT_MINUTE,
            keys=("dest",),
            sums=("delivered", "offered"),
        ),
        DaySums(
            name="account_day",
            of=RollupTable.ACCOUNT_HOUR,
            keys=("kind", *STREAM, "region", "group"),
            sums=("records",),
            has_ranges=True,
        ),
    )
}


def write_sums(location: Location, sums: DaySums, *, day_s: int, source: str, target: str) -> None:
    """Write the sums of a day.

    Args:
        location: of the roll-ups.
        day_s: start of the day, seconds since 1970.
        source: path below it of the day's file of the table.
        target: path below it that nothing stands at.

    Raises:
        OSError: the file cannot be read, or this one not be written.
        JobFailed: what was written does not read back.
    """
    found: Any = None
    for rows in _row_groups(location.path(source), sums):
        added = summed(rows, sums)
        found = added if found is None else summed(pa.concat_tables([found, added]), sums)
    day = pa.repeat(pa.scalar(day_s, pa.int64()), found.num_rows)
    found = found.add_column(0, "ts_s", day)
    with location.writing(target) as path:
        pq.write_table(found, path, compression="zstd", write_page_checksum=True)
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if not file.read().equals(found):
                raise JobFailed(f"{target} does not read back as it was written; the disk or memory is at fault")


def _row_groups(path: str, sums: DaySums) -> Iterator[Any]:
    columns = list(sums.columns)
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for number in range(max(1, file.num_row_groups)):
            if file.num_row_groups:
                yield file.read_row_group(number, columns=columns).replace_schema_metadata()
            else:
                yield file.read(columns=columns).replace_schema_metadata()


def summed(rows: Any, sums: DaySums) -> Any:
    """Return one row per keys, in their order, of an Arrow table with the columns of `sums`; lists ascending."""
    keys = [(name, "ascending") for name in sums.keys]
    aggregates = [(name, "sum") for name in sums.sums] + [(name, "max") for name in sums.maxima]
    found = rows.group_by(sums.keys).aggregate(aggregates).sort_by(keys)
    found = found.rename_columns([*sums.keys, *sums.sums, *sums.maxima])
    if sums.has_ranges:
        found = found.append_column(pa.field(RANGES, rows.schema.field(RANGES).type), united(rows, sums.keys))
    if not sums.has_hist:
        return found
    hist = rows[_HIST].combine_chunks()
    buckets = pc.list_flatten(hist)
    of_bucket = rows.select(list(sums.keys)).take(pc.list_parent_indices(hist))
    of_bucket = of_bucket.append_column("b", pc.struct_field(buckets, "b")).append_column(
        "in_bucket", pc.struct_field(buckets, "n")
    )
    # A row without a bucket of every key: none is left out, and each key's number of buckets is known.
    nothing = found.select(list(sums.keys))
    for name in ("b", "in_bucket"):
        kind = of_bucket.schema.field(name).type
        nothing = nothing.append_column(name, pa.nulls(nothing.num_rows, kind))
    merged = (
        pa.concat_tables([of_bucket, nothing])
        .group_by([*sums.keys, "b"])
        .aggregate([("in_bucket", "sum")])
        .sort_by([*keys, ("b", "ascending")])
    )
    counts = merged.group_by(sums.keys).aggregate([("b", "count")]).sort_by(keys)  # groups come in any order
    ends = pc.cumulative_sum(pc.cast(counts["b_count"], pa.int32())).combine_chunks()  # nulls do not count
    merged = merged.filter(pc.is_valid(merged["b"]))
    kind = hist.type
    values = pa.StructArray.from_arrays(
        [merged["b"].combine_chunks(), merged["in_bucket_sum"].combine_chunks()],
        fields=[kind.value_type.field("b"), kind.value_type.field("n")],
    )
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return found.append_column(pa.field(_HIST, kind), pa.ListArray.from_arrays(offsets, values, type=kind))
