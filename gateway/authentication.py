"""Who may use the gateway: it has no users of its own and asks a broker, `GET /v1/whoami` in the caller's name.

Rule 1: what is forwarded carries the caller's `authorization`, and the broker decides; the gateway asks first only
        where it must not let anybody through that brokers would let in without credentials (`sign_in = "required"`).
Rule 2: a users file, where there is one, is asked first (gateway.guarded_users); whom it does not know a broker may.
Rule 3: what the gateway answers by itself about the whole mesh is for who may describe the cluster at a broker, asked
        by `HEAD /v1/status`: the gateway has no lists of its own either.
Rule 4: a good answer is remembered for REMEMBERED_S by HMAC under a key of this process, a bad one never.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol

import aiohttp
import structlog

from gateway.guarded_users import GuardedUsers
from gateway.routing.router import Router
from georelay.credentials import CLIENT_HEADER, Credentials
from georelay.errors import AccessDenied, GeorelayError, Unauthenticated, Unavailable

log = structlog.get_logger()

REMEMBERED_S: Final = 5.0
REMEMBERED_MAX: Final = 4_096
ASK_TIMEOUT_S: Final = 5.0
WATCH_S: Final = 2.0  # how often brokers are asked whether they require a sign-in
ANSWER_BYTES_MAX: Final = 64 * 1024
HTTP_UNAUTHENTICATED: Final = 401
HTTP_DENIED: Final = 403


class SignIn(Protocol):
    """Checks `authorization` headers without blocking the event loop."""

    @property
    def required(self) -> bool:
        """Return whether clients must sign in, as far as is known."""

    @property
    def checks_forwarded(self) -> bool:
        """Return whether what brokers check anyway is checked here first."""

    async def authenticate_header(self, authorization: str | None, client: str = "") -> str:
        """Return the user's name, "" for somebody who does not have to have one (Unauthenticated: wrong or missing).

        `client` is the caller's IP address, which failures are counted by, here and at brokers (Busy: too many wait).
        """

    async def check_describes_cluster(self, authorization: str | None, client: str = "") -> None:
        """Pass for who may see all of a broker's state (AccessDenied, Unauthenticated: somebody who may not)."""


