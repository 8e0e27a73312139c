"""What an operation may say about itself, and how it is shown to people."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.history.operation import HistoryError, Kind, Operation, Outcome

OK: dict[str, Any] = {"completed_ns": 20, "outcome": Outcome.OK}


def operation(kind: Kind = Kind.PRODUCE, **fields: Any) -> Operation:
    known: dict[str, Any] = {"process": "p", "number": 3, "kind": kind, "key": "orders/0", "invoked_ns": 10}
    return Operation(**(known | fields))


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        (Kind.PRODUCE, {"value": "a", "completed_ns": 9}, "ends before it begins"),
        (Kind.PRODUCE, {"value": "a", "outcome": Outcome.OK, "offset": 1}, "is ok and has no time of completion"),
        (Kind.PRODUCE, {"value": "a", "outcome": Outcome.FAIL}, "is fail and has no time of completion"),
        (Kind.PRODUCE, {}, "produces no value"),
        (Kind.END, OK, "is ok and has no offset"),
    ],
)
def test_fields_that_do_not_fit_each_other_are_refused(kind: Kind, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(HistoryError, match=text):
        operation(kind, **fields)


def test_an_operation_may_take_no_time_and_have_no_known_end() -> None:
    assert operation(value="a", offset=0, outcome=Outcome.OK, completed_ns=10).is_ok
    assert not operation(value="a").is_ok
    assert operation(Kind.FETCH, **OK).is_ok


def test_a_record_may_be_acknowledged_without_an_offset() -> None:
    stored = operation(value="a", **OK)
    assert stored.is_ok
    assert stored.describe().endswith("produce 'a' to orders/0 -> stored, offset unknown")


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (operation(value="a"), "[0.000000 .. never] p#3 produce 'a' to orders/0 -> unknown"),
        (
            operation(value="a", offset=7, site="eu", note="slow", **OK),
            "[0.000000 .. 0.000000] p#3 produce 'a' to orders/0@eu -> offset 7 (slow)",
        ),
        (
            operation(Kind.END, offset=7, linear=True, **OK),
            "[0.000000 .. 0.000000] p#3 end of orders/0 (linear) -> offset 7",
        ),
        (
            operation(Kind.FETCH, records=((0, "a"), (1, "b"), (2, "c"), (3, "d")), position=0, **OK),
            "[0.000000 .. 0.000000] p#3 fetch orders/0 from 0 -> [0='a', 1='b', 2='c', 3='d']",
        ),
        (
            operation(Kind.FETCH, records=tuple((n, "x") for n in range(5)), final=True, **OK),
            "[0.000000 .. 0.000000] p#3 final fetch orders/0 on -> [0='x', 1='x', 2='x', 3='x', ... 5 records]",
        ),
        (
            operation(Kind.FETCH, outcome=Outcome.FAIL, completed_ns=1_500_000_010),
            "[0.000000 .. 1.500000] p#3 fetch orders/0 on -> fail",
        ),
    ],
)
def test_one_line_says_what_happened(shown: Operation, text: str) -> None:
    assert shown.describe() == text
