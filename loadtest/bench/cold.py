"""What the same Python costs at once and after a nap: code and objects leave the caches of a shared machine soon."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from types import FunctionType
from typing import Final

STEPS: Final = 800  # as many calls as a broker makes for a single record, all of them different code
RUNS: Final = 100
NAPS_MS: Final = (0, 1, 5, 20)

Step = tuple[FunctionType, list[int], dict[int, int]]


def _step(numbers: list[int], counts: dict[int, int], value: int) -> int:
    found = numbers[0] + value
    counts[value % 12] = found
    if found > value // 2:
        numbers[value % 8] = found
    return len(numbers) + counts.get(value % 7, 0)


def _steps() -> list[Step]:
    def copied(number: int) -> Step:
        code = _step.__code__.replace(co_name=f"step_{number}")  # bytes of its own
        return FunctionType(code, globals()), [number] * 8, {key: key + number for key in range(12)}

    return [copied(number) for number in range(STEPS)]


def run(_directory: Path) -> list[str]:
    """Return the microseconds of the burst after each nap, medians."""
    steps = _steps()

    def burst_us(value: int, nap_ms: int) -> float:
        if nap_ms:
            time.sleep(nap_ms / 1_000)
        began_ns = time.perf_counter_ns()
        for step, numbers, counts in steps:
            step(numbers, counts, value)
        return (time.perf_counter_ns() - began_ns) / 1_000

    costs = {nap_ms: statistics.median(burst_us(value, nap_ms) for value in range(RUNS)) for nap_ms in NAPS_MS}
    return [f"{STEPS} calls {nap_ms} ms after the last ones: {us:.0f} us" for nap_ms, us in costs.items()]
