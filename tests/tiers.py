"""Which part of a long row of cases belongs to the first tier of the suite (`make test`): the rest is `slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return parameters of a test, of which only the first `count` run in `make test` and all in `make test-all`."""
    return [case if place < count else _slow(case) for place, case in enumerate(cases)]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
