"""Unions of offset ranges per key, of an Arrow table: as sla.transforms.ranges with Spark, for the sums of a day.

Rule: ranges that touch or overlap are one; so a union of unions is the union of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

RANGES: Final = "ranges"


def united(rows: Any, keys: Sequence[str]) -> Any:
    """Return the unions of the ranges per keys, one list for each, in the order of the keys; no range is an empty list.

    Args:
        rows: Arrow table with `keys`, null behind every other, and RANGES: list<struct<f, t>> of [f, t), null for none.
    """
    ranges = rows[RANGES].combine_chunks()
    kind = ranges.type
    key_of_row, key_count = _numbered(rows, keys)
    key = key_of_row[pc.list_parent_indices(ranges).to_numpy(zero_copy_only=False)]
    flat = pc.list_flatten(ranges)
    first, end = (pc.struct_field(flat, name).to_numpy(zero_copy_only=False) for name in ("f", "t"))
    order = np.lexsort((first, key))
    key, first, end = key[order], first[order], end[order]
    # Offsets are replaced by their ranks, which leave room to put the key above them: no sum can overflow.
    offsets, ranks = np.unique(np.concatenate([first, end]), return_inverse=True)
    above = key * len(offsets)
    reach = np.maximum.accumulate(above + ranks[len(first) :])
    is_apart = np.ones(len(first), dtype=bool)
    is_apart[1:] = (above + ranks[: len(first)])[1:] > reach[:-1]
    starts = np.flatnonzero(is_apart)
    ends = reach[np.append(starts[1:], len(first)) - 1] - above[starts] if len(starts) else starts
    values = pa.StructArray.from_arrays(
        [pa.array(first[starts], pa.int64()), pa.array(offsets[ends], pa.int64())],
        fields=[kind.value_type.field("f"), kind.value_type.field("t")],
    )
    counts = np.bincount(key[starts], minlength=key_count)
    list_ends = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    return pa.ListArray.from_arrays(list_ends, values, type=kind)


def _numbered(rows: Any, keys: Sequence[str]) -> tuple[Any, int]:
    """Return the number of each row's key, in the order of the keys, and how many keys there are."""
    numbers = np.zeros(rows.num_rows, dtype=np.int64)
    count = min(1, rows.num_rows)
    for name in keys:
        column = rows[name].combine_chunks().dictionary_encode(null_encoding="encode")
        rank = np.argsort(pc.array_sort_indices(column.dictionary).to_numpy())
        numbers = numbers * max(1, len(rank)) + rank[column.indices.to_numpy()]
        found, numbers = np.unique(numbers, return_inverse=True)  # small again: the product cannot overflow
        count = len(found)
    return numbers, count
