"""Long rows of cases: which part belongs to the first tier of the suite (`make test`), and which are a test together.

A case that pytest has as a test of its own costs 4 ms of CPU, whatever it does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return parameters of a test, of which only the first `count` run in `make test` and all in `make test-all`."""
    return [case if place < count else _slow(case) for place, case in enumerate(cases)]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)


def in_one_test(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """Run all cases of a table in one test; a failure names the case.

    For cases of a millisecond, without fixtures that a case changes: they are made once. Otherwise it is used as
    `pytest.mark.parametrize` is, also on top of another one.

    Args:
        names: the arguments that a case gives: one, or several whose values are a tuple each.
    """
    given = (names,) if isinstance(names, str) else names
    rows = [(case,) if isinstance(names, str) else case for case in cases]

    def decorate(test: Callable[..., None]) -> Any:
        @functools.wraps(test)
        def every_case(**others: Any) -> None:
            for row in rows:
                case = dict(zip(given, row, strict=True))
                try:
                    test(**case, **others)
                except BaseException as error:  # pytest.fail is no Exception
                    error.add_note(f"case: {case}")
                    raise

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in given]
        every_case.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return every_case

    return decorate
