"""Seconds, minutes and hours of a row as Spark columns: whole seconds since 1970 UTC, always rounded down."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from sla.tables import HOUR_S, MINUTE_S

NS_PER_S: Final = 1_000_000_000


def second_of(time_ns: Column | str) -> Column:
    """Return the second of a time in ns."""
    return _floored(_column(time_ns), NS_PER_S)


def minute_of(second: Column | str) -> Column:
    """Return the start of the minute of a second."""
    return _start(_column(second), MINUTE_S)


def hour_of(second: Column | str) -> Column:
    """Return the start of the hour of a second."""
    return _start(_column(second), HOUR_S)


def hour_of_ns(time_ns: Column | str) -> Column:
    """Return the start of the hour of a time in ns, in seconds."""
    return hour_of(second_of(time_ns))


def _column(value: Column | str) -> Column:
    return F.col(value) if isinstance(value, str) else value


def _floored(value: Column, unit: int) -> Column:
    # Whole numbers only: a quotient of doubles has 53 bits, and ns since 1970 need 61.
    return ((value - F.pmod(value, F.lit(unit))) / unit).cast("bigint")


def _start(second: Column, length_s: int) -> Column:
    return second - F.pmod(second, F.lit(length_s))
