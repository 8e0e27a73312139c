"""The bytes of memberlist's wire: every message and envelope, written down by hand, for ever."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mesh.gossip import codec as c
from mesh.gossip import lzw
from mesh.gossip.compound import flatten, make_compound
from mesh.gossip.coordinate_core import Coordinate
from mesh.gossip.keyring import Keyring
from mesh.gossip.member import OUR_VERSIONS, MemberState, Versions
from mesh.gossip.packet import open_packet, seal_packet, seal_stream
from mesh.gossip.stream_reader import StreamReader

A, B = ("10.0.0.1", 7946), ("10.0.0.2", 7946)
META = b"m" * 40
MESSAGES: dict[str, c.Message] = {
    "Ping": c.Ping(seq_no=7, name="b", source=A, source_name="a"),
    "PingShort": c.Ping(seq_no=2**32 - 1, name="b"),
    "IndirectPing": c.IndirectPing(
        seq_no=256, target=B, name="b", wants_nack=True, source=("10.0.0.1", 7947), source_name="a"
    ),
    "AckPlain": c.Ack(seq_no=7),
    "AckPayload": c.Ack(seq_no=7, payload=b"\x01\x02\x03"),
    "Suspect": c.Suspect(incarnation=0x65000000, name="b", accuser="a"),
    "Alive": c.Alive(incarnation=1, name="a", address=A, meta=b"\xff\x80", versions=OUR_VERSIONS),
    "AliveV6": c.Alive(incarnation=1, name="a", address=("fd00::1", 7946), meta=b"", versions=OUR_VERSIONS),
    "AliveLongMeta": c.Alive(incarnation=1, name="a", address=A, meta=META, versions=OUR_VERSIONS),
    "Dead": c.Dead(incarnation=2, name="a", accuser="a"),
    "Compress": c.Compress(buffer=b"\x00\x03\x02"),
    "Nack": c.Nack(seq_no=7),
    "ErrorReply": c.ErrorReply(text="no"),
}
ROWS = (
    c.MemberRow(name="a", address=A, meta=b"", incarnation=1, state=MemberState.ALIVE, versions=OUR_VERSIONS),
    c.MemberRow(
        name="b", address=B, meta=b"m", incarnation=9, state=MemberState.LEFT, versions=Versions(1, 5, 2, 2, 5, 4)
    ),
)
STATE = c.PushPull(is_join=True, rows=ROWS, user_state=b"\x02\x80\xc0")
POINT = Coordinate(vec=(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0), error=1.5, adjustment=0.0, height=1e-5)


def read_golden() -> dict[str, bytes]:
    found = {}
    for line in Path(__file__).with_name("memberlist.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, rest = line.split(maxsplit=1)
            tokens = re.findall(r'"([^"]*)"|([0-9a-f]{2})', rest)
            found[name] = b"".join(text.encode() if text else bytes.fromhex(digits) for text, digits in tokens)
    return found


GOLDEN = read_golden()


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_has_its_bytes(name: str) -> None:
    assert c.encode(MESSAGES[name]) == GOLDEN[name]


@pytest.mark.parametrize("name", MESSAGES)
def test_bytes_are_read_as_their_message(name: str) -> None:
    assert c.decode(GOLDEN[name]) == MESSAGES[name]


def test_every_message_type_is_written_down() -> None:
    written = {raw[0] for name, raw in GOLDEN.items() if name != "Coordinate"}
    assert written == set(c.MessageType) - {c.MessageType.ENCRYPTED}  # that one is below: its bytes depend on a key


def test_a_push_pull_state_has_its_bytes_both_ways() -> None:
    assert c.encode_push_pull(STATE) == GOLDEN["PushPull"]
    assert c.decode_push_pull(GOLDEN["PushPull"]) == STATE


def test_user_messages_have_their_bytes_on_udp_and_tcp() -> None:
    assert c.user_message(b"\x03\x80") == GOLDEN["User"]
    assert c.stream_user_message(b"\x03\x80") == GOLDEN["StreamUser"]
    assert c.read_stream_user(GOLDEN["StreamUser"]) == b"\x03\x80"


def test_a_compound_has_its_bytes_both_ways() -> None:
    bodies = [GOLDEN["Nack"], GOLDEN["User"]]
    assert make_compound(bodies) == GOLDEN["Compound"]
    assert flatten(GOLDEN["Compound"]) == bodies


def test_a_coordinate_has_its_bytes_both_ways() -> None:
    assert c.encode_coordinate(POINT) == GOLDEN["Coordinate"]
    assert c.decode_coordinate(GOLDEN["Coordinate"]) == POINT


def test_checksum_and_label_stand_before_the_message() -> None:
    nack = GOLDEN["Nack"]
    assert GOLDEN["Checked"][1:5] == zlib.crc32(nack).to_bytes(4, "big")
    assert seal_packet(nack, keyring=None, with_crc=True) == GOLDEN["Checked"]
    assert seal_packet(nack, keyring=None, label="mesh") == GOLDEN["Labelled"]
    assert open_packet(GOLDEN["Checked"], keyring=None) == nack
    assert open_packet(GOLDEN["Labelled"], keyring=None, label="mesh") == nack


def test_compressed_codes_are_nine_bits_from_the_lowest_up() -> None:
    # clear, a, aa, aaa (each before it is in the decoder's table), aa, end
    codes = (256, 97, 258, 259, 258, 257)
    expected = sum(code << 9 * place for place, code in enumerate(codes)).to_bytes(7, "little")
    assert lzw.compress(b"aaaaaaaa") == expected
    assert lzw.decompress(expected, limit_bytes=8) == b"aaaaaaaa"
    assert lzw.compress(b"") == bytes.fromhex("000302")


KEY, NONCE = bytes(range(16)), bytes(range(100, 112))


def test_a_sealed_packet_is_version_nonce_ciphertext_tag_with_the_label_authenticated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mesh.gossip.keyring.os.urandom", lambda size: NONCE[:size])
    nack, ring = GOLDEN["Nack"], Keyring([KEY])
    expected = b"\xf4\x04mesh" + b"\x01" + NONCE + AESGCM(KEY).encrypt(NONCE, nack, b"mesh")
    assert seal_packet(nack, keyring=ring, label="mesh") == expected
    assert open_packet(expected, keyring=ring, label="mesh") == nack


def test_a_padded_packet_of_encryption_version_0_is_read() -> None:
    nack = GOLDEN["Nack"]
    pad = 16 - len(nack) % 16
    raw = b"\x00" + NONCE + AESGCM(KEY).encrypt(NONCE, nack + bytes([pad]) * pad, b"")
    assert open_packet(raw, keyring=Keyring([KEY])) == nack


def test_a_sealed_blob_authenticates_its_header_and_the_label_that_a_reply_does_not_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mesh.gossip.keyring.os.urandom", lambda size: NONCE[:size])
    nack, ring = GOLDEN["Nack"], Keyring([KEY])
    header = b"\x0a" + (29 + len(nack)).to_bytes(4, "big")
    reply = header + b"\x01" + NONCE + AESGCM(KEY).encrypt(NONCE, nack, header + b"mesh")
    assert seal_stream(nack, keyring=ring, label="mesh", is_reply=True) == reply
    assert seal_stream(nack, keyring=ring, label="mesh", is_reply=False) == b"\xf4\x04mesh" + reply
    assert StreamReader(keyring=ring, label="mesh", is_reply=True).feed(reply) == nack
