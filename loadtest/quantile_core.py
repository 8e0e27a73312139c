"""The one quantile of everything that is measured here. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable


def quantile(values: Iterable[float], share: float, *, none: float = math.nan) -> float:
    """Return the value below which so large a share (0 to 1) of the values lies: one of them, or `none` without any.

    Nothing was measured is not fast: whoever takes 0 for `none` says elsewhere how much was measured.
    """
    ascending = sorted(values)
    return float(ascending[min(len(ascending) - 1, int(share * len(ascending)))]) if ascending else none
