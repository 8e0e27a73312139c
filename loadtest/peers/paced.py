"""Sends a load from an asyncio client: at its rate, or with a window of records on their way; again what must be.

The loop waits with select(), which knows microseconds: epoll waits in whole milliseconds, and a producer that is half
a millisecond late would be told as latency of the broker.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from loadtest.bench.ledger_core import Ledger
from loadtest.bench.schedule_core import NS_PER_S, Load

AGAIN_EVERY_S: Final = 0.05
BURST: Final = 50

Send = Callable[[int, int], Coroutine[Any, Any, None]]  # number and due time of a record; must note it in the ledger


def run(main: Coroutine[Any, Any, Ledger]) -> Ledger:
    """Run a producer on a loop with exact timers."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        return runner.run(main)


async def send(load: Load, ledger: Ledger, publish: Send, end_ns: int) -> None:
    """Send a load by `publish`, then wait for the answers until `end_ns` at most."""
    due: dict[int, int] = {}

    async def again() -> None:
        while True:
            await asyncio.sleep(AGAIN_EVERY_S)
            for number in ledger.again(time.monotonic_ns()):
                await publish(number, due[number])

    repeating = asyncio.create_task(again())
    try:
        if load.rate_per_s:
            await _at_a_rate(load, ledger, publish, due)
        else:
            await _as_fast_as_it_can(load, ledger, publish, due)
        while ledger.open and time.monotonic_ns() < end_ns and not repeating.done():
            await asyncio.sleep(0.005)
        if repeating.done():
            repeating.result()
    finally:
        repeating.cancel()


async def _at_a_rate(load: Load, ledger: Ledger, publish: Send, due: dict[int, int]) -> None:
    began_ns = time.monotonic_ns()
    for number in range(load.count):
        due[number] = due_ns = load.due_ns(began_ns, number)
        ahead_ns = due_ns - time.monotonic_ns()
        await asyncio.sleep(max(0, ahead_ns) / NS_PER_S)
        ledger.lags_ns.append(time.monotonic_ns() - due_ns)
        await publish(number, due_ns)


async def _as_fast_as_it_can(load: Load, ledger: Ledger, publish: Send, due: dict[int, int]) -> None:
    end_ns = time.monotonic_ns() + round(load.seconds * NS_PER_S)
    number = 0
    while (now_ns := time.monotonic_ns()) < end_ns:
        for _ in range(min(BURST, load.window - ledger.open)):
            due[number] = now_ns
            await publish(number, now_ns)
            number += 1
        await asyncio.sleep(0 if ledger.open < load.window else 0.001)
