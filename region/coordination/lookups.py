"""Answers of others, kept for a moment, for those who cannot wait for them: a first question has to be asked again.

Rule 1: an answer that is no longer fresh is given once more while it is asked for anew.
Rule 2: one question is under way once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

import structlog

from georelay.errors import CoordinatorLoading, GeorelayError

log = structlog.get_logger()

AGAIN_S: Final = 0.1  # after a question that failed
OLD_FACTOR: Final = 10  # an answer this many times older than a fresh one is no answer
_Q = TypeVar("_Q", bound=Hashable)


class Lookups(Generic[_Q]):
    """Numbers that others know.

    Args:
        ask: returns the answer; raises GeorelayError where there is none.
        kept_max: answers; the oldest go. kept_s: how long one is fresh.
    """

    def __init__(self, ask: Callable[[_Q], Awaitable[int]], *, kept_max: int, kept_s: float) -> None:
        self._ask = ask
        self._kept_max = kept_max
        self._kept_s = kept_s
        self._known: dict[_Q, tuple[float, int]] = {}  # with the loop time of the answer
        self._asking: dict[_Q, asyncio.Task[None]] = {}

    def find(self, question: _Q) -> int:
        """Return the newest answer.

        Raises:
            CoordinatorLoading: it is being asked for.
        """
        loop = asyncio.get_running_loop()
        known = self._known.get(question)
        age_s = OLD_FACTOR * self._kept_s if known is None else loop.time() - known[0]
        if age_s >= self._kept_s and question not in self._asking and len(self._asking) < self._kept_max:
            self._asking[question] = loop.create_task(self._learn(question), name="coordinators-lookup")
        if known is None or age_s >= OLD_FACTOR * self._kept_s:
            raise CoordinatorLoading("another broker is being asked who keeps that")
        return known[1]

    def close(self) -> None:
        """Ask no more."""
        for task in self._asking.values():
            task.cancel()

    async def _learn(self, question: _Q) -> None:
        try:
            answer = await self._ask(question)
            self._known.pop(question, None)
            self._known[question] = (asyncio.get_running_loop().time(), answer)
            while len(self._known) > self._kept_max:
                del self._known[next(iter(self._known))]
        except GeorelayError as error:
            log.debug("coordinators.lookup_failed", reason=str(error))
            await asyncio.sleep(AGAIN_S)
        finally:
            del self._asking[question]
