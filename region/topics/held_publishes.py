"""Publishes that come while the leader hands over: they wait until that is decided, in their order.

A hand-over takes as long as its heir needs to have everything, on a busy machine up to an election timeout; then the
leader serves on. Refused meanwhile, a batch would come back behind those that its client has sent after it.

Rule 1: what is held is decided together: stored in its order when the leader serves on, refused when it leads no more.
        Where one is refused for now, all behind it are: alone they would be gaps in their producers' sequences.
Rule 2: what comes while something is held waits behind it.
Rule 3: bounded in batches and bytes; beyond that a publish is refused, and so is what follows it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from georelay.errors import Busy, GeorelayError, Retry
from georelay.limits import MIB
from region.kafka.ports import Publish, Published
from region.multiraft.machine import HandingOver

LOOK_S: Final = 0.01
HELD_MAX: Final = 1_000
HELD_BYTES_MAX: Final = 8 * MIB


class _Held(NamedTuple):
    publish: Publish
    answer: asyncio.Future[Published]


class HeldPublishes:
    """Those of one stream. `store` appends one, or says that the leader hands over."""

    def __init__(self, store: Callable[[Publish], asyncio.Future[Published]]) -> None:
        self._store = store
        self._held: deque[_Held] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def publish(self, publish: Publish) -> asyncio.Future[Published]:
        """Store a batch now, or as soon as it is decided who leads. Raises what `store` raises; Busy."""
        if not self._held:
            try:
                return self._store(publish)
            except HandingOver:
                pass  # it is held, below, until that is decided
        elif len(self._held) >= HELD_MAX or self._bytes + len(publish.raw) > HELD_BYTES_MAX:
            raise Busy(f"{len(self._held)} batches wait until the leadership is handed over")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Published] = loop.create_future()
        self._held.append(_Held(publish.kept(), answer))
        self._bytes += len(publish.raw)
        if self._timer is None:
            self._timer = loop.call_later(LOOK_S, self.look)
        return answer

    def look(self) -> None:
        """Publish what is held, or refuse it, if that is decided by now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._held:
            held = self._held[0]
            try:
                stored = self._store(held.publish)
            except HandingOver:
                self._timer = asyncio.get_running_loop().call_later(LOOK_S, self.look)
                return
            except GeorelayError as error:
                for _ in range(1 if error.retry is Retry.NEVER else len(self._held)):
                    _refuse(self._taken().answer, error)
            else:
                stored.add_done_callback(partial(_pass_on, self._taken().answer))

    def _taken(self) -> _Held:
        held = self._held.popleft()
        self._bytes -= len(held.publish.raw)
        return held


def _pass_on(answer: asyncio.Future[Published], stored: asyncio.Future[Published]) -> None:
    if answer.done():
        return
    if stored.cancelled():
        answer.cancel()
    elif (error := stored.exception()) is not None:
        _refuse(answer, error)
    else:
        answer.set_result(stored.result())


def _refuse(answer: asyncio.Future[Published], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # that nobody waits for it any more is no error
