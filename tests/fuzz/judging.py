"""What all fuzz drivers share: their flags, how one input is judged, and how a run ends.

Rule 1: an input may only be accepted or refused with an error that its target names.
Rule 2: it may take so much processor time and, where memory is traced, hold so much memory; the process may grow so
        much over the whole run.
Rule 3: a run prints its violations with the bytes that caused them, and ends with 1 when there are any.
"""

from __future__ import annotations

import argparse
import resource
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

VIOLATIONS_SHOWN = 5
TEXT_MAX = 4_000
INPUTS = 200_000


class Target(NamedTuple):
    """One thing to feed: valid bytes, and what reads them. Reads raise only what `errors` names."""

    name: str
    valid: bytes
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]


def flags(doc: str | None, *, each: str = "mutated inputs") -> argparse.ArgumentParser:
    """Return the parser of a driver: --inputs (or --frames), --seed. `each`: what is counted."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument(
        "--inputs", "--frames", type=int, default=INPUTS, metavar="N", help=f"how many {each} (default {INPUTS})"
    )
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same inputs (default 1)")
    return parser


class ResidentMemory:
    """How much this process has grown since it was made, at its largest."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    @property
    def grown_bytes(self) -> int:
        """Return by how many bytes."""
        return self._now() - self._before

    def violations(self, limit_bytes: int) -> list[str]:
        """Return one violation when it has grown by more than that."""
        grown = self.grown_bytes
        return [f"resident memory grew by {grown} bytes"] if grown > limit_bytes else []


class Report:
    """What a run has seen.

    Args:
        input_ms_max: processor time of one input.
        memory_max_bytes: what one input may hold, by target and bytes; None: as much as it likes.
    """

    def __init__(
        self,
        *,
        input_ms_max: float,
        memory_max_bytes: Callable[[Target, bytes], int | None] = lambda _target, _raw: None,
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self.violations: list[str] = []
        self.slowest_ms = 0.0
        self.slowest = ""
        self.peak_bytes = 0
        self._input_ms_max = input_ms_max
        self._memory_max_bytes = memory_max_bytes

    def feed(self, target: Target, raw: bytes, *, trace: bool = False) -> None:
        """Give `raw` to the target and judge what happened; `trace`: its memory instead of its time."""
        if trace:
            tracemalloc.start()
        started = time.thread_time()
        try:
            target.read(raw)
            self.outcomes["accepted"] += 1
        except target.errors as error:
            self.outcomes[type(error).__name__] += 1
        except Exception as error:
            self.violations.append(f"{target.name}: {type(error).__name__}: {error}: {raw.hex()}")
        spent_ms = (time.thread_time() - started) * 1000
        if trace:  # it slows the input down: no time is judged
            self._judge_memory(target, raw)
        else:
            self.judge_time(target.name, raw, spent_ms)

    def judge_time(self, name: str, raw: bytes, spent_ms: float) -> None:
        """Judge how long one input took."""
        if spent_ms > self.slowest_ms:
            self.slowest_ms, self.slowest = spent_ms, name
        if spent_ms > self._input_ms_max:
            self.violations.append(f"{name}: took {spent_ms:.1f} ms: {raw.hex()}")

    def _judge_memory(self, target: Target, raw: bytes) -> None:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self.peak_bytes = max(self.peak_bytes, peak)
        limit = self._memory_max_bytes(target, raw)
        if limit is not None and peak > limit:
            self.violations.append(f"{target.name}: held {peak} bytes for {len(raw)}: {raw.hex()}")

    def show(self, what: str, memory: ResidentMemory) -> None:
        """Print what was seen."""
        print(f"{what}: {dict(self.outcomes.most_common())}")
        print(f"slowest {self.slowest_ms:.2f} ms ({self.slowest}), most memory for one input {self.peak_bytes} bytes")
        print(f"resident memory grew by {memory.grown_bytes // 1024} KiB")


def verdict(violations: Sequence[Any]) -> int:
    """Print violations and their number; return the exit code of the driver."""
    for violation in violations[:VIOLATIONS_SHOWN]:
        print("VIOLATION", str(violation)[:TEXT_MAX])
    print(f"{len(violations)} violations")
    return 1 if violations else 0
