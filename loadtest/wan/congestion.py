"""Congestion control of one bare TCP connection between regions: small records on it, and as much as it takes.

The default of `link_congestion_control` rests on this. No mesh runs; the connections are made by `wan exec`.
Its two ends are `python -m loadtest.wan.congestion serve ADDRESS SILENCE_S KIND` and `... send SOURCE TARGET ALGORITHM
SECONDS RATE` (RATE 0: as much as it takes); the first prints {"late_us": [...], "bytes": n, "seconds": s}.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from loadtest.quantile_core import quantile
from loadtest.wan.wan_mesh import COMMAND, WanBed, wan

ALGORITHMS: Final = ("reno", "cubic", "bbr")
LOSSES: Final = ("0", "0.1%", "1%")
RATE_PER_S: Final = 300
PORT: Final = 9_200
STAMP: Final = struct.Struct("!Q")
RECORD_BYTES: Final = 100
BULK_BYTES: Final = 1 << 18
SILENCE_S: Final = 3.0
BULK_S: Final = 5.0


def measure(pairs: str, *, seconds: float, losses: Sequence[str] = LOSSES) -> list[str]:
    """Return report lines: every algorithm at every loss, between the first two regions."""
    name = f"tcp-{os.getpid()}"
    regions, _, round_trip = pairs.split(",")[0].partition("=")
    source, destination = regions.split("-")
    floor_ms = float(round_trip.removesuffix("ms")) / 2
    wan("up", pairs, "--name", name, "--detach")
    try:
        bed = WanBed(name)
        addresses = [bed.address(source), bed.address(destination)]
        lines = []
        for loss in losses:
            bed.wan("slow", source, destination, "--loss", loss)
            for algorithm in ALGORITHMS:
                ends = (name, source, destination, addresses, algorithm)
                small, bulk = _run(*ends, seconds, RATE_PER_S), _run(*ends, min(seconds, BULK_S), 0)
                above = [late / 1e3 - floor_ms for late in small["late_us"]]
                lines.append(
                    f"  loss {loss:>4}, {algorithm:<5}: records above the floor of {floor_ms:g} ms p50 "
                    f"{quantile(above, 0.5):.2f} ms, p99 {quantile(above, 0.99):.2f} ms, most {max(above):.1f} ms; "
                    f"bulk {bulk['bytes'] * 8 / bulk['seconds'] / 1e6:.1f} Mbit/s"
                )
        router = bed.wan("stat")["router"]
        lines.append(f"  lag of the router: at most {router['lag_worst_us'] / 1e3:.2f} ms")
        return lines
    finally:
        wan("down", "--name", name)


def _run(
    name: str, source: str, destination: str, addresses: list[str], algorithm: str, seconds: float, rate_per_s: int
) -> dict[str, Any]:
    end = (sys.executable, "-m", "loadtest.wan.congestion")
    kind = "records" if rate_per_s else "bulk"
    inside = [*COMMAND, "exec", destination, "--name", name, "--"]
    serving = subprocess.Popen(
        [*inside, *end, "serve", addresses[1], str(SILENCE_S), kind], stdout=subprocess.PIPE, text=True
    )
    assert serving.stdout is not None
    serving.stdout.readline()
    outside = [*COMMAND, "exec", source, "--name", name, "--"]
    numbers = (algorithm, str(seconds), str(rate_per_s))
    subprocess.run([*outside, *end, "send", *addresses, *numbers], check=True, timeout=120)
    output, _ = serving.communicate(timeout=120)
    answer: dict[str, Any] = json.loads(output)
    return answer


def serve(address: str, seconds: str, kind: str) -> None:
    """Read one connection to its end, or until it is silent for so long; kind: records (with stamps) or bulk."""
    with socket.create_server((address, PORT)) as listener:
        listener.settimeout(60)
        print(json.dumps({"ready": True}), flush=True)
        connection, _ = listener.accept()
    late_us: list[float] = []
    total, began, rest = 0, time.monotonic(), b""
    last = began
    with connection:
        connection.settimeout(float(seconds))
        while piece := _receive(connection):
            total, last = total + len(piece), time.monotonic()
            now_ns = time.monotonic_ns()
            if kind == "bulk":
                continue
            rest += piece
            while len(rest) >= RECORD_BYTES:
                late_us.append((now_ns - STAMP.unpack_from(rest)[0]) / 1e3)
                rest = rest[RECORD_BYTES:]
    print(json.dumps({"late_us": late_us, "bytes": total, "seconds": last - began}))


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(BULK_BYTES)
    except (TimeoutError, ConnectionResetError):  # silence, or the sender forgot what was left
        return b""


def send(source: str, target: str, algorithm: str, seconds: str, rate_per_s: str) -> None:
    """Send stamped records at a rate, or as much as the connection takes."""
    with socket.socket() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.bind((source, 0))
        connection.connect((target, PORT))
        began = time.monotonic_ns()
        ends_ns = began + int(float(seconds) * 1e9)
        if int(rate_per_s) == 0:
            connection.settimeout(float(seconds))
            while time.monotonic_ns() < ends_ns:
                connection.send(b"\xff" * BULK_BYTES)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # forget the rest
            return
        for number in range(int(float(seconds) * int(rate_per_s))):
            due = began + number * 1_000_000_000 // int(rate_per_s)
            ahead_ns = due - time.monotonic_ns()
            if ahead_ns > 0:
                time.sleep(ahead_ns / 1e9)
            connection.sendall(STAMP.pack(time.monotonic_ns()).ljust(RECORD_BYTES, b"."))


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {"serve": serve, "send": send}
    roles[sys.argv[1]](*sys.argv[2:])
