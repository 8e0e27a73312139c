"""Who is it? Passwords, tokens and SCRAM exchanges to principals, for every listener of a broker.

Rule 1: users of the users file (scrypt) and of the mesh (SCRAM keys, tokens) sign in alike; the file goes first.
Rule 2: an unknown name costs as much, and looks the same, as a wrong password.
Rule 3: what was verified is remembered by HMAC under a key of this process, for one version of the user: a changed
        password, a disabled or expired user is refused at once. Who is remembered never waits for others' failures.
Rule 4: passwords are checked a few at a time in threads; a name that failed waits at its address (the /64 of an IPv6
        one, which somebody has whole), see sign_in_failures_core. Behind a gateway that is the address of its client,
        as the gateway says; see `client_of`.
"""

from __future__ import annotations

import asyncio
import collections
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Final, Protocol

from georelay.credentials import AUTHORIZATION_CHARS_MAX, PASSWORD_CHARS_MAX, USER_CHARS_MAX, parse_basic
from georelay.errors import Unauthenticated
from mesh.listening.admission_core import group_of
from mesh.listening.settings import is_loopback
from mesh.listening.sign_in_failures_core import SignInFailures
from mesh.listening.sign_in_turn import sign_in_turn
from region.controller.security_book import SecurityBook
from region.security.access import ANONYMOUS, Principal
from region.security.acl import USER_PREFIX
from region.security.scram_core import (
    ITERATIONS,
    REFUSED,
    ScramServer,
    fake_key,
    parse_client_first,
    password_matches,
)
from region.security.user import ITERATIONS_MAX, Mechanism, ScramKey, User

REMEMBERED_MAX: Final = 4_096
CHECKS_AT_ONCE_MAX: Final = 4
TOKEN_PREFIX: Final = "grt_"  # noqa: S105 - the begin of every token, so that scanners of leaked secrets find them
TOKEN_BYTES: Final = 32
SERVER_NONCE_BYTES: Final = 24
ADDRESS_CHARS_MAX: Final = 64  # of an IPv6 address and its zone
CLIENTS_KEPT: Final = 4_096  # whose address was read already: every call of a gateway names one
GATEWAY_PREFIX: Final = "gateway-"  # of the names in certificates that `georelay pki` makes for gateways
_PLAIN_MECHANISM: Final = Mechanism.SCRAM_SHA_256


class StaticUsers(Protocol):
    """The users of a file (georelay.credentials.Credentials)."""

    @property
    def required(self) -> bool:
        """Whether there is such a file."""

    def remembers(self, user: str, password: str) -> bool:
        """Return whether the password was right before."""

    async def authenticate(self, user: str, password: str) -> bool:
        """Return whether the password is right; the costly part runs in a thread."""


class Refusals(Protocol):
    """Where refused sign-ins are written down (the audit log)."""

    def sign_in_refused(self, *, host: str, user: str, how: str) -> None:
        """Note one; `user` is "" when the name is nobody's: people type passwords there."""


class _Unheard:
    def sign_in_refused(self, *, host: str, user: str, how: str) -> None:
        """Drop it."""


