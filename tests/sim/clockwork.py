"""The one heap of a simulated world, and the asyncio event loops that run on it.

Every broker has a `SimLoop`; all of them share one `Clockwork`. While a callback of a broker runs, that broker's loop
is asyncio's running loop, so the shipping code (futures, tasks, timeouts, executors) runs as it is.

Rule 1: nothing happens between two events, and an event takes no virtual time.
Rule 2: what a loop schedules for now runs in its next turn, as in asyncio; turns of different loops interleave by
virtual time, then by the order in which they were scheduled.
Rule 3: a dead loop's events are dropped: no `finally` of a crashed broker ever runs while the world lives.
Rule 4: a paused loop's events wait, in order, like those of a stopped process; so does its disk thread.
Rule 5: a timer that was set for later fires later, be it by a nanosecond; only one of 0 may fire at the same time.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final

from tests.sim.violation import RAISED, Violation

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
TURN_NS: Final = 3_000  # from a call_soon to its turn
THREAD_HOP_NS: Final = 30_000  # call_soon_threadsafe and executors
EVENTS_MAX: Final = 2_000_000  # of one `run_until`: a hundred times what the busiest world has

_set_running_loop = asyncio._set_running_loop
_running: list[SimLoop | None] = [None]  # what asyncio was told last: telling it costs a system call


def _run_as(loop: SimLoop | None) -> None:
    """Make `loop` asyncio's running one; None: no loop runs."""
    if _running[0] is not loop:
        _running[0] = loop
        _set_running_loop(loop)


class PowerCut(BaseException):
    """The disk stops in the middle of an operation: unwinds whatever the broker was doing."""


class UnexpectedError(Exception):
    """A callback or task of the shipping code raised something that nobody handled."""


Action = Callable[..., None]


