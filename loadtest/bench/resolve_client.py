"""The client of the benchmark of POST /v1/resolve, see loadtest.bench.resolve: `... HOST:PORT RATE SECONDS`.

Clients of many names ask over connections that are kept. What is measured begins when a question was due, so that a
gateway that falls behind is not asked less. Prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any, Final

import uvloop

from loadtest.quantile_core import quantile

CONNECTIONS: Final = 32
NAMES: Final = 5_000
TICK_S: Final = 0.001
DEADLINE_S: Final = 10.0
_LENGTH: Final = b"content-length: "


async def ask(address: str, rate: int, seconds: int) -> dict[str, Any]:
    """Ask for so long and wait for the answers; return what became of the questions."""
    host, _, port = address.rpartition(":")
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await asyncio.open_connection(host, int(port)))
    answers: Counter[str] = Counter()
    latencies_ns: list[int] = []

    async def one(number: int, due_ns: int) -> None:
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
            answers[type(error).__name__] += 1
            return  # and this connection is used no more
        answers[told.split(b" ", 2)[1].decode()] += 1
        latencies_ns.append(time.monotonic_ns() - due_ns)
        free.put_nowait((reader, writer))

    began_ns = time.monotonic_ns()
    async with asyncio.TaskGroup() as tasks:
        for number in range(rate * seconds):
            due_ns = began_ns + number * 1_000_000_000 // rate
            while time.monotonic_ns() < due_ns:
                await asyncio.sleep(TICK_S)
            tasks.create_task(one(number, due_ns))
    took_s = (time.monotonic_ns() - began_ns) / 1e9  # longer than it should where the gateway falls behind
    return {
        "answers": dict(answers),
        "took_s": took_s,
        "per_s": len(latencies_ns) / took_s,
        **{f"p{share}_ms": quantile(latencies_ns, share / 100, none=0) / 1e6 for share in (50, 99, 100)},
    }


def main() -> None:
    """Ask as the arguments say."""
    address, rate, seconds = sys.argv[1:]
    sys.stdout.write(json.dumps(uvloop.run(ask(address, int(rate), int(seconds)))) + "\n")


if __name__ == "__main__":
    main()
