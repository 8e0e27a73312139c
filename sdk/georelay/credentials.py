"""Who may sign in: a file of names and salted scrypt hashes, and a check that costs microseconds after the first time.

Rule 1: passwords are never stored, logged or compared in a time that tells anything about them.
Rule 2: what was verified is remembered by HMAC under a key that this process made and never shows; a dump of the
memory of the cache does not give passwords, and the cache is bounded.
Rule 3: an unknown name costs as much as a wrong password.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from georelay.errors import ConfigError, Unauthenticated

SCRYPT_COST: Final = 2**14  # 16 MiB and about 40 ms for each first check
SCRYPT_BLOCK: Final = 8
SCRYPT_MEMORY_BYTES_MAX: Final = 64 * 1024 * 1024
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
USERS_MAX: Final = 10_000
USERS_FILE_BYTES_MAX: Final = 4 * 1024 * 1024
USER_CHARS_MAX: Final = 128
PASSWORD_CHARS_MIN: Final = 8  # of passwords that are set; shorter ones of older files go on signing in
PASSWORD_CHARS_MAX: Final = 1_024
AUTHORIZATION_CHARS_MAX: Final = 8_192
REMEMBERED_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class _User:
    salt: bytes
    scrypt: bytes


_NOBODY: Final = _User(salt=bytes(SALT_BYTES), scrypt=bytes(HASH_BYTES))


GIVEN_CHARS_MAX: Final = USER_CHARS_MAX + PASSWORD_CHARS_MAX + 3
CLIENT_HEADER: Final = "Georelay-Client"
"""In what a gateway passes on: the IP address of its client. Failed sign-ins are counted by it."""


class Credentials:
    """The users of one mesh. With no users at all nobody has to sign in."""

    def __init__(self, users: Mapping[str, _User], *, required: bool) -> None:
        self._users = dict(users)
        self._required = required
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, bool] = {}  # HMAC of (user, password) -> verdict

    @classmethod
    def load(cls, path: Path | str | None) -> Credentials:
        """Read a users file; None or "" means that nobody has to sign in.

        Raises:
            ConfigError: the file cannot be read or is not a users file. An empty list of users lets nobody in.
        """
        if path is None or str(path) == "":
            return cls({}, required=False)
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read the users file {path}: {error.strerror}") from error
        try:
            return cls(_read_users(raw), required=True)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigError(f"{path} is not a users file: {error}") from error

    @property
    def required(self) -> bool:
        """Return whether clients have to sign in."""
        return self._required

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the users."""
        return frozenset(self._users)

    def verify(self, user: str, password: str) -> bool:
        """Return whether the password is the user's. Blocks about 40 ms the first time, microseconds later."""
        if len(user) > USER_CHARS_MAX or len(password) > PASSWORD_CHARS_MAX:
            return False
        digest = self._digest(user, password)
        known = self._remembered.get(digest)
        if known is not None:
            return known
        found = self._users.get(user, _NOBODY)
        right = hmac.compare_digest(_scrypt(password, found.salt), found.scrypt) and found is not _NOBODY
        self._remember(digest, right)
        return right

    def remembers(self, user: str, password: str) -> bool:
        """Return whether the password was right before; microseconds."""
        if len(user) > USER_CHARS_MAX or len(password) > PASSWORD_CHARS_MAX:
            return False
        return self._remembered.get(self._digest(user, password), False)

    async def authenticate(self, user: str, password: str) -> bool:
        """Return what `verify` returns; the slow first time runs in a thread and leaves the event loop alone."""
        if len(user) <= USER_CHARS_MAX and len(password) <= PASSWORD_CHARS_MAX:
            known = self._remembered.get(self._digest(user, password))
            if known is not None:
                return known
        return await asyncio.to_thread(self.verify, user, password)

    async def authenticate_header(self, authorization: str | None) -> str:
        """Return the name of the user that an `authorization` header signs in; "" when nobody has to.

        Raises:
            Unauthenticated: missing, malformed or wrong; the text does not tell an unknown name from a wrong password.
        """
        if not self._required:
            return ""
        if authorization is None:
            raise Unauthenticated("sign in: send 'authorization: basic base64(user:password)'")
        user, password = parse_basic(authorization)
        if not await self.authenticate(user, password):
            raise Unauthenticated("wrong user or password")
        return user

    def _digest(self, user: str, password: str) -> bytes:
        name = user.encode("utf-8", "surrogatepass")
        text = len(name).to_bytes(4, "big") + name + password.encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, text, "sha256")

    def _remember(self, digest: bytes, right: bool) -> None:
        self._remembered[digest] = right
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.pop(next(iter(self._remembered)), None)  # the oldest; another thread may have been first


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        password.encode("utf-8", "surrogatepass"),
        salt=salt,
        n=SCRYPT_COST,
        r=SCRYPT_BLOCK,
        p=1,
        maxmem=SCRYPT_MEMORY_BYTES_MAX,
        dklen=HASH_BYTES,
    )