class Clockwork:
    """Events by (virtual time, order of scheduling)."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.events = 0
        self._heap: list[tuple[int, int, SimLoop | None, Action, tuple[Any, ...]]] = []
        self._order = 0

    def at(self, when_ns: int, owner: SimLoop | None, action: Action, *arguments: Any) -> None:
        """Run `action` at a virtual time; as part of `owner` (dropped when it is dead, held while it is paused)."""
        self._order += 1
        heappush(self._heap, (when_ns, self._order, owner, action, arguments))

    def next_number(self) -> int:
        """Return a number that nothing else of this world has."""
        self._order += 1
        return self._order

    def after(self, delay_ns: int, action: Action, *arguments: Any) -> None:
        """Run `action` of the world itself after a delay."""
        self.at(self.now_ns + delay_ns, None, action, *arguments)

    def run_until(self, end_ns: int) -> None:
        """Run every event up to `end_ns`."""
        heap = self._heap
        events = 0
        try:
            while heap and heap[0][0] <= end_ns:
                when_ns, order, owner, action, arguments = heappop(heap)
                if owner is None:
                    _run_as(None)
                elif owner.dead:
                    continue
                elif owner.paused_until_ns > when_ns:
                    heappush(heap, (owner.paused_until_ns, order, owner, action, arguments))
                    continue
                self.now_ns = when_ns
                events += 1
                action(*arguments)
                if RAISED:
                    raise RAISED[0]
                if events > EVENTS_MAX:
                    raise Violation("endless", f"more than {EVENTS_MAX} events up to {when_ns / NS_PER_MS:.0f} ms")
        finally:
            self.events += events
            _run_as(None)
        self.now_ns = max(self.now_ns, end_ns)


class SimHandle(asyncio.TimerHandle):
    """A handle without the costs of asyncio's own: no copied context, no debug text."""

    __slots__ = ()

    def __init__(
        self,
        when_s: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._when = when_s
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._scheduled = False
        self._repr = None
        self._source_traceback = None

    def cancel(self) -> None:
        self._cancelled = True


class _Numbered:
    """Hashed by a number instead of an address, so that sets of it are walked in the same order in every process."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class SimFuture(_Numbered, asyncio.Future[Any]):
    """A future of a simulated loop."""


class SimTask(_Numbered, asyncio.Task[Any]):
    """A task of a simulated loop."""

    def __init__(self, coro: Any, *, number: int, **options: Any) -> None:
        self.number = number  # before asyncio puts it into its own sets
        super().__init__(coro, **options)


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of one life of one broker.

    Args:
        settled: called after every turn: the world looks whether all rules still hold.
        power_cut: called when the disk stopped in the middle of something.
    """

    def __init__(
        self,
        clockwork: Clockwork,
        *,
        drift: float = 0.0,
        settled: Callable[[], None],
        power_cut: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        self.dead = False
        super().__init__()
        self.clockwork = clockwork
        self.paused_until_ns = 0
        self.rate = 1.0 + drift
        self.turns = 0
        self._settled = settled
        self._power_cut = power_cut
        self._failed = failed
        self._soon: deque[SimHandle] = deque()
        self._turn_is_near = False

    def __del__(self) -> None:
        """Nothing is left open: there never was a selector."""

    # --- the parts of an event loop that asyncio and the brokers use ----------------------------------

    def is_running(self) -> bool:
        return not self.dead

    def is_closed(self) -> bool:
        return self.dead

    def get_debug(self) -> bool:
        return False

    def create_future(self) -> asyncio.Future[Any]:
        future = SimFuture(loop=self)
        future.number = self.clockwork.next_number()
        return future

    def create_task(  # type: ignore[override]
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        return SimTask(coro, number=self.clockwork.next_number(), loop=self, name=name or "sim", context=context)

    def set_debug(self, enabled: bool) -> None:
        """There is no debug mode."""

    def time(self) -> float:
        return self.monotonic_ns() / NS_PER_S

    def monotonic_ns(self) -> int:
        """Return this broker's monotonic clock, which may drift."""
        return int(self.clockwork.now_ns * self.rate)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = SimHandle(0.0, callback, args, self, context)
        self._soon.append(handle)
        if not self._turn_is_near:
            self._turn_is_near = True
            clockwork = self.clockwork
            clockwork.at(clockwork.now_ns + TURN_NS, self, self._near_turn)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = SimHandle(0.0, callback, args, self, context)
        self.clockwork.at(self.clockwork.now_ns + THREAD_HOP_NS, self, self._run_timer, handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        delay = max(delay, 0.0)
        handle = SimHandle(self.time() + delay, callback, args, self, context)
        clockwork = self.clockwork
        delay_ns = int(delay * NS_PER_S / self.rate)
        if not delay_ns and delay:
            delay_ns = 1  # of a fast clock's last nanosecond nothing is left: who waits for it would wait for ever
        clockwork.at(clockwork.now_ns + delay_ns, self, self._run_timer, handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_later(when - self.time(), callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future: asyncio.Future[Any] = self.create_future()
        self.clockwork.at(self.clockwork.now_ns + 2 * THREAD_HOP_NS, self, self._run_in_thread, future, func, args)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead and not RAISED:
            error = context.get("exception")
            self._failed(f"{context.get('message')}: {error!r}")

    # --- turns ----------------------------------------------------------------------------------------

    def run_now(self, callback: Callable[..., Any], *args: Any) -> None:
        """Run a callback from outside, such as the arrival of bytes, as a turn of its own."""
        self._soon.append(SimHandle(0.0, callback, args, self, None))
        self._turn()

    def _run_timer(self, handle: SimHandle) -> None:
        if not handle._cancelled:
            self._soon.append(handle)
            self._turn()

    def _near_turn(self) -> None:
        self._turn_is_near = False
        if self._soon:
            self._turn()

    def _turn(self) -> None:
        soon = self._soon
        if _running[0] is not self:
            _run_as(self)
        self.turns += 1
        try:
            for _ in range(len(soon)):
                handle = soon.popleft()
                if handle._cancelled:
                    continue
                context = handle._context
                if context is None:
                    handle._callback(*handle._args)
                else:
                    context.run(handle._callback, *handle._args)
        except PowerCut:
            self._power_cut()
            return
        if soon and not self._turn_is_near:
            self._turn_is_near = True
            self.clockwork.at(self.clockwork.now_ns + TURN_NS, self, self._near_turn)
        self._settled()

    def _run_in_thread(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Do the work of an executor's thread: no loop runs in it."""
        _run_as(None)
        try:
            result: Any = func(*args)
        except PowerCut:
            self._power_cut()
            return
        except Exception as error:
            self.call_soon_threadsafe(_fail, future, error)
            return
        self.call_soon_threadsafe(_resolve, future, result)

    def bury(self) -> None:
        """End this life: nothing of it runs any more."""
        self.dead = True


class SimExecutor(Executor):
    """The threads of one broker: every piece of work is an event of its own."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        """Do it soon; the result is a future of the loop."""
        return self._loop.run_in_executor(self, partial(fn, *args, **options))


def _resolve(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class SimClock:
    """Implements georelay.clock.Clock for one broker: drifts with its loop, and its wall time can jump or race."""

    def __init__(self, loop: SimLoop, *, wall_origin_ns: int) -> None:
        self.loop = loop
        self.wall_offset_ns = wall_origin_ns
        self.wall_rate = 1

    def wall_ns(self) -> int:
        return self.loop.monotonic_ns() * self.wall_rate + self.wall_offset_ns

    def monotonic_ns(self) -> int:
        return self.loop.monotonic_ns()
