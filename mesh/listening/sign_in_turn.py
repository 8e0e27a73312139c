"""One sign-in at its turn: it waits for those that failed before it, and its own outcome counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from georelay.errors import Busy
from mesh.listening.sign_in_failures_core import SignInFailures


@dataclass(slots=True)
class Turn:
    """What came of it, for whoever judges to say."""

    has_failed: bool = False


@asynccontextmanager
async def sign_in_turn(
    failures: SignInFailures, address: str, name: str, monotonic_s: Callable[[], float]
) -> AsyncIterator[Turn]:
    """Let a name that failed at an address wait, then count the outcome.

    Raises:
        Busy: too many sign-ins of this name, or this address, wait already.
    """
    delay_s = failures.begin(address, name, monotonic_s())
    if delay_s is None:
        raise Busy("too many sign-ins from this address at a time; try again later")
    turn = Turn()
    try:
        if delay_s:
            await asyncio.sleep(delay_s)
        yield turn
    finally:
        failures.end(address, name, monotonic_s(), has_failed=turn.has_failed)
