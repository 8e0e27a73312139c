"""The main loop is held once for each generation that says so, from the loop's own thread and in no other one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from region.faults.loop_hold import LoopHold
from region.faults.settings import FaultSettings


class ToldLoop:
    """An event loop that runs nothing: it notes what it was told to."""

    def __init__(self) -> None:
        self.told: list[float] = []

    def call_soon_threadsafe(self, callback: Callable[[float], None], seconds: float, /) -> object:
        self.told.append(seconds)
        return None


def state(generation: int, hold_ms: int = 0) -> FaultSettings:
    return FaultSettings(generation=generation, loop_hold_ms=hold_ms)


def test_a_generation_holds_the_loop_once() -> None:
    loop = ToldLoop()
    hold = LoopHold(loop)
    for settings in (state(0), state(1, 6_000), state(1, 6_000), state(2), state(3, 250)):
        hold.obey(settings)
    assert loop.told == [6.0, 0.25]


def test_a_hold_of_an_earlier_life_is_over_when_the_broker_starts_again() -> None:
    loop = ToldLoop()
    LoopHold(loop).obey(state(7, 16_000))
    assert loop.told == []


@pytest.mark.timeout(20)
async def test_while_it_is_held_nothing_runs_in_the_loop_and_other_threads_do() -> None:
    held_in: list[int] = []
    begun, over = threading.Event(), threading.Event()

    def sleep(seconds: float) -> None:
        held_in.append(threading.get_ident())
        begun.set()
        assert over.wait(10)

    loop = asyncio.get_running_loop()
    hold = LoopHold(loop, sleep=sleep)
    turned: list[str] = []

    def outside() -> None:
        hold.obey(state(0))
        hold.obey(state(1, 50))
        assert begun.wait(10)
        loop.call_soon_threadsafe(turned.append, "after")
        assert turned == []
        turned.append("held")
        over.set()

    await asyncio.to_thread(outside)
    assert turned == ["held", "after"]
    assert held_in == [threading.get_ident()]