def _read_users(raw: bytes) -> dict[str, _User]:
    if len(raw) > USERS_FILE_BYTES_MAX:
        raise ValueError(f"{len(raw)} bytes are over {USERS_FILE_BYTES_MAX}")
    listed = json.loads(raw)["users"]
    if not isinstance(listed, list) or len(listed) > USERS_MAX:
        raise ValueError(f"'users' is not a list of at most {USERS_MAX}")
    users = {}
    for entry in listed:
        name = entry["name"]
        user = _User(salt=base64.b64decode(entry["salt_b64"], validate=True), scrypt=_hash(entry["scrypt_b64"]))
        check_user_name(name)
        if name in users:
            raise ValueError(f"user {name!r} is listed twice")
        users[name] = user
    return users


def _hash(text: str) -> bytes:
    value = base64.b64decode(text, validate=True)
    if len(value) != HASH_BYTES:
        raise ValueError(f"a hash has {len(value)} bytes, not {HASH_BYTES}")
    return value


def check_user_name(name: object) -> None:
    """Raise ValueError unless `name` is 1..128 printable characters without a colon."""
    if not isinstance(name, str) or not 0 < len(name) <= USER_CHARS_MAX or ":" in name or not name.isprintable():
        raise ValueError(f"a user's name is 1..{USER_CHARS_MAX} printable characters without ':'")


def parse_basic(authorization: str) -> tuple[str, str]:
    """Return (user, password) of an HTTP or gRPC `authorization` value "basic base64(user:password)".

    Raises:
        Unauthenticated: anything else; the text holds nothing of what was sent.
    """
    if len(authorization) > AUTHORIZATION_CHARS_MAX:
        raise Unauthenticated(f"the authorization header is over {AUTHORIZATION_CHARS_MAX} characters")
    scheme, _, encoded = authorization.strip().partition(" ")
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True).decode("utf-8")
    except ValueError:
        decoded = ""
    user, colon, password = decoded.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise Unauthenticated("the authorization header is not 'basic base64(user:password)'")
    return user, password


def given_credentials(text: str) -> tuple[str, str]:
    """Return name and password of what a person gave: "NAME:PASSWORD", or "@FILE" whose first line is that.

    A command line is shown to every user of a host, a file need not be; "@-" is standard input.

    Raises:
        ConfigError: no such file, no colon, no name or no password; the text never shows one.
    """
    what = "--user"
    if text.startswith("@"):
        what = "the first line of standard input" if text == "@-" else f"the first line of {text[1:]}"
        try:
            if text == "@-":
                text = sys.stdin.readline(GIVEN_CHARS_MAX)
            else:
                with open(text[1:], encoding="utf-8") as file:
                    text = file.readline(GIVEN_CHARS_MAX)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"--user: cannot read {what}: {reason}") from None
    name, _, password = text.rstrip("\r\n").partition(":")
    if not name or not password:
        raise ConfigError(f"{what} must be NAME:PASSWORD, both not empty; --user @FILE reads it from a file")
    return name, password


def basic(user: str, password: str) -> str:
    """Return the `authorization` value that signs `user` in."""
    return "basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def write_users_file(path: Path, passwords: Mapping[str, str]) -> None:
    """Write a users file that only its owner can read (mode 0600), replacing an old one as a whole.

    Raises:
        ConfigError: a name or password that is not allowed, or the file cannot be written.
    """
    users = []
    for name, password in passwords.items():
        try:
            check_user_name(name)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if not 0 < len(password) <= PASSWORD_CHARS_MAX:
            raise ConfigError(f"the password of {name} is empty or over {PASSWORD_CHARS_MAX} characters")
        salt = secrets.token_bytes(SALT_BYTES)
        encoded = (base64.b64encode(value).decode("ascii") for value in (salt, _scrypt(password, salt)))
        users.append({"name": name, "salt_b64": next(encoded), "scrypt_b64": next(encoded)})
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump({"users": users}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write the users file {path}: {error.strerror}") from error
