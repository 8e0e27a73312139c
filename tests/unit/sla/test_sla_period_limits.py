"""Periods and settle times that nobody can have meant are refused before anything is read."""

from __future__ import annotations

import argparse
import datetime

import pytest

from sla import cli
from sla.commands import arguments
from sla.errors import UsageError
from sla.jobs.rollup_plan import LATE_HOURS, SPAN_S_MAX
from sla.sources.layout import Period
from sla.tables import HOUR_S

NOW_S = 1_795_000_000  # 2026-11-18


def period_of(*given: str) -> Period:
    parser = arguments.OneLineParser()
    arguments.add_period(parser)
    return arguments.period_of(parser.parse_args(list(given)), now_s=lambda: NOW_S)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("report --from 1923-11-21 --to 2023-11-21", "1923-11-21 to 2023-11-21: 10 years at most"),
        ("report --from 1923-11-21", "10 years at most"),
        ("rollup --from 0001-01-01", "10 years at most"),
        ("verify --from 2026-01-01 --to 9999-12-31", "10 years at most"),
        ("report --from 0001-01-01T00:00+14:00", "is no time that UTC has a date for"),
        ("report --to 9999-12-31T23:59-14:00", "is no time that UTC has a date for"),
        ("report --settle 2d", "'2d' is longer than late records are looked for: 24h at most"),
        ("rollup --settle 25h", "'25h' is longer than late records are looked for: 24h at most"),
        ("rollup --settle soon", "'soon' is no length of time"),
    ],
)
def test_wrong_lengths_exit_2_with_one_line(given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main([*given.split(), "--traces", "/nowhere"])
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert said in err


def test_ten_years_are_a_period() -> None:
    end = datetime.datetime.fromtimestamp(NOW_S, tz=datetime.UTC)
    start = end - datetime.timedelta(seconds=arguments.SECONDS_MAX)
    assert period_of("--from", start.isoformat()) == Period(start=start)
    assert period_of("--from", start.isoformat(), "--to", end.isoformat()) == Period(start=start, end=end)
    with pytest.raises(UsageError):
        period_of("--from", (start - datetime.timedelta(seconds=1)).isoformat())
    assert period_of("--to", "2001-01-01").start is None
    assert period_of("--from", "2999-01-01").end is None  # nothing is there, and it says so


def test_what_the_command_line_takes_is_what_the_jobs_take() -> None:
    assert arguments.SECONDS_MAX == SPAN_S_MAX
    assert arguments.SETTLE_S_MAX == LATE_HOURS * HOUR_S
    assert arguments.settle_s("24h") == arguments.SETTLE_S_MAX
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.settle_s("1441m")
