"""An attacker of listeners, at low priority: on one machine it must not win by taking the CPU itself.

`python -m loadtest.load.flooder connect HOST:PORT ATTEMPTS RATE` opens connections as fast as RATE per second;
every fourth says something that is no TLS, all are reset after a moment. `... loris SECONDS KAFKA,ADMIN CA` holds
connections that never finish: TLS handshakes, and a byte per second of a Kafka frame and of an HTTP head.
Prints one JSON line with counts. Sources are 127.0.0.2 and 127.0.0.3, so that limits per address see another client.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import struct
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import uvloop

from georelay.tls import client_contexts

CONNECT_SOURCE = "127.0.0.2"
LORIS_SOURCE = "127.0.0.3"
PRIORITY = 10
CONNECT_SECONDS_MAX = 0.5
HELD_SECONDS = 0.02
AT_ONCE_MAX = 2_000
EVERY_TALKS = 4
LORIS_EACH = 100
RESET = struct.pack("ii", 1, 0)


async def attempt(address: tuple[str, int], number: int, counts: Counter[str]) -> None:
    """Connect once, whatever becomes of it."""
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.bind((CONNECT_SOURCE, 0))
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                await loop.sock_connect(connection, address)
                if number % EVERY_TALKS == 0:
                    await loop.sock_sendall(connection, os.urandom(64))
                await asyncio.sleep(HELD_SECONDS)
                counts["connected"] += 1
        except TimeoutError:
            counts["timed out"] += 1
        except OSError as error:
            counts[os.strerror(error.errno or 0).lower()] += 1


async def connect_flood(address: tuple[str, int], attempts: int, rate: float) -> dict[str, float]:
    """Make the attempts; return counts."""
    counts: Counter[str] = Counter()
    running: set[asyncio.Task[None]] = set()
    began = time.monotonic()
    for number in range(attempts):
        due = began + number / rate - time.monotonic()
        if due > 0:
            await asyncio.sleep(due)
        while len(running) >= AT_ONCE_MAX:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.ensure_future(attempt(address, number, counts))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return {"attempts": attempts, "seconds": time.monotonic() - began, **counts}


async def trickle(address: tuple[str, int], text: bytes, context: ssl.SSLContext | None, counts: Counter[str]) -> None:
    """Send a byte per second until cut off."""
    try:
        reader, writer = await asyncio.open_connection(*address, ssl=context, local_addr=(LORIS_SOURCE, 0))
    except (OSError, ssl.SSLError):
        counts["refused"] += 1
        return
    counts["held"] += 1
    with suppress(OSError, ssl.SSLError):
        for position in range(10_000):
            writer.write(text[position % len(text)].to_bytes(1, "big"))
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    if await reader.read(1) == b"":
                        break
    counts["cut off"] += 1
    writer.close()


async def loris(seconds: float, kafka: tuple[str, int], admin: tuple[str, int], ca: Path) -> dict[str, float]:
    """Hold connections in every way; return counts."""
    context = client_contexts(ca=ca).client()
    counts: Counter[str] = Counter()
    frame = struct.pack(">ihhi", 60_000, 18, 3, 1) + bytes(60_000)
    head = b"GET /v1/status HTTP/1.1\r\nhost: a\r\nx-slow: " + b"a" * 10_000
    tasks = []
    for _ in range(LORIS_EACH):
        tasks.append(asyncio.ensure_future(trickle(kafka, b"\x16\x03\x01\x02\x00", None, counts)))
        tasks.append(asyncio.ensure_future(trickle(kafka, frame, context, counts)))
        tasks.append(asyncio.ensure_future(trickle(admin, head, context, counts)))
        await asyncio.sleep(0.01)
    await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {"seconds": seconds, **counts}


def address_of(text: str) -> tuple[str, int]:
    """Return (host, port)."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def main(arguments: list[str]) -> int:
    """Attack."""
    os.nice(PRIORITY)
    if arguments[0] == "connect":
        done = uvloop.run(connect_flood(address_of(arguments[1]), int(arguments[2]), float(arguments[3])))
    else:
        kafka, admin = map(address_of, arguments[2].split(","))
        done = uvloop.run(loris(float(arguments[1]), kafka, admin, Path(arguments[3])))
    sys.stdout.write(json.dumps(done) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
