"""Whether more is asked of a process than it gets done, told by how long what ends has taken. Pure.

Rule 1: while even the quickest call that ended in a window took over TARGET_NS, calls wait for each other: a new one
        would only make all of them late. From then on as many may be open as end within TARGET_NS. Those that have
        come and that nobody has seen yet count as open, and what they wait before they are seen as time that they take.
Rule 2: that is over when a window passes in which nobody was refused, or when nothing ends any more.
Rule 3: calls that hang begin no limit: a partition without a leader holds up those who publish to it and nobody else.
        Nor does what ends first after all had hung: the oldest ones, which say nothing of those that come now.
Rule 4: few calls are no line (OPEN_MIN): where each takes long by itself, as on a slow disk, all are let in.
Rule 5: a line is also told by its length: where those that stand in it all through a window would take over TARGET_NS
        to end at the pace of that window, a limit begins before anyone has waited so long. Only while what ends takes
        twice as long as it did lately: calls to a far home are many at once and wait for nobody. And only where
        OPEN_MIN would end within TARGET_NS: of a few ends neither can be told, and what came after the last may hang.
Source: that a queue stands is told as by CoDel (RFC 8289): by the minimum over an interval, because bursts pass.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

TARGET_NS: Final = 500_000_000  # longer than the way round the world and two commits
WINDOW_NS: Final = 100_000_000
OPEN_MIN: Final = 64
EMPTY_WINDOWS_MAX: Final = 5  # without an end
WINDOWS_KEPT: Final = 100  # "lately"


class Begun(NamedTuple):
    """A call that was let in."""

    number: int
    began_ns: int


class StandingQueue:
    """The calls of one kind; times are monotonic nanoseconds."""

    def __init__(self) -> None:
        self.calls_open = 0
        self._open_max: int | None = None  # None: no queue stands
        self._began_ns = 0  # of this window
        self._done = 0
        self._refused = 0
        self._seen = 0
        self._waiting = 0
        self._quickest_ns = 0
        self._empty_windows = 0
        self._number = 0  # of the call that was let in last
        self._done_number = 0  # the highest of a call that did what it was asked for
        self._line = 0  # that stood when this window began
        self._lately: deque[int] = deque(maxlen=WINDOWS_KEPT)  # the quickest of each window in which calls ended

    def is_over(self, now_ns: int, *, waiting: int = 0) -> bool:
        """Return whether a new call is to be refused. `waiting`: how many have come that were not seen yet."""
        self._waiting = waiting
        self._turn(now_ns)
        self._seen += 1
        is_over = (
            self._open_max is not None and self.calls_open >= OPEN_MIN and self.calls_open + waiting >= self._open_max
        )
        self._refused += is_over
        return is_over

    def begin(self, now_ns: int) -> Begun:
        """Let a call in; give `end` what this returns."""
        self.calls_open += 1
        self._number += 1
        return Begun(self._number, now_ns)

    def end(self, call: Begun, now_ns: int, *, is_done: bool) -> None:
        """Note that a call has ended; one that did not do what it was asked for says nothing of how long that takes."""
        self._turn(now_ns)
        self.calls_open -= 1
        if is_done:
            self._done_number = max(self._done_number, call.number)
            took_ns = now_ns - call.began_ns
            self._quickest_ns = min(self._quickest_ns, took_ns) if self._done else took_ns
            self._done += 1

    def _turn(self, now_ns: int) -> None:
        """Judge the window when it is over, and begin another."""
        length_ns = now_ns - self._began_ns
        if length_ns < WINDOW_NS:
            return
        # Those that came behind one that has ended: what hangs is older, and in nobody's way.
        line = min(self.calls_open, self._number - self._done_number) + max(0, self._waiting)
        if self._done:
            had_hung, self._empty_windows = self._empty_windows >= EMPTY_WINDOWS_MAX, 0
            unseen_ns = self._waiting * length_ns // max(1, self._seen)
            is_slower = self._quickest_ns > 2 * min(self._lately, default=self._quickest_ns)
            in_target = self._done * TARGET_NS // length_ns
            is_told = is_slower and in_target >= OPEN_MIN
            line_ns = min(self._line, line) * length_ns // self._done if is_told else 0
            self._lately.append(self._quickest_ns)
            in_time = max(OPEN_MIN, in_target)
            if had_hung:
                self._open_max = None
            elif max(self._quickest_ns + unseen_ns, line_ns) > TARGET_NS:
                self._open_max = in_time
            elif self._open_max is not None:
                self._open_max = max(self._open_max, in_time) if self._refused else None
        else:
            self._empty_windows += length_ns // WINDOW_NS
            if self._empty_windows >= EMPTY_WINDOWS_MAX:
                self._open_max = None
        self._began_ns, self._done, self._refused, self._seen, self._line = now_ns, 0, 0, 0, line
