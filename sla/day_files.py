"""Writes one table's rows of a day into one file, from the files of its hours.

It is streamed: no more than ROW_GROUP_ROWS and the rows of one hour are in memory. The file is read back and compared
before it is there, for what it was made of is deleted later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sla.errors import JobFailed
from sla.rollup_files_core import Merge
from sla.sources.location import Location
from sla.tables import HOUR_S

ROW_GROUP_ROWS: Final = 65_536


def write_day(location: Location, merge: Merge, target: str) -> None:
    """Write the file of a day.

    Args:
        location: of the roll-ups.
        target: path below it that nothing stands at.

    Raises:
        OSError: a file cannot be read, or this one not be written.
        JobFailed: what was written does not read back.
    """
    paths = [*([] if merge.kept_file is None else [merge.kept_file]), *merge.files]
    # A column that came later is missing in older files, where it is null.
    schema = pa.unify_schemas([_schema(location, path) for path in paths], promote_options="permissive")
    with location.writing(target) as path:
        with pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True) as writer:
            for group in _groups(location, merge, schema):
                writer.write_table(group, row_group_size=max(1, group.num_rows))
        if not _is_same(path, _groups(location, merge, schema)):
            raise JobFailed(f"{target} does not read back as it was written; the disk or memory is at fault")


def _schema(location: Location, path: str) -> Any:
    return pq.read_schema(location.path(path)).remove_metadata()


def _groups(location: Location, merge: Merge, schema: Any) -> Iterator[Any]:
    """Yield tables of ROW_GROUP_ROWS or more, the last one excepted."""
    held: list[Any] = []
    rows = 0
    for table in _tables(location, merge):
        held.append(table)
        rows += table.num_rows
        if rows >= ROW_GROUP_ROWS:
            yield _whole(held, schema)
            held, rows = [], 0
    if rows:
        yield _whole(held, schema)


def _whole(tables: Iterable[Any], schema: Any) -> Any:
    table = pa.concat_tables([schema.empty_table(), *tables], promote_options="permissive")
    return table.select(schema.names).combine_chunks()


def _tables(location: Location, merge: Merge) -> Iterator[Any]:
    if merge.kept_file is not None:
        kept = pa.array(sorted(merge.kept), pa.int64())
        for table in _row_groups(location, merge.kept_file):
            # Whole division of Arrow goes towards zero: moments before 1970 are none of ours.
            hours = pc.multiply(pc.divide(table["ts_s"], HOUR_S), HOUR_S)
            yield table.filter(pc.is_in(hours, value_set=kept))
    for path in merge.files:
        yield from _row_groups(location, path)


def _row_groups(location: Location, path: str) -> Iterator[Any]:
    with pq.ParquetFile(location.path(path), page_checksum_verification=True) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number).replace_schema_metadata()


def _is_same(path: str, groups: Iterator[Any]) -> bool:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for number in range(file.num_row_groups):
            if not file.read_row_group(number).equals(next(groups, None)):
                return False
    return next(groups, None) is None
