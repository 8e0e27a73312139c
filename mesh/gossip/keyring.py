"""Keys of a pool: the first seals, all open. Rotation: install a key everywhere, use it, remove the old one days later.

Rule 1: keys are AES keys of 16, 24 or 32 bytes; one cipher object is kept for each, because making it costs as much
        as sealing a packet.
Rule 2: the primary key is never removed, and a key never shows in a text, repr or error.
Rule 3: sealed = version u8 | nonce 12 | ciphertext | tag 16. Version 1 has no padding and is the only one written;
        version 0 (padding to 16 inside) is read.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mesh.gossip.faults import KeyFault, PacketError

KEY_SIZES: Final = frozenset({16, 24, 32})
KEYS_MAX: Final = 16  # each costs a try for every packet of a stranger
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
SEALED_OVERHEAD_BYTES: Final = 1 + NONCE_BYTES + TAG_BYTES
_PADDED: Final = 0
_PLAIN: Final = 1


class Keyring:
    """Keys of one pool, primary first. Owned by one thread.

    Args:
        keys: 1..KEYS_MAX different keys; the first is the primary.

    Raises:
        KeyFault: none, too many, or one of a wrong length.
    """

    __slots__ = ("_ciphers",)

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys:
            raise KeyFault("a keyring needs a key")
        self._ciphers: dict[bytes, AESGCM] = {}
        for key in keys:
            self.install(key)

    def __repr__(self) -> str:
        return f"<Keyring of {len(self._ciphers)} keys>"

    @property
    def primary(self) -> bytes:
        """Return the key that seals."""
        return next(iter(self._ciphers))

    def keys(self) -> tuple[bytes, ...]:
        """Return all keys, primary first."""
        return tuple(self._ciphers)

    def install(self, key: bytes) -> None:
        """Add a key at the end; one that is there already stays where it is.

        Raises:
            KeyFault: a wrong length, or KEYS_MAX keys are there.
        """
        if len(key) not in KEY_SIZES:
            raise KeyFault(f"a key has 16, 24 or 32 bytes, not {len(key)}")
        if key in self._ciphers:
            return
        if len(self._ciphers) >= KEYS_MAX:
            raise KeyFault(f"the keyring holds {KEYS_MAX} keys already: remove old ones")
        self._ciphers[bytes(key)] = AESGCM(key)

    def use(self, key: bytes) -> None:
        """Make an installed key the primary.

        Raises:
            KeyFault: it is not installed.
        """
        if key not in self._ciphers:
            raise KeyFault("the key is not on the ring: install it first")
        cipher = self._ciphers.pop(key)
        self._ciphers = {bytes(key): cipher, **self._ciphers}

    def remove(self, key: bytes) -> None:
        """Take a key off the ring; one that is not there is removed already.

        Raises:
            KeyFault: it is the primary.
        """
        if key == self.primary:
            raise KeyFault("the primary key cannot be removed: use another first")
        self._ciphers.pop(key, None)

    def seal(self, plain: bytes, aad: bytes) -> bytes:
        """Return `plain` sealed with the primary key; `aad` is authenticated beside it."""
        nonce = os.urandom(NONCE_BYTES)
        cipher = next(iter(self._ciphers.values()))
        return b"\x01" + nonce + cipher.encrypt(nonce, plain, aad)

    def open(self, sealed: bytes, aad: bytes) -> bytes:
        """Return what was sealed with any key of the ring.

        Raises:
            PacketError: "version", "truncated", or "no_key" if no key opens it.
        """
        if len(sealed) < SEALED_OVERHEAD_BYTES:
            raise PacketError("truncated", "an encrypted packet without its tag")
        if sealed[0] not in (_PADDED, _PLAIN):
            raise PacketError("version", f"encryption version {sealed[0]} is unknown: not encrypted, perhaps")
        nonce, ciphertext = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        for cipher in self._ciphers.values():
            try:
                plain = cipher.decrypt(nonce, ciphertext, aad)
            except InvalidTag:
                continue
            return plain if sealed[0] == _PLAIN else _unpadded(plain)
        raise PacketError("no_key", "no key of the ring opens a packet: another pool, or a key rotated away")

    def to_json(self) -> str:
        """Return the keyring file of `serf agent`: a list of base64, primary first. It is a secret."""
        return json.dumps([encode_key(key) for key in self._ciphers])

    @classmethod
    def from_json(cls, text: str) -> Keyring:
        """Read a keyring file.

        Raises:
            KeyFault: it is none.
        """
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError):
            raise KeyFault("the keyring file is no JSON") from None  # the cause would quote the file
        if not isinstance(raw, list) or not all(isinstance(key, str) for key in raw):
            raise KeyFault("the keyring file is no list of texts")
        return cls([decode_key(key) for key in raw])


def encode_key(key: bytes) -> str:
    """Return a key as operators see it: base64."""
    return base64.b64encode(key).decode()


def decode_key(text: str) -> bytes:
    """Return the key of a base64 text.

    Raises:
        KeyFault: no base64, or a wrong length.
    """
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise KeyFault("a key is no base64") from None  # the cause would quote the key
    if len(key) not in KEY_SIZES:
        raise KeyFault(f"a key has 16, 24 or 32 bytes, not {len(key)}")
    return key


def _unpadded(plain: bytes) -> bytes:
    pad = plain[-1] if plain else 0
    if not 1 <= pad <= 16 or len(plain) % 16:
        raise PacketError("truncated", "an encrypted packet with wrong padding")
    return plain[:-pad]
