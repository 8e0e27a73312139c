"""Who handles Ctrl-C once Spark has started: a program that has its own way to stop keeps it."""

from __future__ import annotations

import signal
import types
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("pyspark")

from sla import session

Handler = Callable[[int, types.FrameType | None], None]


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Put back who handled it before the test."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def stop(_: int, __: types.FrameType | None) -> None:
    """Stand for a program's handler."""


def of_spark(_: int, __: types.FrameType | None) -> None:
    """Stand for the handler that Spark installs."""


@pytest.mark.parametrize(
    ("before", "after"),
    [(stop, stop), (signal.default_int_handler, session._end_java), (signal.SIG_IGN, signal.SIG_IGN)],
)
def test_spark_never_keeps_its_handler(before: Handler | signal.Handlers, after: Handler | signal.Handlers) -> None:
    signal.signal(signal.SIGINT, before)
    with session._own_interrupts():
        signal.signal(signal.SIGINT, of_spark)
    assert signal.getsignal(signal.SIGINT) == after


def start_that_fails() -> None:
    with session._own_interrupts():
        signal.signal(signal.SIGINT, of_spark)
        raise ValueError("no Java")


def test_a_start_that_fails_leaves_no_handler_of_spark_behind() -> None:
    signal.signal(signal.SIGINT, stop)
    with pytest.raises(ValueError, match="no Java"):
        start_that_fails()
    assert signal.getsignal(signal.SIGINT) is stop
