"""What strangers can make a member do: work and memory are bounded, and nothing they do ends a duty of ours."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from mesh.gossip import agent as agent_module
from mesh.gossip import exchange, lzw, pools, seeds
from mesh.gossip.agent import Agent, AgentSettings
from mesh.gossip.codec import Compress, Ping, encode
from mesh.gossip.compound import UNFOLDED_BYTES_MAX, flatten, make_compound
from mesh.gossip.exchange import ExchangeFailed, ExchangeServer
from mesh.gossip.faults import CodecError
from mesh.gossip.foreigners_core import NAMES_MAX, Foreigners
from mesh.gossip.lzw import compress
from mesh.gossip.member import OUR_VERSIONS, Member, MemberState
from mesh.gossip.pool_member import Listeners
from mesh.gossip.tags import encode_tags
from mesh.gossip.timing import LOCAL
from tests.conditions import until


def folded(raw: bytes) -> bytes:
    return encode(Compress(buffer=compress(raw)))


def test_a_packet_of_many_compressions_unfolds_to_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    unfolded = 0
    real = lzw.decompress

    def decompress(raw: bytes, *, limit_bytes: int) -> bytes:
        nonlocal unfolded
        out: bytes = real(raw, limit_bytes=limit_bytes)
        unfolded += len(out)
        return out

    monkeypatch.setattr(lzw, "decompress", decompress)
    packet = make_compound([folded(b"\x08" * 60_000)] * 100)
    assert len(packet) < 65_536
    with pytest.raises(CodecError):
        flatten(packet)
    assert unfolded <= 2 * UNFOLDED_BYTES_MAX


def test_compressions_in_compressions_share_the_bound() -> None:
    inner = make_compound([folded(b"\x08" * 60_000)] * 60)
    with pytest.raises(CodecError):
        flatten(make_compound([folded(inner)] * 60))
    assert flatten(make_compound([folded(b"\x08a"), folded(make_compound([b"\x08b", b"\x08c"]))])) == [
        b"\x08a",
        b"\x08b",
        b"\x08c",
    ]


@pytest.fixture
async def server() -> Any:
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    counts: Counter[str] = Counter()
    serving = ExchangeServer(
        sock,
        answer=lambda blob, source: b"\x08ok",
        refused=lambda fault, source: None,
        keyring=None,
        label="",
        timeout_s=5.0,
        counts=counts,
    )
    await serving.start()
    yield sock.getsockname(), counts, serving
    await serving.close()


async def test_connections_that_say_nothing_do_not_keep_others_out(server: Any) -> None:
    address, counts, _serving = server
    silent = [await asyncio.open_connection(*address) for _ in range(exchange.CONNECTIONS_PER_HOST_MAX)]
    await until(lambda: counts["connections_in"] == len(silent))
    ping = encode(Ping(seq_no=1, name=""))
    reader, writer = await asyncio.open_connection(*address)
    writer.write(ping)
    assert await asyncio.wait_for(reader.read(100), 5) != b""
    assert await asyncio.wait_for(silent[0][0].read(1), 5) == b""  # the one that has been silent longest
    assert counts["connections_refused"] == 1
    for _, open_one in [*silent, (reader, writer)]:
        open_one.close()


async def test_what_strangers_send_is_held_within_one_bound_for_all_of_them(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, counts, serving = server
    monkeypatch.setattr(exchange, "HELD_BYTES_MAX", 100_000)
    writers = []
    for _ in range(4):
        _, writer = await asyncio.open_connection(*address)
        writer.write(b"\x00" + struct.pack(">BI", 0x81, 1)[:1] + b"\xa1b" + b"\xc6" + struct.pack(">I", 10_000_000))
        writer.write(bytes(60_000))
        writers.append(writer)
    await until(lambda: counts["connections_over_memory"] >= 2)
    assert serving.held_bytes <= 100_000 + 4 * exchange.READ_BYTES
    for writer in writers:
        writer.close()
    await until(lambda: serving.held_bytes == 0)


def settings(name: str = "a", **more: Any) -> AgentSettings:
    return AgentSettings(pool="lan", name=name, listen=("127.0.0.1", 0), tags={}, timing=LOCAL, **more)


async def test_an_exchange_that_fails_in_an_unforeseen_way_answers_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> bytes:
        raise UnicodeError("encoding with 'idna' codec failed")

    monkeypatch.setattr(agent_module, "exchange", broken)
    agent = Agent(settings())
    await agent.start()
    try:
        with pytest.raises(ExchangeFailed):
            await asyncio.wait_for(agent.join_address(("127.0.0.1", 1)), 5)
    finally:
        await agent.stop(leave=False)


async def test_who_waits_for_an_exchange_when_the_member_ends_is_answered() -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    agent = Agent(settings())
    await agent.start()
    joining = asyncio.ensure_future(agent.join_address(silent.getsockname()))
    await asyncio.sleep(0.05)
    await agent.stop(leave=False)
    with pytest.raises(ExchangeFailed):
        await asyncio.wait_for(joining, 5)
    silent.close()


async def test_a_seed_that_is_no_host_name_has_no_address_and_ends_nothing() -> None:
    assert await seeds.resolve(["a..b:7946", "127.0.0.1:7946"]) == [("127.0.0.1", 7946)]


def test_names_of_other_meshes_are_remembered_within_a_bound() -> None:
    foreigners = Foreigners("ours", Counter())
    stranger = Member(
        name="x",
        address=("10.0.0.1", 1),
        meta=encode_tags({"cl": "theirs"}),
        versions=OUR_VERSIONS,
        state=MemberState.ALIVE,
        incarnation=1,
        changed_at=0.0,
    )
    for number in range(2 * NAMES_MAX):
        assert foreigners.tags_of(replace(stranger, name=f"x{number}")) is None
    assert foreigners.known <= NAMES_MAX


class LosesItsName:
    """A member whose name another one has, once."""

    def __init__(self) -> None:
        self.listeners = Listeners()
        self.address = ("127.0.0.1", 1)
        self.own_name = "a"
        self.said: list[str] = []

    async def start(self) -> None:
        self.said.append("start")
        if self.said == ["start"]:
            asyncio.get_running_loop().call_soon(self.listeners.on_name_lost, ("127.0.0.1", 2))

    async def stop(self, *, leave: bool = True) -> None:
        self.said.append("leave" if leave else "end")

    async def change_tags(self, tags: Any) -> None:
        self.said.append("tags")

    def members(self) -> list[Any]:
        return []

    def remembered(self) -> dict[str, Any]:
        return {}


async def test_a_member_that_lost_its_name_tries_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "NAME_LOST_PAUSE_S", 0.01)
    member: Any = LosesItsName()
    lost: list[str] = []
    both = pools.GossipPools({"lan": member}, on_name_lost=lost.append)
    await both.start()
    await until(lambda: member.said == ["start", "end", "start", "tags"])
    assert member.listeners.on_member and len(member.listeners.on_member) == 1
    await both.stop()
    assert member.said[-1] == "leave"
    assert lost == ["lan"]


async def test_an_agent_that_has_ended_can_be_started_again() -> None:
    agent = Agent(settings())
    for _ in range(2):
        await agent.start()
        assert [member.name for member in agent.members()] == ["a"]
        await agent.stop(leave=False)
