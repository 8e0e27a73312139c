"""The footer of a trace file: its bytes, the time it says its rows have, and whether its rows bear it out.

Pages of trace files have checksums, their footer has none. A reader believes its statistics when it skips row groups:
a flipped byte in them hides rows without an error. So they are compared with the rows when those are read anyway.
Source: parquet.thrift of Apache Parquet (FileMetaData and below); field numbers are those there.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from georelay.trace.kinds import TraceKind
from sla.sources.manifest import TIME_COLUMNS
from sla.sources.thrift import Struct, Value, read_struct

FOOTER_BYTES_MAX: Final = 16 << 20
_TRAILER_BYTES: Final = 8  # length of the footer and the magic number
_MAGIC: Final = b"PAR1"

_BOOLEAN, _INT32, _INT64 = 0, 1, 2  # physical types

Bound = int | bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the footer says about a column of one row group.

    Args:
        lows: smallest values (the current and the deprecated field); `highs`: largest. Strings are bytes.
        nulls: number of nulls, None when it does not say.
        is_exact: the bounds are values that exist.
    """

    lows: tuple[Bound, ...] = ()
    highs: tuple[Bound, ...] = ()
    nulls: int | None = None
    is_exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """One footer.

    Args:
        crc: CRC-32 of its bytes: offsets, sizes and statistics of every column chunk are in them.
        groups: statistics of the flat columns of each row group, by name.
    """

    crc: int
    groups: tuple[Mapping[str, Said], ...]

    def times(self, kind: TraceKind) -> tuple[int | None, int | None]:
        """Return the smallest and the largest second of the rows, None where a row group does not say."""
        name, units_per_s = TIME_COLUMNS[kind]
        found = [group.get(name, Said()) for group in self.groups]
        lows = [bound for said in found for bound in said.lows[:1] if isinstance(bound, int)]
        highs = [bound for said in found for bound in said.highs[:1] if isinstance(bound, int)]
        if not found or len(lows) < len(found) or len(highs) < len(found):
            return None, None
        return min(lows) // units_per_s, max(highs) // units_per_s


def read_footer(source: Any) -> Footer:
    """Read the footer of an open file.

    Raises:
        ValueError: the file does not end as Parquet does.
    """
    size_bytes = source.size()
    if size_bytes < 2 * len(_MAGIC) + _TRAILER_BYTES:
        raise ValueError(f"the file has {size_bytes} bytes: it is torn or empty")
    trailer = source.read_at(_TRAILER_BYTES, size_bytes - _TRAILER_BYTES)
    footer_bytes = int.from_bytes(trailer[:4], "little")
    if trailer[4:] != _MAGIC:
        raise ValueError("the file does not end as Parquet does: it is torn or no Parquet")
    if footer_bytes > min(FOOTER_BYTES_MAX, size_bytes - _TRAILER_BYTES):
        raise ValueError(f"the footer says it has {footer_bytes} bytes of {size_bytes}")
    raw = source.read_at(footer_bytes, size_bytes - _TRAILER_BYTES - footer_bytes)
    groups = _list(read_struct(raw).get(4))
    return Footer(crc=zlib.crc32(raw), groups=tuple(_group(_struct(group)) for group in groups))


def _group(group: Struct) -> dict[str, Said]:
    """Read a RowGroup."""
    found = {}
    for chunk in _list(group.get(1)):
        metadata = _struct(_struct(chunk).get(3))
        path = [part for part in _list(metadata.get(3)) if isinstance(part, bytes)]
        statistics = metadata.get(12)
        if len(path) == 1 and statistics is not None:
            found[path[0].decode()] = _said(_struct(statistics), metadata.get(1))
    return found


def _said(statistics: Struct, physical: Value | None) -> Said:
    """Read a Statistics: 1, 2 max and min (deprecated); 3 nulls; 5, 6 max and min; 7, 8 whether they are exact."""
    nulls = statistics.get(3)
    return Said(
        lows=tuple(_bound(statistics[field], physical) for field in (6, 2) if field in statistics),
        highs=tuple(_bound(statistics[field], physical) for field in (5, 1) if field in statistics),
        nulls=nulls if isinstance(nulls, int) else None,
        is_exact=statistics.get(7) is not False and statistics.get(8) is not False,
    )


def _bound(raw: Value, physical: Value | None) -> Bound:
    if isinstance(raw, bytes):
        is_number = physical in (_BOOLEAN, _INT32, _INT64)
        return int.from_bytes(raw, "little", signed=physical != _BOOLEAN) if is_number else raw
    raise ValueError("the footer has statistics that are no bytes")


def _list(value: Value | None) -> list[Value]:
    if isinstance(value, list):
        return value
    raise ValueError("the footer lacks a list that every Parquet file has")


def _struct(value: Value | None) -> Struct:
    if isinstance(value, dict):
        return value
    raise ValueError("the footer lacks a structure that every Parquet file has")


@dataclass(slots=True)
class _Seen:
    """What the rows of one column chunk really are."""

    low: Bound | None = None
    high: Bound | None = None
    nulls: int = 0

    def add(self, column: Any) -> None:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        self.nulls += column.null_count
        bounds = pc.min_max(column).as_py()
        if bounds["min"] is not None:
            low, high = _as_bound(bounds["min"]), _as_bound(bounds["max"])
            self.low = low if self.low is None else _least(self.low, low)
            self.high = high if self.high is None else _least(high, self.high, is_greatest=True)


def _as_bound(value: Any) -> Bound:
    return value.encode() if isinstance(value, str) else int(value)


def _least(left: Bound, right: Bound, *, is_greatest: bool = False) -> Bound:
    if isinstance(left, int) and isinstance(right, int):
        return max(left, right) if is_greatest else min(left, right)
    assert isinstance(left, bytes) and isinstance(right, bytes), (left, right)  # one column has one type
    return max(left, right) if is_greatest else min(left, right)


class RowsOfGroup:
    """Compares the rows of one row group with what the footer says about them.

    Args:
        said: statistics of the row group.
        schema: Arrow schema of the file.

    Raises:
        ValueError: they name different columns.
    """

    def __init__(self, said: Mapping[str, Said], schema: Any) -> None:
        unknown = sorted(set(said) - set(schema.names))
        if unknown:
            raise ValueError(f"column {unknown[0]} has data and is not in the schema of the file")
        self._seen = {field.name: _Seen() for field in schema if _is_compared(field.type)}
        self._said = {name: statistics for name, statistics in said.items() if name in self._seen}

    def add(self, batch: Any) -> None:
        """Take some rows of the row group."""
        for name, seen in self._seen.items():
            seen.add(batch.column(name))

    def bounds(self, name: str) -> tuple[Bound | None, Bound | None]:
        """Return the smallest and the largest value of a compared column, None without one."""
        seen = self._seen[name]
        return seen.low, seen.high

    def finish(self) -> None:
        """Compare, after the last rows.

        Raises:
            ValueError: the footer says something else.
        """
        for name, said in self._said.items():
            seen = self._seen[name]
            if said.nulls is not None and said.nulls != seen.nulls:
                raise ValueError(f"column {name} has {seen.nulls} nulls, the footer says {said.nulls}")
            if said.is_exact and (set(said.lows) - {seen.low} or set(said.highs) - {seen.high}):
                raise ValueError(f"the rows of column {name} are not in the range that the footer says")


def _is_compared(kind: Any) -> bool:
    """Return whether Spark can be asked to skip rows by such a column; floats have bounds that are no values."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or (pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type))
    )
