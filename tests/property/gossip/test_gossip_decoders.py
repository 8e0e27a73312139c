"""Every decoder of gossip: what was written is read back, and from any bytes only its own error comes out."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.gossip import codec as c
from mesh.gossip import lzw
from mesh.gossip.broadcast_queue_core import BroadcastQueue
from mesh.gossip.compound import BODIES_MAX, flatten, make_compound, unfold
from mesh.gossip.coordinate_core import DIMENSIONS, Coordinate, CoordinateClient
from mesh.gossip.delegate import SilentDelegate
from mesh.gossip.dialect import pack, read_map, read_maps
from mesh.gossip.faults import CodecError, GossipFault, PacketError
from mesh.gossip.keyring import Keyring
from mesh.gossip.member import OUR_VERSIONS, MemberState, Versions
from mesh.gossip.memberlist_core import Memberlist
from mesh.gossip.packet import open_packet, seal_packet, seal_stream
from mesh.gossip.stream_reader import StreamReader
from mesh.gossip.timing import LAN

RING = Keyring([b"k" * 16])
U32 = st.integers(0, 2**32 - 1)
NAMES = st.text("abcXYZ019.-_", min_size=1, max_size=128)
HOSTS = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).filter(
    lambda ip: not (ip.is_unspecified or ip.is_multicast or getattr(ip, "ipv4_mapped", None))
)
ADDRESSES = st.tuples(HOSTS.map(str), st.integers(1, 65535))
METAS = st.binary(max_size=512)


def to_versions(numbers: tuple[int, ...]) -> Versions:
    low, high, d_low, d_high, now, d_now = numbers
    return Versions(min(low, high), max(low, high), now, min(d_low, d_high), max(d_low, d_high), d_now)


VERSIONS = st.tuples(*[st.integers(1, 255)] * 6).map(to_versions)
MESSAGES = st.one_of(
    st.builds(
        c.Ping,
        seq_no=U32,
        name=NAMES,
        source=st.none() | ADDRESSES,
        source_name=st.just("") | NAMES,
    ),
    st.builds(
        c.IndirectPing,
        seq_no=U32,
        target=ADDRESSES,
        name=NAMES,
        wants_nack=st.booleans(),
        source=st.none() | ADDRESSES,
        source_name=st.just("") | NAMES,
    ),
    st.builds(c.Ack, seq_no=U32, payload=st.binary(max_size=1024)),
    st.builds(c.Nack, seq_no=U32),
    st.builds(c.Suspect, incarnation=U32, name=NAMES, accuser=NAMES),
    st.builds(c.Dead, incarnation=U32, name=NAMES, accuser=NAMES),
    st.builds(c.Alive, incarnation=U32, name=NAMES, address=ADDRESSES, meta=METAS, versions=VERSIONS),
    st.builds(c.ErrorReply, text=st.text(max_size=100)),
    st.builds(c.Compress, buffer=st.binary(max_size=2000)),
)
ROWS = st.builds(
    c.MemberRow,
    name=NAMES,
    address=ADDRESSES,
    meta=METAS,
    incarnation=U32,
    state=st.sampled_from(MemberState),
    versions=VERSIONS,
)
STATES = st.builds(
    c.PushPull,
    is_join=st.booleans(),
    rows=st.lists(ROWS, max_size=5).map(tuple),
    user_state=st.binary(max_size=100),
)


@given(MESSAGES)
def test_messages_are_read_back(message: c.Message) -> None:
    assert c.decode(c.encode(message)) == message


@given(STATES)
def test_states_are_read_back(state: c.PushPull) -> None:
    assert c.decode_push_pull(c.encode_push_pull(state)) == state


@given(st.lists(st.floats(-1e6, 1e6), min_size=DIMENSIONS + 3, max_size=DIMENSIONS + 3))
def test_coordinates_are_read_back(numbers: list[float]) -> None:
    point = Coordinate(vec=tuple(numbers[3:]), error=numbers[0], adjustment=numbers[1], height=numbers[2])
    assert c.decode_coordinate(c.encode_coordinate(point)) == point


@given(st.binary(max_size=3000) | st.text("ab", max_size=9000).map(str.encode))
def test_lzw_is_read_back(raw: bytes) -> None:
    assert lzw.decompress(lzw.compress(raw), limit_bytes=len(raw)) == raw


@given(st.lists(st.binary(min_size=1, max_size=40).map(lambda raw: b"\x08" + raw), min_size=1, max_size=BODIES_MAX))
def test_compounds_are_read_back(bodies: list[bytes]) -> None:
    assert flatten(make_compound(bodies)) == bodies


@given(st.binary(min_size=1, max_size=500), st.booleans(), st.booleans(), st.sampled_from(["", "mesh"]), st.booleans())
def test_packets_are_read_back(raw: bytes, sealed: bool, crc: bool, label: str, compress: bool) -> None:
    raw, ring = b"\x08" + raw, RING if sealed else None
    packet = seal_packet(raw, keyring=ring, label=label, with_crc=crc, compress=compress)
    assert flatten(open_packet(packet, keyring=ring, label=label)) == [raw]


@given(STATES, st.booleans(), st.booleans(), st.lists(st.integers(1, 200), min_size=1))
def test_blobs_are_read_back_in_any_pieces(state: c.PushPull, sealed: bool, is_reply: bool, pieces: list[int]) -> None:
    blob, ring = c.encode_push_pull(state), RING if sealed else None
    raw = seal_stream(blob, keyring=ring, is_reply=is_reply, compress_from_bytes=300)
    reader, found, at, turn = StreamReader(keyring=ring, is_reply=is_reply), None, 0, 0
    while at < len(raw):
        assert found is None
        step = pieces[turn % len(pieces)]
        found = reader.feed(raw[at : at + step])
        at, turn = at + step, turn + 1
    assert found == blob


def near(*valid: bytes) -> st.SearchStrategy[bytes]:
    """Return bytes at random, and valid ones with a few bytes changed, cut or grown."""

    def change(raw: bytes, edits: list[tuple[int, int]], cut: int, tail: bytes) -> bytes:
        data = bytearray(raw)
        for place, value in edits:
            data[place % len(data)] = value
        return bytes(data[: max(1, len(data) - cut)]) + tail

    edits = st.lists(st.tuples(st.integers(0, 999), st.integers(0, 255)), max_size=4)
    changed = st.builds(change, st.sampled_from(valid), edits, st.sampled_from((0, 0, 0, 1, 5)), st.binary(max_size=2))
    return st.binary(max_size=200) | changed


ALIVE = c.encode(c.Alive(incarnation=1, name="a", address=("10.0.0.1", 1), meta=b"m" * 40, versions=OUR_VERSIONS))
STATE = c.encode_push_pull(
    c.PushPull(
        is_join=True,
        rows=(
            c.MemberRow(
                name="a",
                address=("10.0.0.1", 1),
                meta=b"",
                incarnation=1,
                state=MemberState.ALIVE,
                versions=OUR_VERSIONS,
            ),
        )
        * 2,
        user_state=b"user",
    )
)
PING = c.encode(c.Ping(seq_no=1, name="me", source=("10.0.0.1", 1)))
FOLDED = c.encode(c.Compress(buffer=lzw.compress(ALIVE * 9)))
POINT = c.encode_coordinate(Coordinate.origin())
COMPOUND = make_compound([ALIVE, PING, FOLDED])
DECODERS: dict[str, tuple[Callable[[bytes], object], type[Exception], st.SearchStrategy[bytes]]] = {
    "map": (lambda raw: read_map(raw, array_max=8), CodecError, near(pack({"a": [1], "b": {"c": None}}))),
    "maps": (lambda raw: read_maps(raw, 2), CodecError, near(pack({"a": 1}) * 2)),
    "message": (c.decode, CodecError, near(ALIVE, PING, FOLDED)),
    "state": (c.decode_push_pull, CodecError, near(STATE)),
    "user over TCP": (c.read_stream_user, CodecError, near(c.stream_user_message(b"abc"))),
    "coordinate": (c.decode_coordinate, CodecError, near(POINT)),
    "lzw": (lambda raw: lzw.decompress(raw, limit_bytes=5000), CodecError, near(lzw.compress(ALIVE * 9))),
    "compression": (lambda raw: unfold(raw, limit_bytes=5000), CodecError, near(FOLDED)),
    "compound": (flatten, CodecError, near(COMPOUND)),
    "packet": (
        lambda raw: open_packet(raw, keyring=None),
        PacketError,
        near(seal_packet(PING, keyring=None, with_crc=True)),
    ),
    "sealed": (lambda raw: open_packet(raw, keyring=RING), PacketError, near(seal_packet(PING, keyring=RING))),
    "labelled": (
        lambda raw: open_packet(raw, keyring=None, label="m"),
        PacketError,
        near(seal_packet(PING, keyring=None, label="m")),
    ),
    "blob": (
        lambda raw: StreamReader(keyring=None, is_reply=True).feed(raw),
        PacketError,
        near(STATE, PING, seal_stream(STATE, keyring=None, is_reply=True, compress_from_bytes=1)),
    ),
    "sealed blob": (
        lambda raw: StreamReader(keyring=RING, label="m", is_reply=False).feed(raw),
        PacketError,
        near(seal_stream(STATE, keyring=RING, label="m", is_reply=False)),
    ),
}


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
def test_from_any_bytes_a_decoder_raises_only_its_own_error(name: str, data: st.DataObject) -> None:
    read, error, strategy = DECODERS[name]
    raw = data.draw(strategy)
    try:
        read(raw)
    except error:
        assert isinstance(error("size", "") if error is PacketError else error(""), GossipFault)


@given(st.lists(near(ALIVE, PING, FOLDED, COMPOUND, b"\x08user"), max_size=8), st.lists(near(STATE, PING), max_size=3))
def test_a_memberlist_takes_any_packets_and_blobs_and_goes_on(packets: list[bytes], blobs: list[bytes]) -> None:
    pool = Memberlist(
        name="me",
        address=("10.0.0.9", 1),
        meta=b"",
        timing=LAN,
        rng=random.Random(1),
        incarnation=1,
        delegate=SilentDelegate(),
    )
    pool.start(0.0)
    for number, raw in enumerate(packets):
        pool.packet_received(raw, ("10.0.0.1", 1), float(number))
    for raw in blobs:
        try:
            pool.stream_received(raw, 20.0)
        except CodecError:
            continue
    for _ in range(30):
        pool.tick(pool.next_due())
    assert pool.local.state is MemberState.ALIVE
    assert c.decode_push_pull(pool.stream_state(join=False)).bad_rows == 0


@given(st.lists(st.tuples(st.floats(0, 10), st.lists(st.floats(-1e6, 1e6), min_size=DIMENSIONS, max_size=DIMENSIONS))))
def test_no_series_of_round_trips_makes_a_coordinate_that_others_refuse(
    samples: list[tuple[float, list[float]]],
) -> None:
    client = CoordinateClient(rng=random.Random(1))
    for rtt_s, vec in samples:
        client.update("a", replace(Coordinate.origin(), vec=tuple(vec)), rtt_s)
        assert client.coordinate.fault() == ""
        assert c.decode_coordinate(c.encode_coordinate(client.coordinate)) == client.coordinate


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from([None, "a", "b"])), max_size=60),
    st.integers(1, 100),
    st.integers(10, 200),
)
def test_rumours_keep_the_budget_and_all_are_told_often_enough_or_replaced(
    pushes: list[tuple[int, str | None]], members: int, limit: int
) -> None:
    queue = BroadcastQueue(retransmit_mult=2, entries_max=50)
    tickets = [queue.push(bytes(length), key=key) for length, key in pushes]
    assert len(queue) <= 50
    for _ in range(2000):
        bodies = queue.take(members=members, overhead_bytes=2, limit_bytes=limit)
        assert sum(len(body) + 2 for body in bodies) <= limit
        if not bodies:
            break
    left = [ticket for ticket in tickets if queue.is_pending(ticket)]
    assert len(left) == len(queue)
    assert all(pushes[ticket - 1][0] + 2 > limit for ticket in left)
