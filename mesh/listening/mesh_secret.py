"""The secret by which brokers without certificates know each other: one file, the same for every broker of the mesh.

Rule 1: both ends prove that they have it, neither sends it: HMAC-SHA-256 over who dials whom, for what, and a random
        value of each end (a challenge and its answer, as in RFC 2195). What was heard once proves nothing again.
Rule 2: the dialling end proves it to the broker that it looks for and to nobody else, so a stranger on the port of a
        broker that is down cannot pass it on.
Rule 3: while a mesh gets its secret, or another one (`required` is off), every end proves itself to who asks, and asks
        nothing.
Rule 4: it says who dials, once; it hides nothing and protects no byte after that: off loopback there is TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from georelay.errors import ConfigError
from georelay.ids import BrokerId

NONCE_BYTES: Final = 14  # what a HELLO of peers has room for
PROOF_BYTES: Final = hashlib.sha256().digest_size
SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 4096
NO_PROOF: Final = bytes(PROOF_BYTES)
NO_NONCE: Final = bytes(NONCE_BYTES)
OPEN_TO_OTHERS: Final = 0o077
_LABEL: Final = b"georelay mesh secret 1"
_CALL: Final = struct.Struct(f">II{NONCE_BYTES}s{NONCE_BYTES}s")


class Call(NamedTuple):
    """One connection: who dials whom, and the random value of each end, NONCE_BYTES long."""

    dialler: BrokerId
    acceptor: BrokerId
    dialler_nonce: bytes
    acceptor_nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSecret:
    """What brokers prove to each other.

    Args:
        key: the content of the file, without white space at its ends.
        required: whether who cannot prove it is refused.
    """

    key: bytes = field(repr=False)
    required: bool = True

    @classmethod
    def load(cls, path: Path, *, required: bool = True) -> MeshSecret:
        """Read the file.

        Raises:
            ConfigError: it cannot be read, is too short or too long, or others than its owner can read it.
        """
        try:
            with path.open("rb") as file:
                key = file.read(SECRET_BYTES_MAX + 1).strip()
            is_open = path.stat().st_mode & OPEN_TO_OTHERS
        except OSError as error:
            raise ConfigError(f"mesh_secret_file: cannot read {path}: {error.strerror}") from error
        if not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
            raise ConfigError(
                f"mesh_secret_file: {path} holds {len(key)} bytes, a secret has {SECRET_BYTES_MIN} to "
                f"{SECRET_BYTES_MAX}: openssl rand -hex 32 > {path}"
            )
        if is_open:
            raise ConfigError(f"mesh_secret_file: others than its owner can use {path}: chmod 600 {path}")
        return cls(key=key, required=required)

    def dialler_proof(self, call: Call, purpose: bytes) -> bytes:
        """Return what the dialling end shows; `purpose` is the protocol it dials for."""
        return self._proof(b"dialler", call, purpose)

    def acceptor_proof(self, call: Call, purpose: bytes) -> bytes:
        """Return what the accepting end shows."""
        return self._proof(b"acceptor", call, purpose)

    def _proof(self, end: bytes, call: Call, purpose: bytes) -> bytes:
        told = b"\0".join((_LABEL, end, purpose, _CALL.pack(*call)))
        return hmac.digest(self.key, told, "sha256")


def is_same(shown: bytes, proof: bytes) -> bool:
    """Return whether a proof is right, in a time that says nothing of it."""
    return hmac.compare_digest(shown, proof)
