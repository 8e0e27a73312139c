"""A running agent under hostile packets and connections: it drops, counts, and stays a member."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from mesh.gossip.agent import Agent, AgentSettings
from mesh.gossip.codec import user_message
from mesh.gossip.serf_messages import JoinIntent, LeaveIntent, Query, Relay, UserEvent
from mesh.gossip.view import MemberStatus

PACKETS = 3_000
STREAMS = 60
VALID = [
    user_message(JoinIntent(ltime=3, name="a").encode()),
    user_message(LeaveIntent(ltime=4, name="b", prune=True).encode()),
    user_message(UserEvent(ltime=5, name="e", payload=b"p" * 64).encode()),
    user_message(
        Query(
            ltime=6,
            query_id=7,
            address=("127.0.0.1", 9),
            source="x",
            filters=(b"\x00\x91\xa1a", b"\x01\x82\xa3Tag\xa4role\xa4Expr\xa6(a+)+$"),
            flags=1,
            relay_factor=255,
            timeout_ns=2**62,
            name="q",
            payload=b"",
        ).encode()
    ),
    user_message(Relay(address=("127.0.0.1", 9), name="y", body=b"\x05\x80").encode()),
]


def mutated(rng: random.Random) -> bytes:
    raw = bytearray(rng.choice(VALID))
    for _ in range(rng.randrange(6)):
        kind, at = rng.randrange(4), rng.randrange(len(raw) or 1)
        if kind == 0 and raw:
            raw[at] = rng.randrange(256)
        elif kind == 1:
            del raw[at:]
        elif kind == 2:
            raw[at:at] = rng.randbytes(rng.randrange(9))
        else:
            raw += raw[: rng.randrange(40)]
    return bytes(raw) if rng.random() < 0.8 else rng.randbytes(rng.randrange(1500))


@pytest.mark.parametrize("seed", range(3))
async def test_an_agent_survives_hostile_bytes_and_its_pool_stays_whole(seed: int) -> None:
    rng = random.Random(seed)
    agents = [
        Agent(AgentSettings(pool="lan", name=name, listen=("127.0.0.1", 0), tags={"role": "broker"})) for name in "ab"
    ]
    for agent in agents:
        await agent.start()
    target = agents[0]
    await agents[1].join([f"127.0.0.1:{target.address[1]}"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for n in range(PACKETS):
            sender.sendto(mutated(rng), target.address)
            if n % 50 == 0:
                await asyncio.sleep(0.005)
    for _ in range(STREAMS):
        reader, writer = await asyncio.open_connection(*target.address)
        writer.write(mutated(rng) if rng.random() < 0.5 else b"\x06" + rng.randbytes(200))
        if rng.random() < 0.7:
            writer.write_eof()
            async with asyncio.timeout(15):
                await reader.read()
        writer.close()
    await asyncio.sleep(0.2)
    await agents[1].change_tags({"role": "still here"})
    for _ in range(300):
        if {m.name: m.tags.get("role") for m in target.members()}.get("b") == "still here":
            break
        await asyncio.sleep(0.02)
    own = {member.name: member for member in target.members()}
    assert own["b"].tags == {"role": "still here"}
    assert own["a"].status is MemberStatus.ALIVE
    counts = target.all_counts()
    assert counts["packets_in"] > PACKETS // 2
    assert len(target.serf.table.rows) <= 3
    await asyncio.gather(*(agent.stop(leave=False) for agent in agents))
