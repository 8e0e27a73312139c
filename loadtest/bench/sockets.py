"""What idle sockets cost: memory and CPU per socket, of brokers and of the gateway, within the default limits.

Clients come from several loopback addresses: one address has 2,000 connections at most.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from typing import Final

import aiohttp

from loadtest.bench.machine import Meter
from loadtest.bench.mesh_asks import create_topic
from loadtest.mesh_process import MeshProcess

TOPIC: Final = "idle-sockets"
PARTITIONS: Final = 3
SOCKETS: Final = 10_000
THROUGH_GATEWAY: Final = 3_000
OF_ADDRESS: Final = 1_500
AT_ONCE: Final = 50
FILES_BESIDE: Final = 1_000  # that a process opens beside its sockets
SETTLE_SECONDS: Final = 5
SECONDS: Final = 30
_SUBSCRIBE: Final = json.dumps(
    {"type": "subscribe", "id": 1, "topic": TOPIC, "from": "latest", "credit_bytes": 1_000_000}
)


def run(mesh: MeshProcess) -> list[str]:
    """Return report lines: the brokers' sockets, then the gateway's.

    Where too few files may be open, a line says that nothing was measured.
    """
    files, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], max(SOCKETS, 2 * THROUGH_GATEWAY) + FILES_BESIDE
    if files < needed:
        return [f"not measured: {files} files may be open; begin with 'ulimit -n {needed}'"]
    create_topic(mesh, TOPIC, PARTITIONS)
    brokers = {f"us-{place}": admin for place, admin in enumerate(mesh.endpoints["regions"]["us"]["admin"], 1)}
    each = SOCKETS // len(brokers)
    pids = {name: mesh.pid_of(name) for name in (*brokers, "gateway")}
    urls = {name: f"http://{admin}/v1/socket" for name, admin in brokers.items()}
    lines = asyncio.run(_measured(urls, pids, each))
    return lines + asyncio.run(_measured({"gateway": f"{mesh.gateway}/v1/socket"}, pids, THROUGH_GATEWAY))


async def _measured(urls: dict[str, str], pids: dict[str, int], each: int) -> list[str]:
    before = Meter(pids)
    memory = {name: before.resident_mib(name) for name in pids}
    sessions: list[aiohttp.ClientSession] = []
    readers: list[asyncio.Task[None]] = []
    began_s = time.monotonic()
    try:
        for url in urls.values():
            await _open(url, each, sessions, readers)
        took_s = time.monotonic() - began_s
        await asyncio.sleep(SETTLE_SECONDS)
        meter = Meter(pids)
        grown = {name: (meter.resident_mib(name) - memory[name]) * 1024 for name in pids}
        await asyncio.sleep(SECONDS)
        shares = {name: meter.share(name) for name in pids}
        ended = sum(reader.done() for reader in readers)
        if ended:
            raise RuntimeError(f"{ended} of {len(readers)} sockets did not stay open")
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, *(session.close() for session in sessions), return_exceptions=True)
    total = each * len(urls)
    return [
        f"{total:,} idle sockets at {', '.join(urls)}, each subscribed to {PARTITIONS} partitions; "
        f"opened in {took_s:.0f} s",
        *(
            f"  {name}: {grown[name] / 1024:.0f} MiB more ({grown[name] / each:.1f} KiB per socket of its own), "
            f"{shares[name]:.1%} of a core over {SECONDS} s"
            for name in urls
        ),
    ]


async def _open(url: str, count: int, sessions: list[aiohttp.ClientSession], readers: list[asyncio.Task[None]]) -> None:
    """Open so many sockets, each read by a task."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(session: aiohttp.ClientSession) -> None:
        async with places:
            ws = await session.ws_connect(url, autoping=True)
            await ws.send_str(_SUBSCRIBE)
            said = [json.loads((await ws.receive(timeout=60)).data)["type"] for _ in range(2)]
            if said != ["hello", "subscribed"]:
                raise RuntimeError(f"a socket was answered {said}")
        readers.append(asyncio.get_running_loop().create_task(_read(ws)))

    first = len(sessions)
    for start in range(0, count, OF_ADDRESS):
        source = f"127.0.0.{2 + (first + start // OF_ADDRESS) % 200}"
        connector = aiohttp.TCPConnector(limit=0, local_addr=(source, 0))
        session = aiohttp.ClientSession(connector=connector)
        sessions.append(session)
        await asyncio.gather(*(one(session) for _ in range(min(OF_ADDRESS, count - start))))


async def _read(ws: aiohttp.ClientWebSocketResponse) -> None:
    """Answer pings until the session closes."""
    while (await ws.receive()).type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
        pass
