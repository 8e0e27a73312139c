"""A year of roll-ups from one hour of them, to measure its report: `docs/sla/rollups.md` says what stands where.

Every hour before the first one is a copy of a whole one, moved in time, merged into days as roll-ups merge them, and of
traces that are gone. Files are as many and as large as those of a year; only what they say repeats itself. Sums of days
are added by the first job that looks at these days, as they are to roll-ups of before there were any.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

HOUR_S = 3_600
HOURS_PER_DAY = 24
ROW_GROUP_ROWS = 65_536


def stretch(rollups: Path, days: int) -> tuple[int, int]:
    """Add whole days before the first day of roll-ups; return when they begin and end, seconds since 1970.

    Raises:
        RuntimeError: there are not three hours, so none of them is surely a whole one.
    """
    runs = sorted((json.loads(path.read_bytes()) for path in rollups.glob("_runs/*/*/_run.json")), key=_hour_s)
    if len(runs) < 3:
        raise RuntimeError(f"{rollups} has {len(runs)} hours; one in the middle of three is a whole one")
    model = runs[len(runs) // 2]
    day_s = HOURS_PER_DAY * HOUR_S
    first_day_s = runs[0]["hour_s"] - runs[0]["hour_s"] % day_s
    tables = {
        name: pa.concat_tables(_rows(rollups / name / _folder(model["hour_s"]), parts))
        for name, parts in model["parts"].items()
        if parts
    }
    # As manifests were before they had a checksum: such ones are still read.
    model = {name: value for name, value in model.items() if name != "crc32"} | {"manifest_version": 1}
    for number in range(days, 0, -1):
        _write_day(rollups, model, tables, first_day_s - number * day_s)
    return first_day_s - days * day_s, first_day_s


def _hour_s(run: dict[str, Any]) -> int:
    return int(run["hour_s"])


def _folder(hour_s: int) -> str:
    return f"{datetime.datetime.fromtimestamp(hour_s, tz=datetime.UTC):date=%Y-%m-%d/hour=%H}"


def _rows(folder: Path, parts: list[str]) -> Iterator[Any]:
    for name in parts:
        yield pq.ParquetFile(folder / name).read().replace_schema_metadata()


def _write_day(rollups: Path, model: dict[str, Any], tables: dict[str, Any], day_s: int) -> None:
    date = _folder(day_s).partition("/")[0]
    hours = [day_s + hour * HOUR_S for hour in range(HOURS_PER_DAY)]
    files = {}
    for name, rows in tables.items():
        at = rows.schema.get_field_index("ts_s")
        moved = [
            rows.set_column(at, "ts_s", pc.add(rows["ts_s"], pa.scalar(hour_s - model["hour_s"], pa.int64())))
            for hour_s in hours
        ]
        target = rollups / name / date / "day-0.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        options = {"compression": "zstd", "write_page_checksum": True, "row_group_size": ROW_GROUP_ROWS}
        pq.write_table(pa.concat_tables(moved), target, **options)
        files[name] = {"name": target.name, "holds": {str(hour_s): model["parts"][name] for hour_s in hours}}
    for hour_s in hours:
        path = rollups / "_runs" / _folder(hour_s) / "_run.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(model | {"hour_s": hour_s, "is_final": True}))
    document = {"manifest_version": 1, "day_s": day_s, "files": files}
    (rollups / "_runs" / date / "_day.json").write_text(json.dumps(document))
