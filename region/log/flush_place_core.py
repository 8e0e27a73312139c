"""Where a flush cycle is done: by the flusher's thread, or on the event loop itself. Pure.

Handing a record to a thread and back costs the fight for the interpreter's lock twice, more than a quick disk takes
(0.1 to 0.2 ms). But how long a sync takes is known only afterwards, and meanwhile the loop does nothing else.

Rule 1: the thread does all cycles until the quickest of TRIED of them took at most SHORT_US. In the thread a sync seems
        longer than the disk takes: it waits for the interpreter's lock afterwards. So the quickest says what the disk
        can do.
Rule 2: the thread does at least the next TRIED after a cycle on the loop that took longer than LONG_US, and when TRIED
        of them took longer than MEAN_US in the mean. So a disk that becomes slow, or hangs, holds the loop once.
"""

from __future__ import annotations

from typing import Final

SHORT_US: Final = 1_000
MEAN_US: Final = 2_000
LONG_US: Final = 10_000
TRIED: Final = 32


class FlushPlace:
    """The place of the next cycle."""

    def __init__(self) -> None:
        self.is_on_loop = False
        self._tried = self._sum_us = 0
        self._least_us = LONG_US

    def took(self, sync_us: int) -> None:
        """Note for how long a cycle waited for the disk, in microseconds."""
        self._tried += 1
        self._sum_us += sync_us
        self._least_us = min(self._least_us, sync_us)
        if self.is_on_loop and sync_us > LONG_US:
            self.is_on_loop = False
            self._begin()
        elif self._tried == TRIED:
            self.is_on_loop = self._sum_us <= TRIED * MEAN_US if self.is_on_loop else self._least_us <= SHORT_US
            self._begin()

    def _begin(self) -> None:
        self._tried = self._sum_us = 0
        self._least_us = LONG_US