class SignInService:
    """Sign-ins of one broker.

    Args:
        static: the users file. book: the users of the mesh, as known now.
        always: whether clients must sign in although there are no users.
        wall_s: seconds since 1970. monotonic_s: from anywhere.
    """

    def __init__(
        self,
        static: StaticUsers,
        *,
        book: Callable[[], SecurityBook] = SecurityBook,
        always: bool = False,
        refusals: Refusals | None = None,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._static = static
        self._book = book
        self._always = always
        self._refusals: Refusals = refusals if refusals is not None else _Unheard()
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._failures = SignInFailures()
        self._key = secrets.token_bytes(32)
        self._fallback_secret = secrets.token_bytes(32)  # before the mesh has one: then it has no users either
        self._remembered: dict[bytes, bool] = {}
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE_MAX)
        self._checking: dict[bytes, asyncio.Task[bool]] = {}
        self._tokens_of = -1
        self._tokens: dict[bytes, tuple[str, int]] = {}  # hash -> (user, expiry)
        self._iterations_of = (-1, ITERATIONS)

    @property
    def required(self) -> bool:
        """Return whether clients have to sign in."""
        return self._always or self._static.required or self._book().has_users

    def anonymous(self, host: str) -> Principal:
        """Return the principal of somebody without credentials. Raises Unauthenticated where they are required."""
        if self.required:
            raise Unauthenticated("sign in: send 'authorization: basic base64(user:password)' or 'bearer <token>'")
        return Principal.of_user("", host=host)

    def is_active_user(self, name: str) -> bool:
        """Return whether the mesh has a user of that name that may sign in now."""
        return self._active_user(name) is not None

    def is_still_valid(self, principal: Principal) -> bool:
        """Return whether what a principal signed in by still stands; for connections and calls that stay open.

        Who did not have to sign in has to where users are there now; a user, or a token, may be gone or outlived.
        """
        if principal.name == ANONYMOUS.name:
            return not self.required
        if principal.token_hash:
            return self._owner_of(principal.token_hash) == principal.user
        if principal.is_user_of_mesh or self.is_user(principal.user):
            return self.is_active_user(principal.user)
        return True

    def is_user(self, name: str) -> bool:
        """Return whether the mesh has a user of that name."""
        return self._book().user(name) is not None

    async def password(
        self, user: str, password: str, *, host: str, how: str = "password", client: str = ""
    ) -> Principal:
        """Return the principal that a name and a password sign in; `client` is whose failures count, else `host`.

        Raises:
            Unauthenticated: the text does not tell an unknown name from a wrong password. Busy: too many wait.
        """
        if len(user) > USER_CHARS_MAX or len(password) > PASSWORD_CHARS_MAX:
            self._refused(client or host, "", how)
            raise Unauthenticated(REFUSED)
        if self._recall(user, password) is True or self._static.remembers(user, password):
            return self.principal_of(user, host=host)
        async with self.attempt(client or host, user, how=how):
            if not await self._is_right(user, password):
                raise Unauthenticated(REFUSED)
        return self.principal_of(user, host=host)

    def principal_of(self, user: str, *, host: str) -> Principal:
        """Return the principal of a user that has signed in now."""
        return replace(Principal.of_user(user, host=host), is_user_of_mesh=self.is_user(user))

    async def caller(
        self, authorization: str | None, *, certificate: str, host: str, reported: str | None = None
    ) -> Principal:
        """Return the principal of a call: of its `authorization`, else of the caller's certificate ("" without one).

        Args:
            reported: the CLIENT_HEADER of the call.

        Raises:
            Unauthenticated: wrong credentials, or none where they are required. Busy: too many wait.
        """
        if certificate and (authorization is None or not self.required):
            user = certificate.removeprefix(USER_PREFIX)
            if self.is_user(user) and not self.is_active_user(user):
                raise Unauthenticated("the user of this certificate is disabled or has expired")
            return Principal(name=certificate, host=host)
        return await self.header(authorization, host=host, client=client_of(host, reported, certificate=certificate))

    async def header(self, authorization: str | None, *, host: str, client: str = "") -> Principal:
        """Return the principal that an `authorization` header signs in; without one, see `anonymous`.

        Raises:
            Unauthenticated: missing, malformed or wrong. Busy: too many wait.
        """
        if authorization is None or not self.required:
            return self.anonymous(host)
        scheme, _, credentials = authorization.strip().partition(" ")
        if scheme.lower() == "bearer" and len(authorization) <= AUTHORIZATION_CHARS_MAX:
            return await self._bearer(credentials.strip(), host, client or host)
        user, password = parse_basic(authorization)
        return await self.password(user, password, host=host, how="basic", client=client)

    def scram(self, mechanism: Mechanism, client_first: bytes) -> ScramServer:
        """Return the exchange that a client's first message begins. Raises Unauthenticated: not such a message."""
        first = parse_client_first(client_first)
        user = self._active_user(first.user)
        key = None if user is None else user.key_for(mechanism)
        return ScramServer(
            first,
            key if key is not None else self._fake_key(mechanism, first.user),
            is_known=key is not None,
            nonce=secrets.token_urlsafe(SERVER_NONCE_BYTES),
        )

    @asynccontextmanager
    async def attempt(self, host: str, user: str, *, how: str) -> AsyncIterator[None]:
        """Let a name that failed at an address wait, and count the outcome: Unauthenticated inside is a failure.

        Raises:
            Busy: too many sign-ins of this name, or this address, wait already.
        """
        async with sign_in_turn(self._failures, group_of(host), user, self._monotonic_s) as turn:
            try:
                yield
            except Unauthenticated:
                turn.has_failed = True
                self._refused(host, user, how)
                raise

    async def _bearer(self, token: str, host: str, client: str) -> Principal:
        token_hash = hash_token(token)
        owner = self._owner_of(token_hash)
        if owner:
            return replace(Principal.of_user(owner, host=host), is_user_of_mesh=True, token_hash=token_hash)
        async with self.attempt(client, self._tokens.get(token_hash, ("", 0))[0], how="bearer"):
            raise Unauthenticated("wrong or expired token")

    def _owner_of(self, token_hash: bytes) -> str:
        """Return whom a token signs in now, "" for nobody."""
        book = self._book()
        if self._tokens_of != book.index:
            self._tokens = {t.hash: (user.name, t.expires_s) for user in book.users() for t in user.tokens}
            self._tokens_of = book.index
        owner, expires_s = self._tokens.get(token_hash, ("", 0))
        return owner if self._wall_s() < expires_s and self._active_user(owner) is not None else ""

    async def _is_right(self, user: str, password: str) -> bool:
        if self._static.required and await self._is_of_file(user, password):
            return True
        known = self._recall(user, password)
        if known is not None:
            return known
        digest = self._digest(user, password)
        checking = self._checking.get(digest)
        if checking is None:  # a hundred clients that start together cost one check
            checking = asyncio.get_running_loop().create_task(self._checked(user, password, digest))
            self._checking[digest] = checking
            checking.add_done_callback(lambda _: self._checking.pop(digest, None))
        return await asyncio.shield(checking)

    async def _is_of_file(self, user: str, password: str) -> bool:
        """Return whether the users file has them; a password that it does not remember waits for its turn."""
        if self._static.remembers(user, password):
            return True
        async with self._checks:
            return await self._static.authenticate(user, password)

    async def _checked(self, user: str, password: str, digest: bytes) -> bool:
        found = self._active_user(user)
        key = _plain_key(found) if found is not None else None
        checked = key if key is not None else self._fake_key(_PLAIN_MECHANISM, user)
        async with self._checks:
            is_right = await asyncio.to_thread(password_matches, checked, password) and key is not None
        self._remembered[digest] = is_right
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.pop(next(iter(self._remembered)))
        return is_right and self._active_user(user) is not None

    def _recall(self, user: str, password: str) -> bool | None:
        known = self._remembered.get(self._digest(user, password))
        if known and self._active_user(user) is None:
            return False  # outlived since
        return known

    def _digest(self, user: str, password: str) -> bytes:
        found = self._book().user(user)
        version = 0 if found is None else found.index
        name = user.encode("utf-8", "surrogatepass")
        text = version.to_bytes(8, "big") + len(name).to_bytes(4, "big") + name
        return hmac.digest(self._key, text + password.encode("utf-8", "surrogatepass"), "sha256")

    def _active_user(self, name: str) -> User | None:
        user = self._book().user(name)
        return user if user is not None and user.is_active(self._wall_s()) else None

    def _fake_key(self, mechanism: Mechanism, user: str) -> ScramKey:
        book = self._book()
        if self._iterations_of[0] != book.index:
            counts = collections.Counter(key.iterations for known in book.users() for key in known.keys)
            most = counts.most_common(1)
            self._iterations_of = (book.index, min(most[0][0], ITERATIONS_MAX) if most else ITERATIONS)
        secret = book.secret() or self._fallback_secret
        return fake_key(mechanism, user, secret=secret, iterations=self._iterations_of[1])

    def _refused(self, host: str, user: str, how: str) -> None:
        self._refusals.sign_in_refused(host=host, user=user if self.is_user(user) else "", how=how)


def client_of(host: str, reported: str | None, *, certificate: str) -> str:
    """Return the address of who sends a call: what a gateway reports, else where the call comes from.

    A gateway is known by its certificate. Without TLS everybody is on this machine, and may have any loopback address.
    """
    if reported is None or not (certificate.startswith(USER_PREFIX + GATEWAY_PREFIX) or is_loopback(host)):
        return host
    return (_written(reported) if len(reported) <= ADDRESS_CHARS_MAX else "") or host


@lru_cache(CLIENTS_KEPT)
def _written(address: str) -> str:
    """Return an IP address as it is written everywhere, "" for what is none."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return ""


def new_token() -> str:
    """Return a token that nobody can guess: 256 random bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def hash_token(token: str) -> bytes:
    """Return what is stored of a token; it is random, so no salt and no slow hash is needed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _plain_key(user: User) -> ScramKey | None:
    """Return the key to check a password that was sent: any will do, the first is SHA-256 where there is one."""
    return user.keys[0] if user.keys else None
