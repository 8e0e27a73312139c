"""Periodic work of one loop shares its moments, and keeps its periods."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from georelay import library_log
from georelay.cadence import Recurring, pause_s


class StoppedLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still until it is told."""

    now_s = 1_000.0

    def time(self) -> float:
        return self.now_s


def asked_at(loop: StoppedLoop, now_s: float, period_s: float) -> float:
    """Return the moment until which work of that period waits, in seconds after the first question."""

    async def ask() -> float:
        return pause_s(period_s)

    loop.now_s = 1_000.0 + now_s
    return round(now_s + loop.run_until_complete(ask()), 6)


@pytest.fixture
def loop() -> Iterator[StoppedLoop]:
    loop = StoppedLoop()
    asked_at(loop, 0, 0.1)
    yield loop
    loop.close()


def test_work_of_all_periods_meets_on_one_grid_wherever_it_began(loop: StoppedLoop) -> None:
    assert asked_at(loop, 0.013, 0.1) == 0.1
    assert asked_at(loop, 0.038, 1.0) == 1.0
    assert asked_at(loop, 0.171, 0.2) == 0.4
    assert asked_at(loop, 0.171, 0.25) == 0.4 and asked_at(loop, 0.161, 0.25) == 0.4
    assert asked_at(loop, 0.15, 0.25) == 0.4


def test_a_wait_is_at_most_half_a_grain_off_and_lateness_does_not_add_up(loop: StoppedLoop) -> None:
    now_s = 0.0
    for turn in range(1, 50):
        now_s = asked_at(loop, now_s + 0.004, 0.1)
        assert now_s == round(turn * 0.1, 6)
    for late_s in (0.01, 0.049, 0.051, 0.09):
        assert abs(asked_at(loop, 5.0 + late_s, 0.1) - (5.1 + late_s)) <= 0.05 + 1e-9


def test_short_and_uneven_periods_are_left_alone(loop: StoppedLoop) -> None:
    for period_s in (0.005, 0.02, 0.04, 0.123, 0.26):
        assert asked_at(loop, 0.037, period_s) == round(0.037 + period_s, 6)


def test_each_loop_has_a_grid_of_its_own(loop: StoppedLoop) -> None:
    other = StoppedLoop()
    assert asked_at(other, 0.03, 0.1) == 0.13
    assert asked_at(loop, 0.03, 0.1) == 0.1
    other.close()


class Looked(Recurring):
    """Waits as it is told, and fails when nothing more is told."""

    def __init__(self, pauses_s: list[float | None]) -> None:
        super().__init__("looked", every_s=3600.0)
        self.pauses_s = pauses_s

    async def look(self) -> float | None:
        return self.pauses_s.pop(0)


async def test_recurring_work_is_done_at_once_again_when_it_says_so_and_no_more_once_it_is_stopped() -> None:
    looked = Looked([0.0, 0.0, None])
    looked.start()
    while looked.pauses_s:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    await looked.stop()
    assert [task.get_name() for task in asyncio.all_tasks()].count("looked") == 0


async def test_recurring_work_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[str, object]] = []
    monkeypatch.setattr(library_log.log, "_say", lambda _, event, values: said.append((event, values["exc_info"])))
    looked = Looked([])
    looked.start()
    while not said:
        await asyncio.sleep(0)
    ((event, fault),) = said
    assert event == "looked.failed" and isinstance(fault, IndexError)
