"""Envelopes: what opens, what is refused and why, and blobs that arrive in pieces."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from mesh.gossip import codec as c
from mesh.gossip import lzw
from mesh.gossip.compound import BODIES_MAX, DEPTH_MAX, FLAT_BODIES_MAX, flatten, make_compound, unfold
from mesh.gossip.faults import CodecError, PacketError
from mesh.gossip.keyring import Keyring
from mesh.gossip.member import OUR_VERSIONS, MemberState
from mesh.gossip.packet import open_packet, packet_overhead_bytes, seal_packet, seal_stream
from mesh.gossip.stream_reader import StreamReader
from tests.tiers import in_one_test

OLD, NEW, OTHER = b"o" * 16, b"n" * 32, b"x" * 24
PING = c.encode(c.Ping(seq_no=1, name="b"))


def state(rows: int) -> bytes:
    members = [
        c.MemberRow(
            name=f"broker-{number}",
            address=("10.0.0.1", 1 + number),
            meta=b"tags" * 20,
            incarnation=number,
            state=MemberState.ALIVE,
            versions=OUR_VERSIONS,
        )
        for number in range(rows)
    ]
    return c.encode_push_pull(c.PushPull(is_join=False, rows=tuple(members), user_state=b"serf" * 9))


@in_one_test("with_crc", [False, True])
@in_one_test("compress", [False, True])
@in_one_test("label", ["", "mesh"])
@in_one_test("keys", [(), (OLD,), (NEW, OLD)])
def test_what_is_sealed_opens(keys: tuple[bytes, ...], label: str, compress: bool, with_crc: bool) -> None:
    ring = Keyring(keys) if keys else None
    messages = make_compound([PING] * 9)
    raw = seal_packet(messages, keyring=ring, label=label, with_crc=with_crc, compress=compress)
    assert compress or len(raw) <= len(messages) + packet_overhead_bytes(keyring=ring, label=label)
    assert flatten(open_packet(raw, keyring=ring, label=label)) == [PING] * 9


def test_compression_that_does_not_pay_is_left_out() -> None:
    assert seal_packet(PING, keyring=None, compress=True) == PING


def reason(raw: bytes, *, keyring: Keyring | None = None, label: str = "") -> str:
    with pytest.raises(PacketError) as caught:
        open_packet(raw, keyring=keyring, label=label)
    return caught.value.reason


def test_each_refusal_has_its_reason() -> None:
    ring, other = Keyring([NEW]), Keyring([OTHER])
    assert reason(seal_packet(PING, keyring=other), keyring=ring) == "no_key"
    assert reason(PING, keyring=ring) == "truncated"
    assert reason(b"\x07" + PING * 9, keyring=ring) == "version"
    assert reason(seal_packet(PING, keyring=None, label="a"), label="b") == "label"
    assert reason(seal_packet(PING, keyring=None, label="a")) == "label"
    assert reason(PING, label="a") == "label"
    assert reason(b"\xf4\x00" + PING, label="a") == "label"
    assert reason(b"\xf4\x00" + PING) == "label"
    assert reason(b"\xf4\x04me", label="mesh") == "truncated"
    assert reason(b"\x0c\0\0\0\0" + PING) == "crc"
    assert reason(b"\x0c\0\0") == "truncated"
    assert reason(b"") == "truncated"
    assert reason(b"a" * 65_536) == "size"
    assert reason(seal_packet(PING, keyring=ring, label="a")[3:], keyring=ring, label="") == "no_key"


def test_a_flipped_bit_anywhere_in_a_sealed_packet_is_refused() -> None:
    ring = Keyring([NEW])
    raw = seal_packet(PING, keyring=ring)
    # The first byte is the version, which the protocol does not authenticate: another one is refused or pads away.
    for bit in range(8, len(raw) * 8):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PacketError):
            open_packet(bytes(changed), keyring=ring)


def test_plaintext_passes_only_while_a_migration_allows_it() -> None:
    ring = Keyring([NEW])
    assert open_packet(PING, keyring=ring, verify_incoming=False) == PING
    assert open_packet(seal_packet(PING, keyring=ring), keyring=ring, verify_incoming=False) == PING


def test_a_rotation_opens_old_and_new_packets_at_every_step() -> None:
    one, two = Keyring([OLD]), Keyring([OLD])
    steps: list[Callable[[Keyring], None]] = [
        lambda ring: ring.install(NEW),
        lambda ring: ring.use(NEW),
        lambda ring: ring.remove(OLD),
    ]
    for step in steps:
        for ring in (one, two):  # between the two, members stand at different steps
            step(ring)
            for sender, receiver in ((one, two), (two, one)):
                assert open_packet(seal_packet(PING, keyring=sender), keyring=receiver) == PING
    assert reason(seal_packet(PING, keyring=Keyring([OLD])), keyring=one) == "no_key"


def test_a_compound_with_a_truncated_tail_gives_what_is_whole() -> None:
    assert flatten(make_compound([PING, PING])[:-1]) == [PING]


@pytest.mark.parametrize("raw", [b"\x07", b"\x07\x02\x00\x01\x00"])
def test_a_compound_without_its_lengths_is_refused(raw: bytes) -> None:
    with pytest.raises(CodecError):
        flatten(raw)


def test_containers_nest_up_to_a_depth() -> None:
    raw = PING
    for _ in range(DEPTH_MAX):
        raw = c.encode(c.Compress(buffer=lzw.compress(raw)))
    assert flatten(raw) == [PING]
    with pytest.raises(CodecError, match="too deeply"):
        flatten(c.encode(c.Compress(buffer=lzw.compress(raw))))


def test_a_packet_gives_a_bounded_number_of_messages_and_bytes() -> None:
    inner = b"\x07\xff" + b"\x00\x01" * 255 + b"\x63" * 255
    many = b"\x07\x14" + len(inner).to_bytes(2, "big") * 20 + inner * 20
    assert len(flatten(many)) == FLAT_BODIES_MAX
    with pytest.raises(CodecError, match="unfolds to more"):
        flatten(c.encode(c.Compress(buffer=lzw.compress(b"\x08" * 70_000))))


def test_what_is_no_compression_is_not_unfolded() -> None:
    with pytest.raises(CodecError, match="not a compressed"):
        unfold(PING, limit_bytes=100)


def test_a_label_has_at_most_255_bytes() -> None:
    with pytest.raises(ValueError, match="255"):
        seal_packet(PING, keyring=None, label="m" * 256)


def test_a_compound_of_one_is_the_message_itself_and_127_are_the_most() -> None:
    assert make_compound([PING]) == PING
    assert len(flatten(make_compound([PING] * BODIES_MAX))) == BODIES_MAX


BLOBS = {
    "ping": PING,
    "error": c.error_reply("no"),
    "user": c.stream_user_message(b"\x03\x80" * 9),
    "state": state(3),
    "empty state": state(0),
}


@pytest.mark.parametrize("blob", BLOBS.values(), ids=BLOBS)
@pytest.mark.parametrize("is_reply", [False, True])
def test_a_blob_is_read_byte_by_byte(blob: bytes, is_reply: bool) -> None:
    for label, ring, compress_from in itertools.product(["", "mesh"], [None, Keyring([NEW])], [1, 10**9]):
        raw = seal_stream(blob, keyring=ring, label=label, is_reply=is_reply, compress_from_bytes=compress_from)
        reader = StreamReader(keyring=ring, label=label, is_reply=is_reply)
        for place in range(len(raw) - 1):
            assert reader.feed(raw[place : place + 1]) is None
        assert reader.feed(raw[-1:]) == blob


def test_a_large_state_is_compressed_and_read_in_one_go() -> None:
    blob = state(300)
    raw = seal_stream(blob, keyring=None, is_reply=True)
    assert raw[0] == 9 and len(raw) < len(blob) / 2
    assert StreamReader(keyring=None, is_reply=True).feed(raw) == blob


def stream_reason(raw: bytes, *, ring: Keyring | None = None, label: str = "", limit: int = 10_000) -> str:
    with pytest.raises(PacketError) as caught:
        StreamReader(keyring=ring, label=label, is_reply=False, limit_bytes=limit).feed(raw)
    return caught.value.reason


def test_each_refusal_of_a_connection_has_its_reason() -> None:
    ring = Keyring([NEW])
    sealed = seal_stream(PING, keyring=ring, is_reply=False)
    assert stream_reason(PING, ring=ring) == "plaintext"
    assert stream_reason(sealed) == "no_key"
    assert stream_reason(sealed, ring=Keyring([OTHER])) == "no_key"
    assert stream_reason(sealed, ring=ring, label="mesh") == "label"
    assert stream_reason(seal_stream(PING, keyring=ring, label="mesh", is_reply=False), ring=ring) == "label"
    assert stream_reason(b"\x0a\xff\xff\xff\xff", ring=ring) == "size"
    assert stream_reason(b"\x0a\x00\x00\x00\x1d", ring=ring) == "size"
    assert stream_reason(sealed + b"x", ring=ring) == "size"
    assert stream_reason(PING + b"x") == "size"
    assert stream_reason(state(300)) == "size"
    assert stream_reason(b"\x06\x82\xa5Nodes\x00\xacUserStateLen\xcd\xff\xff") == "size"
    assert stream_reason(c.encode(c.Compress(buffer=lzw.compress(b"a" * 20_000)))) == "compress"
    assert stream_reason(b"GET / HTTP/1.1\r\n\r\n") == "version"
    assert stream_reason(b"\x00\xc1") == "version"
    assert stream_reason(b"\x06\x80") == "version"
