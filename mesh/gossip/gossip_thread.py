"""A thread with an event loop of its own: what a broker does must never make it look dead, nor the other way round."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

STOP_S: Final = 2.0


class GossipThread:
    """The thread. `start` and `stop` once each, from the main loop."""

    def __init__(self, name: str = "gossip") -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Run the loop."""
        self._thread.start()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the thread and return its result to the caller's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self.loop))

    async def call(self, work: Callable[[], T]) -> T:
        """Run a function in the thread's loop and return its result to the caller's loop."""

        async def called() -> T:
            return work()

        return await self.run(called)

    def post(self, work: Callable[..., object], *arguments: object) -> None:
        """Run a function in the thread's loop soon; nothing once that is closed."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(work, *arguments)

    async def stop(self) -> None:
        """End the loop and the thread."""
        self.post(self.loop.stop)
        await asyncio.to_thread(self._thread.join, STOP_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            pending = asyncio.all_tasks(self.loop)
            for task in pending:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()
