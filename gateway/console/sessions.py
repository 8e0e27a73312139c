"""Sessions of browsers: a cookie instead of credentials in every request. State of one process; time is an argument.

Rule 1: a session begins with credentials that a broker took; it acts with those, so a right or a user that is taken
        away is gone at once. They stay in memory, and leave it with the session.
Rule 2: the cookie is a random number of 256 bits, kept here by its digest only.
Rule 3: what changes anything needs the session's second number as a header, which no page of another site can know.
Rule 4: a session ends after IDLE_S without a request, after LIFE_S in any case, and when the gateway ends. Of one user
        there are SESSIONS_OF_USER_MAX: one more ends the one that was used least recently, and nobody else's.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from georelay.errors import Busy

IDLE_S: Final = 1_800.0
LIFE_S: Final = 43_200.0
SESSIONS_MAX: Final = 1_000
SESSIONS_OF_USER_MAX: Final = 20
NUMBER_BYTES: Final = 32


@dataclass(slots=True, kw_only=True)
class Session:
    """One browser that signed in. `authorization`: the header that it stands for; `token`: see rule 3."""

    user: str
    authorization: str
    token: str
    is_read_only: bool
    began_s: float
    seen_s: float

    def may_change(self, token: str) -> bool:
        """Return whether a request with this header may change something."""
        return not self.is_read_only and hmac.compare_digest(token.encode(), self.token.encode())


class Sessions:
    """Args:
    monotonic_s: clock. random_hex: returns so many random bytes as hexadecimal digits.
    """

    def __init__(self, *, monotonic_s: Callable[[], float], random_hex: Callable[[int], str]) -> None:
        self._monotonic_s = monotonic_s
        self._random_hex = random_hex
        self._sessions: dict[bytes, Session] = {}

    def begin(self, *, user: str, authorization: str, is_read_only: bool) -> tuple[str, Session]:
        """Return (the cookie, the session). Raises Busy: there are too many."""
        now_s = self._monotonic_s()
        self._forget_ended(now_s)
        own = [digest for digest, session in self._sessions.items() if session.user == user]
        if len(own) >= SESSIONS_OF_USER_MAX:
            del self._sessions[min(own, key=lambda digest: self._sessions[digest].seen_s)]
        if len(self._sessions) >= SESSIONS_MAX:
            raise Busy(f"{SESSIONS_MAX} people are signed in here; try again later, or at another gateway")
        cookie = self._random_hex(NUMBER_BYTES)
        session = Session(
            user=user,
            authorization=authorization,
            token=self._random_hex(NUMBER_BYTES),
            is_read_only=is_read_only,
            began_s=now_s,
            seen_s=now_s,
        )
        self._sessions[_digest(cookie)] = session
        return cookie, session

    def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie, which goes on by that."""
        session = self._sessions.get(_digest(cookie))
        if session is None:
            return None
        now_s = self._monotonic_s()
        if _has_ended(session, now_s):
            self.end(cookie)
            return None
        session.seen_s = now_s
        return session

    def end(self, cookie: str) -> None:
        """Forget a session."""
        self._sessions.pop(_digest(cookie), None)

    def _forget_ended(self, now_s: float) -> None:
        for digest in [digest for digest, session in self._sessions.items() if _has_ended(session, now_s)]:
            del self._sessions[digest]


def _has_ended(session: Session, now_s: float) -> bool:
    return now_s - session.seen_s > IDLE_S or now_s - session.began_s > LIFE_S


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).digest()