class BrokerSignIn:
    """Sign-ins that brokers judge.

    Args:
        static: the users file, if any. always: whether nobody is let through without credentials.
    """

    def __init__(
        self,
        static: Credentials,
        *,
        router: Router,
        session: aiohttp.ClientSession,
        scheme: str = "http",
        always: bool = False,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._static = static
        self._users = GuardedUsers(static, monotonic_s=monotonic_s)
        self._router = router
        self._session = session
        self._scheme = scheme
        self._always = always
        self._monotonic_s = monotonic_s
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, tuple[float, str]] = {}  # HMAC -> (until, user)
        self._describers: dict[bytes, tuple[float, str]] = {}  # the same of those who may describe the cluster
        self._brokers_require = False
        self._watching: asyncio.Task[None] | None = None

    @property
    def required(self) -> bool:
        """Return whether clients must sign in, as far as is known."""
        return self._always or self._static.required or self._brokers_require

    @property
    def checks_forwarded(self) -> bool:
        """Return whether what brokers check anyway is checked here first."""
        return self._always or self._static.required

    def start(self) -> None:
        """Begin to watch whether brokers require a sign-in."""
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="sign-in-watch")

    async def close(self) -> None:
        """Stop."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._users.close()

    async def authenticate_header(self, authorization: str | None, client: str = "") -> str:
        """Return the user that a header signs in, "" where nobody has to.

        Raises:
            Unauthenticated: missing or wrong. Unavailable: no broker answered. Busy: too many sign-ins wait.
        """
        if authorization is None and self.checks_forwarded:
            raise Unauthenticated("sign in: send 'authorization: basic base64(user:password)' or 'bearer <token>'")
        return await self._remember(self._remembered, authorization, partial(self._judge, client=client))

    async def check_describes_cluster(self, authorization: str | None, client: str = "") -> None:
        """Pass for who may describe the cluster.

        Raises:
            Unauthenticated: missing or wrong. AccessDenied: not allowed. Unavailable: no broker answered. Busy: too
            many sign-ins wait.
        """
        await self.authenticate_header(authorization, client)
        await self._remember(self._describers, authorization, partial(self._look, client=client))

    async def _remember(
        self,
        answers: dict[bytes, tuple[float, str]],
        authorization: str | None,
        ask: Callable[[str | None], Awaitable[str]],
    ) -> str:
        """Return a good answer of the last REMEMBERED_S, or what `ask` answers."""
        digest = self._digest(authorization or "")
        known = answers.get(digest)
        if known is not None and self._monotonic_s() < known[0]:
            return known[1]
        answer = await ask(authorization)
        answers.pop(digest, None)
        answers[digest] = (self._monotonic_s() + REMEMBERED_S, answer)
        while len(answers) > REMEMBERED_MAX:
            del answers[next(iter(answers))]
        return answer

    def _digest(self, authorization: str) -> bytes:
        return hmac.digest(self._key, authorization.encode("utf-8", "surrogatepass"), "sha256")

    async def _judge(self, authorization: str | None, *, client: str) -> str:
        ask_brokers = partial(self._ask_who, authorization, client)
        if authorization is None or not self._static.required:
            return await ask_brokers()
        digest = self._digest(authorization)
        return await self._users.judge(authorization, digest=digest, client=client, ask_brokers=ask_brokers)

    async def _ask_who(self, authorization: str | None, client: str) -> str:
        answer = await self._ask(authorization, client)
        if self.checks_forwarded and not answer.get("sign_in_required"):
            raise Unauthenticated("wrong user or password")  # a broker that lets everybody in has judged nothing
        return str(answer.get("principal", "")) if answer.get("sign_in_required") else ""

    async def _look(self, authorization: str | None, *, client: str) -> str:
        """Return "" for who may describe the cluster."""
        async for status, raw in self._answers("HEAD", "/v1/status", authorization, client):
            if status == HTTP_UNAUTHENTICATED:
                raise Unauthenticated(_detail(raw))
            if status == HTTP_DENIED:
                raise AccessDenied.to("cluster")
            if status == 200:
                return ""
        raise Unavailable("no broker could say what you may see; try again")

    async def _answers(
        self, method: str, path: str, authorization: str | None, client: str
    ) -> AsyncIterator[tuple[int, bytes]]:
        """Yield what brokers answer, one after the other; those that do not answer are left out."""
        headers = {} if authorization is None else {"Authorization": authorization, CLIENT_HEADER: client}
        timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
        for broker in self._router.candidates():
            url = f"{self._scheme}://{broker.admin}{path}"
            try:
                async with self._session.request(
                    method, url, headers=headers, timeout=timeout, allow_redirects=False
                ) as answer:
                    raw = await answer.content.read(ANSWER_BYTES_MAX)
                    status = answer.status
            except (aiohttp.ClientError, TimeoutError):
                continue
            yield status, raw

    async def _ask(self, authorization: str | None, client: str = "") -> dict[str, Any]:
        async for status, raw in self._answers("GET", "/v1/whoami", authorization, client):
            if status == HTTP_UNAUTHENTICATED:
                self._brokers_require = True
                raise Unauthenticated(_detail(raw))
            document = _object(raw) if status == 200 else None
            if document is not None:
                self._brokers_require = bool(document.get("sign_in_required"))
                return document
        raise Unavailable("no broker could say who you are; try again")

    async def _watch(self) -> None:
        while True:
            try:
                await self._ask(None)
            except GeorelayError as error:
                log.debug("sign_in.watched", answer=error.code)
            await asyncio.sleep(WATCH_S)


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(raw)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _detail(raw: bytes) -> str:
    """Return what the broker said, or the same in our words."""
    document = _object(raw) or {}
    detail = document.get("detail")
    return detail[:200] if isinstance(detail, str) else "wrong or missing credentials"
