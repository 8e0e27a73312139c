"""Arrow columns from numpy: names by number, and one value for all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def named(names: Sequence[str], index: npt.NDArray[np.int64], is_null: npt.NDArray[np.bool_] | None = None) -> Any:
    """Return the strings `names[index]`; null where `is_null`."""
    wanted = pa.array(index, pa.int32(), mask=is_null)
    return pa.array(list(names), pa.string()).take(wanted)


def constant(value: str | int | float | bool, number: int, kind: Any = None) -> Any:
    """Return `value` for `number` rows, as `kind` (of the value, unless given)."""
    return pa.repeat(pa.scalar(value, kind), number)
