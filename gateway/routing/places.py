"""Places for what callers of a gateway have open towards brokers: connections of HTTP, streaming calls of gRPC.

Rule 1: a caller is let in while it has fewer than are free. One that takes all it can get has half of them, the next
        one a quarter: nobody takes the last ones from everybody else.
Rule 2: who is not let in waits in the line of its caller, for a while; callers with a line take turns.
Rule 3: a caller is a user once a broker has let it in, or else an address: whoever makes up names is one caller.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from georelay.credentials import parse_basic
from georelay.errors import Busy, Unauthenticated
from mesh.listening.admission_core import group_of

KNOWN_MAX: Final = 4_096


class Callers:
    """Whose place it is."""

    def __init__(self, *, required: Callable[[], bool]) -> None:
        """`required`: whether brokers ask who somebody is; where they do not, names mean nothing."""
        self._required = required
        self._users: dict[bytes, str] = {}  # digest of an authorization that a broker took -> whose it is

    def of(self, authorization: str | None, address: str) -> str:
        """Return the caller of a request that came from an address."""
        user = self._users.get(_digest(authorization)) if authorization is not None and self._required() else None
        return f"address {group_of(address)}" if user is None else user

    def let_in(self, authorization: str | None) -> None:
        """Note that a broker has let somebody in who said this."""
        if authorization is None or not self._required():
            return
        digest = _digest(authorization)
        if digest in self._users:
            return
        try:
            self._users[digest] = f"user {parse_basic(authorization)[0]}"
        except Unauthenticated:
            self._users[digest] = f"token {digest.hex()}"
        if len(self._users) > KNOWN_MAX:
            del self._users[next(iter(self._users))]


class Places:
    """So many of one kind."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._held: Counter[str] = Counter()
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def of(self, caller: str, *, patience_s: float) -> AsyncIterator[None]:
        """Hold a place of a caller.

        Raises:
            Busy: none came free for it in time; nothing was done.
        """
        if self._may_enter(caller):
            self._enter(caller)
        else:
            await self._wait(caller, patience_s)
        try:
            yield
        finally:
            self._leave(caller)

    def _may_enter(self, caller: str) -> bool:
        return self._held[caller] < self._free

    def _enter(self, caller: str) -> None:
        self._free -= 1
        self._held[caller] += 1

    def _leave(self, caller: str) -> None:
        self._free += 1
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]
        self._let_next_in()

    async def _wait(self, caller: str, patience_s: float) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(caller, deque()).append(turn)
        try:
            async with asyncio.timeout(patience_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._leave(caller)  # it was let in just then
            elif (line := self._lines.get(caller)) is not None and turn in line:
                self._drop(caller, line, turn)
            if isinstance(error, TimeoutError):
                raise Busy(f"{self._held[caller]} requests of this caller wait here already: try again later") from None
            raise

    def _drop(self, caller: str, line: deque[asyncio.Future[None]], turn: asyncio.Future[None]) -> None:
        line.remove(turn)
        if not line:
            del self._lines[caller]

    def _let_next_in(self) -> None:
        while (caller := next((caller for caller in self._lines if self._may_enter(caller)), None)) is not None:
            line = self._lines[caller]
            turn = line[0]
            self._lines.move_to_end(caller)
            self._drop(caller, line, turn)
            if not turn.done():  # or it has just given up
                self._enter(caller)
                turn.set_result(None)


def _digest(authorization: str) -> bytes:
    return hashlib.sha256(authorization.encode("utf-8", "surrogatepass")).digest()
