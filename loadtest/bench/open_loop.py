"""Clients of benchmarks that ask at a steady rate, whatever became of what they asked before (open model)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

from loadtest.bench.schedule_core import Load
from loadtest.quantile_core import quantile

TICK_S: Final = 0.001
GOOD: Final = ("ok", "200")  # answers whose latency counts, from when they were due


async def ask_all(load: Load, ask: Callable[[int, int], Awaitable[str]]) -> dict[str, Any]:
    """Ask when each is due and wait for the answers; return what became of them, and what this process took.

    Args:
        ask: takes number and due time (monotonic ns) of a question, and returns its answer in a word.
    """
    answers: Counter[str] = Counter()
    latencies_ns: list[int] = []

    async def one(number: int, due_ns: int) -> None:
        answer = await ask(number, due_ns)
        answers[answer] += 1
        if answer in GOOD:
            latencies_ns.append(time.monotonic_ns() - due_ns)

    cpu_from, began_ns = time.process_time(), time.monotonic_ns()
    async with asyncio.TaskGroup() as tasks:
        for number in range(load.count):
            due_ns = load.due_ns(began_ns, number)
            while (ahead_ns := due_ns - time.monotonic_ns()) > 0:
                await asyncio.sleep(max(TICK_S, ahead_ns / 1e9))
            tasks.create_task(one(number, due_ns))
    took_s = (time.monotonic_ns() - began_ns) / 1e9  # longer than it should where who is asked falls behind
    return {
        "due": load.count,
        "ok": len(latencies_ns),
        "answers": ", ".join(f"{count} {what}" for what, count in answers.most_common()),
        "took_s": took_s,
        "per_s": len(latencies_ns) / took_s,
        "cpu_s": time.process_time() - cpu_from,
        **{f"p{share}_ms": quantile(latencies_ns, share / 100, none=0) / 1e6 for share in (50, 99, 100)},
    }
