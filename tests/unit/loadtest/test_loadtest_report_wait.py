"""The campaign of the report compares books when every reader has everything, not when nobody happens to read."""

from __future__ import annotations

import argparse
import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from loadtest.campaign.report_run import DRAIN_S_MAX, STILL_S, ReportRun, has_all


@pytest.mark.parametrize(
    ("read", "has"),
    [
        ({}, False),
        ({"us": 100, "eu": 100}, True),
        ({"us": 103, "eu": 103}, True),
        ({"us": 103, "eu": 100}, False),
        ({"us": 99, "eu": 99}, False),
    ],
)
def test_all_is_what_was_acknowledged_and_as_much_as_the_others_have(read: dict[str, int], *, has: bool) -> None:
    assert has_all(read, 100) is has


async def waited_s(monkeypatch: pytest.MonkeyPatch, came: dict[float, dict[str, int]]) -> float:
    """Return how long it waits for 100 records when readers say these counts at these moments."""
    now_s = [0.0]
    mesh: Any = SimpleNamespace(regions=["us", "eu"])
    run = ReportRun(mesh, argparse.Namespace(), Console(quiet=True))
    run._read = came[0]

    async def sleep(seconds: float, *_: Any) -> None:
        now_s[0] += seconds
        run._read = came[max(at_s for at_s in came if at_s <= now_s[0])]

    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(asyncio, "sleep", sleep)
    await run._until_all_came(100)
    return now_s[0]


async def test_a_reader_that_is_away_for_longer_than_it_is_still_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    came = {0: {"us": 100, "eu": 60}, 17.0: {"us": 100, "eu": 80}, 17.5: {"us": 100, "eu": 100}}
    assert await waited_s(monkeypatch, came) == 17.5 + STILL_S


async def test_records_of_unknown_outcome_may_come_later(monkeypatch: pytest.MonkeyPatch) -> None:
    came = {0: {"us": 100, "eu": 100}, 3.0: {"us": 102, "eu": 100}, 4.0: {"us": 102, "eu": 102}}
    assert await waited_s(monkeypatch, came) == 4.0 + STILL_S


async def test_a_reader_that_never_comes_back_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await waited_s(monkeypatch, {0: {"us": 100, "eu": 60}}) == DRAIN_S_MAX
