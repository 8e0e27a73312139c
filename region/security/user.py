"""A user as the mesh stores it: keys that check a password, never one that is it.

SCRAM keys are those of RFC 5802: `stored_key` checks a proof, `server_key` signs the answer. Both are made from the
password with a salt of the user's own; whoever reads them cannot sign in with them, but must not read them either.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field, replace
from typing import Final

from georelay.credentials import USER_CHARS_MAX
from georelay.fields import INT64_MAX, FieldError, Fields, JsonObject

SALT_BYTES: Final = 16
SALT_BYTES_MIN: Final = 1  # what an admin client of Kafka may choose; a long one is better
OLDER_SALT_BYTES_MIN: Final = 8  # of versions below SHORT_SALT_LEVEL: they cannot read a key with a shorter one
SHORT_SALT_LEVEL: Final = 6  # feature level
SALT_BYTES_MAX: Final = 128  # what admin clients of Kafka may choose
ITERATIONS_MIN: Final = 4_096  # RFC 7677
ITERATIONS_MAX: Final = 100_000  # the client pays; so does PLAIN, once per connection at most
TOKENS_PER_USER_MAX: Final = 8
TOKEN_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,64}")
TOKEN_HASH_BYTES: Final = 32
_HEX: Final = re.compile(r"([0-9a-f]{2})*")


class Mechanism(enum.StrEnum):
    """SCRAM with one of two hashes; the value is the name on the wire (RFC 5802, RFC 7677)."""

    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        """Return the name for hashlib."""
        return "sha256" if self is Mechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        """Return the length of a key."""
        return 32 if self is Mechanism.SCRAM_SHA_256 else 64

    @property
    def kafka_code(self) -> int:
        """Return Kafka's ScramMechanism (KIP-554)."""
        return 1 if self is Mechanism.SCRAM_SHA_256 else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramKey:
    """What checks one user's password by one mechanism."""

    mechanism: Mechanism
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def to_json(self) -> JsonObject:
        """Return the JSON of a definition."""
        return {
            "mechanism": self.mechanism.value,
            "salt": self.salt.hex(),
            "iterations": self.iterations,
            "stored_key": self.stored_key.hex(),
            "server_key": self.server_key.hex(),
        }

    @classmethod
    def from_json(cls, value: object) -> ScramKey:
        """Read what `to_json` made. Raises FieldError."""
        fields = Fields(value, "key")
        mechanism = fields.member("mechanism", Mechanism)
        salt = fields.text("salt", chars_min=2 * SALT_BYTES_MIN, chars_max=2 * SALT_BYTES_MAX, pattern=_HEX)
        key = cls(
            mechanism=mechanism,
            salt=bytes.fromhex(salt),
            iterations=fields.integer("iterations", low=ITERATIONS_MIN, high=ITERATIONS_MAX),
            stored_key=fields.blob("stored_key", size_bytes=mechanism.key_bytes),
            server_key=fields.blob("server_key", size_bytes=mechanism.key_bytes),
        )
        fields.done()
        return key


@dataclass(frozen=True, slots=True, kw_only=True)
class BearerToken:
    """A token that signs its owner in: only the SHA-256 of it is kept. `expires_s`: seconds since 1970."""

    name: str
    hash: bytes = field(repr=False)
    expires_s: int

    def to_json(self) -> JsonObject:
        """Return the JSON of a definition."""
        return {"name": self.name, "hash": self.hash.hex(), "expires_s": self.expires_s}

    @classmethod
    def from_json(cls, value: object) -> BearerToken:
        """Read what `to_json` made. Raises FieldError."""
        fields = Fields(value, "token")
        token = cls(
            name=fields.text("name", chars_max=64, pattern=TOKEN_NAME),
            hash=fields.blob("hash", size_bytes=TOKEN_HASH_BYTES),
            expires_s=fields.integer("expires_s", low=1, high=INT64_MAX),
        )
        fields.done()
        return token


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user of the whole mesh.

    Args:
        keys: at most one per mechanism; without any the user signs in by token or certificate only.
        expires_s: seconds since 1970 from which on nothing of it signs in, 0: never.
        index: where it stands among the definitions of the mesh, 0 before it is ordered.
    """

    name: str
    keys: tuple[ScramKey, ...] = ()
    is_enabled: bool = True
    expires_s: int = 0
    tokens: tuple[BearerToken, ...] = ()
    index: int = 0

    @property
    def key(self) -> str:
        """Return what is unique to it among definitions of its kind."""
        return self.name

    def key_for(self, mechanism: Mechanism) -> ScramKey | None:
        """Return the key of a mechanism."""
        return next((key for key in self.keys if key.mechanism is mechanism), None)

    def is_active(self, now_s: float) -> bool:
        """Return whether it may sign in at `now_s` (seconds since 1970)."""
        return self.is_enabled and (self.expires_s == 0 or now_s < self.expires_s)

    def with_keys(self, keys: tuple[ScramKey, ...]) -> User:
        """Return the user with these keys in place of its own of the same mechanisms."""
        new = {key.mechanism: key for key in (*self.keys, *keys)}
        return replace(self, keys=tuple(new[mechanism] for mechanism in sorted(new)))

    def to_json(self) -> JsonObject:
        """Return the JSON of a definition."""
        return {
            "name": self.name,
            "keys": [key.to_json() for key in self.keys],
            "enabled": self.is_enabled,
            "expires_s": self.expires_s,
            "tokens": [token.to_json() for token in self.tokens],
            "index": self.index,
        }

    @classmethod
    def from_json(cls, value: object) -> User:
        """Read what `to_json` made. Raises FieldError."""
        fields = Fields(value, "user")
        user = cls(
            name=read_user_name(fields, "name"),
            keys=tuple(ScramKey.from_json(item) for item in fields.items("keys", count_max=len(Mechanism))),
            is_enabled=fields.flag("enabled"),
            expires_s=fields.integer("expires_s", low=0, high=INT64_MAX),
            tokens=tuple(BearerToken.from_json(item) for item in fields.items("tokens", count_max=TOKENS_PER_USER_MAX)),
            index=fields.integer("index", low=0, high=INT64_MAX),
        )
        fields.done()
        mechanisms = [key.mechanism for key in user.keys]
        names = [token.name for token in user.tokens]
        if mechanisms != sorted(set(mechanisms)) or names != sorted(set(names)):
            raise FieldError("keys or tokens of a user are out of order or there twice")
        return user


def read_user_name(fields: Fields, name: str) -> str:
    """Take the name of a user. Raises FieldError."""
    text = fields.text(name, chars_min=1, chars_max=USER_CHARS_MAX)
    if ":" in text or not text.isprintable() or text != text.strip() or text in ("*", "ANONYMOUS"):
        raise FieldError(f"a user's name is 1..{USER_CHARS_MAX} printable characters without ':', not * or ANONYMOUS")
    return text
