"""An event loop whose time jumps to the next timer, and clocks that run too fast or too slow on it."""

from __future__ import annotations

import asyncio
import selectors


class JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: time jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen")
        self.now_s += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumping = JumpingSelector()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now_s


class DriftingClock:
    """Monotonic time that runs too fast or too slow."""

    def __init__(self, loop: VirtualLoop, *, rate: float, origin_s: float) -> None:
        self._loop = loop
        self._rate = rate
        self._origin_s = origin_s

    def monotonic_ns(self) -> int:
        return int((self._loop.time() * self._rate + self._origin_s) * 1_000_000_000)

    def wall_ns(self) -> int:
        return self.monotonic_ns()
