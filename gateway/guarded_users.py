"""The users file of a gateway, kept from who guesses at it: its users are mostly those that may do everything, and each
password that is looked at costs 40 ms and 16 MiB.

Rule 1: failures count as at a broker (mesh.listening.sign_in_failures_core). Whom the file does not know and a broker
        lets in has not failed. Everybody else has, also where no broker could judge: who keeps brokers busy would
        guess at the file for nothing.
Rule 2: CHECKS_AT_ONCE_MAX passwords are looked at, and CHECKS_IN_LINE_MAX are in line for it; more are refused.
Rule 3: the same credentials from one address are judged once, however many send them, and to the end, also when all of
        them have left: an answer that nobody waits for counts as well.
Rule 4: who was let in before waits for nobody's failures: the file remembers its users, and brokers judge theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from georelay.credentials import PASSWORD_CHARS_MAX, USER_CHARS_MAX, Credentials, parse_basic
from georelay.errors import Busy, Unauthenticated
from mesh.listening.admission_core import group_of
from mesh.listening.sign_in_failures_core import SignInFailures
from mesh.listening.sign_in_turn import sign_in_turn

CHECKS_AT_ONCE_MAX: Final = 4  # fewer than the default executor has threads
CHECKS_IN_LINE_MAX: Final = 256  # about 5 s of two cores
OF_BROKERS_MAX: Final = 4_096


class GuardedUsers:
    """The users of a file, and how often somebody may try to be one. `monotonic_s`: from anywhere."""

    def __init__(self, users: Credentials, *, monotonic_s: Callable[[], float]) -> None:
        self._users = users
        self._monotonic_s = monotonic_s
        self._failures = SignInFailures(bounds_free=True)
        self._turns = asyncio.Semaphore(CHECKS_AT_ONCE_MAX)
        self._in_line = 0
        self._judging: dict[tuple[bytes, str], asyncio.Task[str]] = {}  # by credentials and address
        self._of_brokers: dict[bytes, None] = {}  # credentials that a broker took and the file does not know

    async def close(self) -> None:
        """End what is being judged."""
        judging = tuple(self._judging.values())
        for task in judging:
            task.cancel()
        await asyncio.gather(*judging, return_exceptions=True)

    async def judge(
        self, authorization: str, *, digest: bytes, client: str, ask_brokers: Callable[[], Awaitable[str]]
    ) -> str:
        """Return whom an `authorization` signs in: a user of the file, or whom `ask_brokers` returns.

        Args:
            digest: of the authorization, under a key that nobody else has. client: the IP address that it came from.

        Raises:
            Unauthenticated: neither knows it. Busy: too many sign-ins wait. What `ask_brokers` raises.
        """
        given = _name_and_password(authorization)
        if given is None or digest in self._of_brokers:
            return await ask_brokers()
        user, password = given
        if self._users.remembers(user, password):
            return user
        key = (digest, group_of(client))
        task = self._judging.get(key)
        if task is None:
            judged = self._judged(user, password, digest=digest, address=key[1], ask_brokers=ask_brokers)
            task = self._judging[key] = asyncio.get_running_loop().create_task(judged, name="users-file")
            task.add_done_callback(lambda _: self._judging.pop(key, None))
        return await asyncio.shield(task)

    async def _judged(
        self, user: str, password: str, *, digest: bytes, address: str, ask_brokers: Callable[[], Awaitable[str]]
    ) -> str:
        async with sign_in_turn(self._failures, address, user, self._monotonic_s) as turn:
            if await self._is_right(user, password):
                return user
            turn.has_failed = True
            answer = await ask_brokers()
            turn.has_failed = False
        self._of_brokers[digest] = None
        while len(self._of_brokers) > OF_BROKERS_MAX:
            del self._of_brokers[next(iter(self._of_brokers))]
        return answer

    async def _is_right(self, user: str, password: str) -> bool:
        """Look at a password when it is its turn. Raises Busy: too many are in line."""
        if self._in_line >= CHECKS_IN_LINE_MAX:
            raise Busy("too many sign-ins at a time; try again later")
        self._in_line += 1
        try:
            async with self._turns:
                return await self._users.authenticate(user, password)
        finally:
            self._in_line -= 1


def _name_and_password(authorization: str) -> tuple[str, str] | None:
    """Return what a basic `authorization` says, None for anything that no user of a file can have sent."""
    if authorization[:6].lower() != "basic ":
        return None
    try:
        user, password = parse_basic(authorization)
    except Unauthenticated:
        return None
    return (user, password) if len(user) <= USER_CHARS_MAX and len(password) <= PASSWORD_CHARS_MAX else None
