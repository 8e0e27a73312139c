"""How the writer's thread keeps out of the event loop's way: short steps, and a rest after each.

A thread that goes on without a pause competes with the loop and the flusher for the interpreter and for a core: all
records of that time are late. In short steps, the same work delays one record or none, by a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

STEP_NS: Final = 200_000  # of CPU; what is shorter is not worth waking up for
REST_PER_WORK: Final = 9  # a tenth of one core at most
REST_NS_MAX: Final = 20_000_000  # one call into Arrow may take long, but does so without the interpreter


class Pace:
    """Called between two pieces of work, by the thread that works.

    Args:
        is_hurried: whether there is no time for rests.
        cpu_ns: CPU time of the calling thread, ns. sleep: takes seconds.
    """

    def __init__(
        self,
        is_hurried: Callable[[], bool],
        *,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._is_hurried = is_hurried
        self._cpu_ns = cpu_ns
        self._sleep = sleep
        self._rested_ns = 0  # CPU time at the end of the last rest

    def __call__(self) -> None:
        """Rest, when there was work enough since the last rest."""
        if self._is_hurried():
            return
        worked_ns = self._cpu_ns() - self._rested_ns
        if worked_ns < STEP_NS:
            return
        self._sleep(min(worked_ns * REST_PER_WORK, REST_NS_MAX) / 1e9)
        self._rested_ns = self._cpu_ns()


def no_rest() -> None:
    """Go on at once: nobody is waiting for the interpreter."""
