"""How long a gateway takes to say which region a client shall use: 1,000 questions a second, beside a running mesh.

`python -m loadtest.bench.resolve HOST:PORT RATE SECONDS` is its client: clients of many names ask POST /v1/resolve over
connections that are kept. It prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import uvloop

from loadtest.bench import client_process
from loadtest.bench.machine import Meter
from loadtest.bench.open_loop import ask_all
from loadtest.bench.schedule_core import Load
from loadtest.mesh_process import MeshProcess

RATES: Final = (250, 500, 1_000)  # per second
SECONDS: Final = 20
WARM_UP_SECONDS: Final = 3
GOAL_MS: Final = 5.0  # p99 at the last rate
CONNECTIONS: Final = 32
NAMES: Final = 5_000
DEADLINE_S: Final = 10.0
_LENGTH: Final = b"content-length: "


def run(mesh: MeshProcess, *, seconds: int = SECONDS) -> list[str]:
    """Return one report line for each rate."""
    gateway = {"gateway": mesh.pid_of("gateway")}
    ask = partial(client_process.ask, "loadtest.bench.resolve", urlsplit(mesh.gateway).netloc)
    ask(RATES[0], WARM_UP_SECONDS)
    lines = []
    for rate in RATES:
        meter = Meter(gateway)
        found = ask(rate, seconds)
        used_s = meter.cpu_s()
        lines.append(
            f"{rate} resolves/s due, {found['per_s']:.0f} answered ({found['answers']}): p50 {found['p50_ms']:.2f} ms, "
            f"p99 {found['p99_ms']:.2f} ms, max {found['p100_ms']:.1f} ms; gateway {used_s / found['took_s']:.2f} "
            f"cores, {used_s * 1e6 / found['due']:.0f} us of CPU each, {meter.resident_mib():.0f} MiB"
        )
    lines.append(f"goal: p99 <= {GOAL_MS:g} ms at {RATES[-1]}/s")
    return lines


async def resolve_all(address: str, rate: int, seconds: int) -> dict[str, Any]:
    """Ask for so long and wait for the answers; return what became of the questions."""
    host, _, port = address.rpartition(":")
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await asyncio.open_connection(host, int(port)))

    async def one(number: int, _: int) -> str:
        body = json.dumps({"client": f"client-{number % NAMES}"}).encode()
        reader, writer = await free.get()
        head = f"POST /v1/resolve HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        writer.write(head + body)
        try:
            async with asyncio.timeout(DEADLINE_S):
                told = await reader.readuntil(b"\r\n\r\n")
                at = told.lower().index(_LENGTH) + len(_LENGTH)
                await reader.readexactly(int(told[at : told.index(b"\r", at)]))
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            return type(error).__name__  # and this connection is used no more
        free.put_nowait((reader, writer))
        return told.split(b" ", 2)[1].decode()

    return await ask_all(Load(topics=["resolve"], rate_per_s=rate, seconds=seconds), one)


if __name__ == "__main__":
    address, rate, seconds = sys.argv[1:]
    sys.stdout.write(json.dumps(uvloop.run(resolve_all(address, int(rate), int(seconds)))) + "\n")
