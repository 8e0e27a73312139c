"""The ring of keys: order, bounds, files, and that it keeps its secrets."""

from __future__ import annotations

import pytest

from mesh.gossip.faults import KeyFault, PacketError
from mesh.gossip.keyring import KEYS_MAX, Keyring, decode_key, encode_key

A, B, C = b"a" * 16, b"b" * 24, b"c" * 32


def test_the_first_key_is_primary_and_use_moves_another_to_the_front() -> None:
    ring = Keyring([A, B])
    ring.install(C)
    ring.install(B)  # again: nothing moves
    assert ring.keys() == (A, B, C)
    ring.use(C)
    assert (ring.primary, ring.keys()) == (C, (C, A, B))
    ring.remove(A)
    ring.remove(A)
    assert ring.keys() == (C, B)


def test_only_the_primary_key_seals() -> None:
    ring = Keyring([A, B])
    assert Keyring([A]).open(ring.seal(b"x", b""), b"") == b"x"
    with pytest.raises(PacketError):
        Keyring([B]).open(ring.seal(b"x", b""), b"")


def test_what_would_lock_the_pool_out_is_refused() -> None:
    ring = Keyring([A])
    with pytest.raises(KeyFault, match="not on the ring"):
        ring.use(B)
    with pytest.raises(KeyFault, match="primary"):
        ring.remove(A)
    with pytest.raises(KeyFault, match="16, 24 or 32"):
        ring.install(b"short")
    with pytest.raises(KeyFault):
        Keyring([])
    with pytest.raises(KeyFault, match="remove old ones"):
        Keyring([bytes([number]) * 16 for number in range(KEYS_MAX + 1)])


def test_the_file_is_that_of_an_agent() -> None:
    ring = Keyring([A, B])
    assert ring.to_json() == '["YWFhYWFhYWFhYWFhYWFhYQ==", "YmJiYmJiYmJiYmJiYmJiYmJiYmJiYmJi"]'
    assert Keyring.from_json(ring.to_json()).keys() == (A, B)
    assert decode_key(encode_key(C)) == C


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[]", '["secret"]', '["c2VjcmV0"]', "[" * 5000])
def test_a_file_that_is_none_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(KeyFault) as caught:
        Keyring.from_json(text)
    assert "secret" not in str(caught.value) and caught.value.__cause__ is None


def test_no_key_shows_in_a_repr() -> None:
    assert repr(Keyring([A, B])) == "<Keyring of 2 keys>"


@pytest.mark.parametrize("plain", [b"", b"x" * 15 + b"\x00", b"x" * 15 + b"\x11", b"x" * 14 + b"\x01"])
def test_wrong_padding_of_an_old_packet_is_refused(plain: bytes) -> None:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = b"n" * 12
    with pytest.raises(PacketError):
        Keyring([A]).open(b"\x00" + nonce + AESGCM(A).encrypt(nonce, plain, b""), b"")
