"""SCRAM of RFC 5802 and RFC 7677: both ends of the exchange, as a pure core.

Rule 1: who does not exist, or has no key for the mechanism, goes through the same steps with a salt that is always
        the same for that name, and is refused at the end exactly as a wrong password is.
Rule 2: channel binding is not offered: "n" and "y" pass, "p" is refused; nobody acts for another user.
Rule 3: a client's final nonce has to END with ours: librdkafka 2.0 repeats its own part in front. The proof is over
        what was really sent, so nothing is lost.
Passwords are not prepared (RFC 4013): neither do Kafka's clients, and both ends must do the same.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Final

from georelay.errors import Unauthenticated
from region.security.user import ITERATIONS_MIN, SALT_BYTES, Mechanism, ScramKey

MESSAGE_BYTES_MAX: Final = 4_096
NONCE_CHARS_MAX: Final = 512
ITERATIONS: Final = 8_192  # of keys that georelay makes itself
REFUSED: Final = "wrong user or password"
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]+")  # RFC 5802: printable, without a comma
_FIRST: Final = re.compile(
    r"(?P<gs2>[ny],(a=(?P<authzid>[^,]+))?,)(?P<bare>n=(?P<user>[^,]+),r=(?P<nonce>[^,]+)(,.*)?)"
)
_FINAL: Final = re.compile(r"(?P<before>c=(?P<binding>[^,]+),r=(?P<nonce>[^,]+)(,.*)?),p=(?P<proof>[^,]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFirst:
    """What a client begins with."""

    user: str
    nonce: str
    gs2_header: str
    bare: str


def parse_client_first(raw: bytes) -> ClientFirst:
    """Read a client's first message.

    Raises:
        Unauthenticated: another form; the text holds nothing of what was sent.
    """
    found = _FIRST.fullmatch(_text(raw))
    if found is None or _NONCE.fullmatch(found["nonce"]) is None or len(found["nonce"]) > NONCE_CHARS_MAX:
        raise Unauthenticated("not a SCRAM client-first message (without channel binding)")
    user = _saslname(found["user"])
    if found["authzid"] is not None and _saslname(found["authzid"]) != user:
        raise Unauthenticated("acting for another user is not served")
    return ClientFirst(user=user, nonce=found["nonce"], gs2_header=found["gs2"], bare=found["bare"])


class ScramServer:
    """One exchange, from the client's first message on.

    Args:
        is_known: whether `key` is the user's; a made-up key refuses every proof.
        nonce: fresh and random, at least 18 characters without a comma.
    """

    def __init__(self, first: ClientFirst, key: ScramKey, *, is_known: bool, nonce: str) -> None:
        self._first = first
        self._key = key
        self._is_known = is_known
        self._nonce = first.nonce + nonce
        salt = base64.b64encode(key.salt).decode("ascii")
        self._server_first = f"r={self._nonce},s={salt},i={key.iterations}"

    @property
    def user(self) -> str:
        """Return who wants to sign in."""
        return self._first.user

    @property
    def server_first(self) -> bytes:
        """Return the answer to the client's first message."""
        return self._server_first.encode()

    def finish(self, raw: bytes) -> bytes:
        """Check the client's final message; return the last word, which proves that this end knows the user too.

        Raises:
            Unauthenticated: wrong password, unknown user, or not a final message of this exchange.
        """
        found = _FINAL.fullmatch(_text(raw))
        if found is None or not found["nonce"].endswith(self._nonce) or len(found["nonce"]) > 4 * NONCE_CHARS_MAX:
            raise Unauthenticated("not the final message of this SCRAM exchange")
        if _decoded(found["binding"]) != self._first.gs2_header.encode():
            raise Unauthenticated("the SCRAM channel binding is another one than at first")
        proof, hash_name = _decoded(found["proof"]), self._key.mechanism.hash_name
        said = ",".join((self._first.bare, self._server_first, found["before"])).encode()
        signature = hmac.digest(self._key.stored_key, said, hash_name)
        if len(proof) != len(signature):
            raise Unauthenticated("not the final message of this SCRAM exchange")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.new(hash_name, client_key).digest(), self._key.stored_key)
        answer = hmac.digest(self._key.server_key, said, hash_name)
        if not (is_right and self._is_known):
            raise Unauthenticated(REFUSED)
        return b"v=" + base64.b64encode(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramClient:
    """The other end, for tests and for whoever has to sign in at a broker."""

    mechanism: Mechanism
    user: str
    password: str = field(repr=False)
    nonce: str

    @property
    def first(self) -> bytes:
        """Return the client's first message."""
        return f"n,,{self._bare}".encode()

    @property
    def _bare(self) -> str:
        return f"n={self.user.replace('=', '=3D').replace(',', '=2C')},r={self.nonce}"

    def final(self, server_first: bytes) -> bytes:
        """Return the client's final message."""
        text = server_first.decode()
        fields = dict(part.split("=", 1) for part in text.split(","))
        key = make_key(self.mechanism, self.password, salt=base64.b64decode(fields["s"]), iterations=int(fields["i"]))
        before = f"c=biws,r={fields['r']}"
        said = f"{self._bare},{text},{before}".encode()
        salted = salted_password(self.mechanism, self.password, salt=key.salt, iterations=key.iterations)
        client_key = hmac.digest(salted, b"Client Key", self.mechanism.hash_name)
        signature = hmac.digest(key.stored_key, said, self.mechanism.hash_name)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{before},p={base64.b64encode(proof).decode('ascii')}".encode()


def salted_password(mechanism: Mechanism, password: str, *, salt: bytes, iterations: int) -> bytes:
    """Return RFC 5802's SaltedPassword; takes about 0.4 ms per 1,000 iterations."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode("utf-8", "surrogatepass"), salt, iterations)


def key_of_salted(mechanism: Mechanism, salted: bytes, *, salt: bytes, iterations: int) -> ScramKey:
    """Return the key to store for a SaltedPassword (what Kafka's admin clients send)."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    return ScramKey(
        mechanism=mechanism,
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.new(mechanism.hash_name, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", mechanism.hash_name),
    )


def make_key(mechanism: Mechanism, password: str, *, salt: bytes, iterations: int = ITERATIONS) -> ScramKey:
    """Return the key to store for a password."""
    salted = salted_password(mechanism, password, salt=salt, iterations=iterations)
    return key_of_salted(mechanism, salted, salt=salt, iterations=iterations)


def fake_key(mechanism: Mechanism, user: str, *, secret: bytes, iterations: int = ITERATIONS) -> ScramKey:
    """Return the key of a user that is not there: the same for the same name, on every broker and after a restart."""
    name = user.encode("utf-8", "surrogatepass")
    salt = hmac.digest(secret, b"salt\0" + mechanism.hash_name.encode() + b"\0" + name, "sha256")[:SALT_BYTES]
    key = hmac.digest(secret, b"key\0" + name, mechanism.hash_name)
    return ScramKey(
        mechanism=mechanism, salt=salt, iterations=max(iterations, ITERATIONS_MIN), stored_key=key, server_key=key
    )


def password_matches(key: ScramKey, password: str) -> bool:
    """Return whether a password is the key's, for mechanisms that send it (PLAIN, basic)."""
    made = make_key(key.mechanism, password, salt=key.salt, iterations=key.iterations)
    return hmac.compare_digest(made.stored_key, key.stored_key)


def _text(raw: bytes) -> str:
    if len(raw) > MESSAGE_BYTES_MAX:
        raise Unauthenticated(f"a SCRAM message is over {MESSAGE_BYTES_MAX} bytes")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unauthenticated("a SCRAM message is not UTF-8") from error


def _saslname(text: str) -> str:
    name = text.replace("=2C", ",").replace("=3D", "=")
    if "=" in text.replace("=2C", "").replace("=3D", ""):
        raise Unauthenticated("a SCRAM user name holds a bare '='")
    return name


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unauthenticated("a SCRAM message holds something that is not base64") from error
