"""Tables of rows that this process made: they reach the JVM as Arrow, and plans know them.

Spark's own way from a list of tuples starts Python processes that read the list back whenever a query needs it, and a
plan does not see that a table is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType


def local_rows(spark: SparkSession, rows: Sequence[Sequence[Any]], ddl: str) -> DataFrame:
    """Return a table of rows, each with its values in the order of the columns.

    Args:
        rows: few enough for the driver; a struct in them is a dict.
        ddl: columns and their types, such as `topic STRING, n BIGINT`.
    """
    schema = DataType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    fields = to_arrow_schema(schema)
    columns = zip(*rows, strict=True) if rows else ((),) * len(fields)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return spark.createDataFrame(pa.table(arrays, schema=fields), schema)
