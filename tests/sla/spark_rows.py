"""Tables of rows as tests write them down: tuples or dicts, structs as tuples, what is left out is null."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql.types import ArrayType, DataType, StructType

from sla.local_rows import local_rows


def table_of(spark: Any, rows: Iterable[Any], ddl: str) -> Any:
    """Return a table that plans know: no Python process reads it, and an empty one costs next to nothing."""
    schema = DataType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return local_rows(spark, [tuple(_as_dict(row, schema).values()) for row in rows], ddl)


def _as_dict(row: Any, schema: StructType) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        row = dict(zip(schema.names, row, strict=True))
    return {field.name: _value(row.get(field.name), field.dataType) for field in schema.fields}


def _value(value: Any, kind: DataType) -> Any:
    if isinstance(kind, StructType) and value is not None:
        return _as_dict(value, kind)
    if isinstance(kind, ArrayType) and value is not None:
        return [_value(item, kind.elementType) for item in value]
    return value
