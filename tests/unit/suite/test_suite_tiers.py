"""Cases that are a test together: all of them run, a failure names its case, fixtures are given as to any test."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.tiers import in_one_test


def test_every_case_runs_in_order_also_of_two_tables() -> None:
    seen: list[tuple[int, str, str, str]] = []

    @in_one_test("number", iter([1, 2]))
    @in_one_test(("small", "large"), [("a", "A"), ("b", "B")])
    def together(number: int, small: str, large: str, fixture: str) -> None:
        seen.append((number, small, large, fixture))

    together(fixture="f")
    assert seen == [(1, "a", "A", "f"), (1, "b", "B", "f"), (2, "a", "A", "f"), (2, "b", "B", "f")]
    assert list(inspect.signature(together).parameters) == ["fixture"]  # what pytest has to give


@pytest.mark.parametrize("kind", ["assertion", "pytest.fail"])
def test_the_case_that_fails_is_named(kind: str) -> None:
    def look(number: int) -> None:
        if kind == "assertion":
            assert number != 2
        elif number == 2:
            pytest.fail("by itself")

    together: Any = in_one_test("number", [1, 2, 3])(look)
    with pytest.raises(BaseException) as failed:
        together()
    assert failed.value.__notes__ == ["case: {'number': 2}"]
