"""Bytes that an agent written in Go sent to us: read as what they mean, and written again as they were."""

from __future__ import annotations

from pathlib import Path

from mesh.gossip import codec as c
from mesh.gossip import lzw
from mesh.gossip.compound import flatten, make_compound, unfold
from mesh.gossip.member import OUR_VERSIONS

LINES = Path(__file__).with_name("agent.txt").read_text().splitlines()
SENT = {name: bytes.fromhex(raw) for name, raw in (line.split() for line in LINES if not line.startswith("#"))}
AGENT = ("127.0.0.1", 42293)
ALIVE_AGENT = c.Alive(incarnation=1, name="agent", address=AGENT, meta=b"\xff\x81\xa4role\xa1x", versions=OUR_VERSIONS)


def test_its_ping_is_read_and_written_as_it_was() -> None:
    ping = c.Ping(seq_no=2, name="py", source=AGENT, source_name="agent")
    assert c.decode(SENT["Ping"]) == ping
    assert c.encode(ping) == SENT["Ping"]


def test_its_coordinate_is_read_and_written_as_it_was() -> None:
    ack = c.decode(SENT["Ack"])
    assert isinstance(ack, c.Ack)
    assert ack.seq_no == 0xC386BBC5
    point = c.decode_coordinate(ack.payload)
    assert point.fault() == ""
    assert c.encode_coordinate(point) == ack.payload
    assert c.encode(ack) == SENT["Ack"]


def test_it_tells_our_own_rumour_on_byte_by_byte() -> None:
    alive = c.decode(SENT["Alive"])
    assert isinstance(alive, c.Alive)
    assert (alive.name, alive.meta, alive.versions) == ("py", b"\xff\x81\xa4role\xa3py2", OUR_VERSIONS)
    assert c.encode(alive) == SENT["Alive"]


def test_its_compound_is_read_and_written_as_it_was() -> None:
    bodies = flatten(SENT["Compound"])
    assert c.decode(bodies[1]) == ALIVE_AGENT
    assert make_compound(bodies) == SENT["Compound"]


def test_its_lzw_is_read_and_written_bit_by_bit() -> None:
    compressed = c.decode(SENT["Compressed"])
    assert isinstance(compressed, c.Compress)
    plain = unfold(SENT["Compressed"], limit_bytes=1400)
    assert lzw.compress(plain) == compressed.buffer
    bodies = flatten(SENT["Compressed"])
    assert plain == make_compound(bodies)
    assert [body[0] for body in bodies] == [c.MessageType.PING, c.MessageType.ALIVE, c.MessageType.ALIVE]
