"""Verified trace files as DataFrames: Spark's own Parquet reader for this machine's files, ours for object stores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from georelay.trace.kinds import TraceKind
from sla.errors import JobFailed
from sla.local_rows import local_rows
from sla.schemas import DDL
from sla.sources.arrowfs import read_over_arrow
from sla.sources.manifest import TraceFiles

_GLOB_CHARACTERS: Final = re.compile(r"[\\{}\[\]*?]")  # Spark expands them in every path it is given


def read(spark: SparkSession, files: TraceFiles, kind: TraceKind, columns: Sequence[str] | None = None) -> DataFrame:
    """Return the rows of the good files of a kind; columns a file does not have yet are null.

    Args:
        columns: the columns wanted, None for all. Over an object store only these are fetched; the other reader
            finds out by itself.
    """
    paths = files.paths(kind)
    if not paths:
        rows = local_rows(spark, [], DDL[kind])
    elif files.location.is_local:
        rows = spark.read.schema(DDL[kind]).parquet(*(_GLOB_CHARACTERS.sub(r"\\\g<0>", path) for path in paths))
    else:
        return read_over_arrow(spark, files, kind, columns)
    return rows if columns is None else rows.select(*columns)


def check_row_count(files: TraceFiles, kind: TraceKind, rows: int) -> None:
    """Refuse more or fewer rows than were verified: a path that Spark reads twice doubles every sum.

    Raises:
        JobFailed: the numbers differ.
    """
    expected = files.rows_of(kind)
    if rows != expected:
        raise JobFailed(f"Spark reads {rows} rows of kind {kind.value} from files that hold {expected}")
