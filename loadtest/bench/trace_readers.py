"""What readers of /v1/traces cost a broker: its loop and its CPU with and without them, under a steady load.

Readers go from the oldest row of every kind to the newest and begin again, as fast as they can, each with a connection
of its own; they are another process. The load is 1000 records per second, published and delivered at the same broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import sys
import threading
import time
from typing import Final

import georelay
from georelay.trace.position import NEXT_KEY
from loadtest.bench import client_process
from loadtest.bench.machine import Meter, cpu_seconds
from loadtest.bench.mesh_asks import LONGEST_STALL, STALLS, metric
from loadtest.bench.sdk_load import consume, publish
from loadtest.mesh_process import MeshProcess

TOPIC: Final = "bench-traces"
RECORDS_PER_S: Final = 1_000
SECONDS: Final = 30
READERS: Final = (0, 1, 4)
WARM_UP_S: Final = 20
KINDS: Final = ("delivery", "latency_hist", "ledger", "outcome", "probe", "clock")


def run(mesh: MeshProcess, *, seconds: int = SECONDS) -> list[str]:
    """Return report lines, one for each number of readers."""
    return asyncio.run(_measure(mesh, seconds))


async def _measure(mesh: MeshProcess, seconds: int) -> list[str]:
    address = mesh.endpoints["regions"]["us"]["admin"][0]
    broker = mesh.pid_of("us-1")
    lines = []
    async with georelay.connect(mesh.gateway, region="us") as connection, asyncio.TaskGroup() as tasks:
        await connection.admin.create_topic(TOPIC, partitions=3)
        load = [
            tasks.create_task(publish(connection, TOPIC, RECORDS_PER_S)),
            tasks.create_task(consume(connection, TOPIC)),
        ]
        await asyncio.sleep(WARM_UP_S)
        for readers in READERS:
            before, meter, loop_s = _stalls(mesh), Meter({"broker": broker}), cpu_seconds(broker, thread=broker)
            read = await asyncio.to_thread(_read, address, readers, seconds)
            stalls, used_s = _stalls(mesh) - before, meter.cpu_s()
            in_loop_s = cpu_seconds(broker, thread=broker) - loop_s
            longest_ms = max(metric(mesh, "us", LONGEST_STALL)) * 1e3
            lines.append(
                f"{readers} readers of traces beside {RECORDS_PER_S} records/s, {seconds} s: "
                f"{read['pages'] / seconds:.0f} pages and {read['rows'] / seconds:,.0f} rows/s, "
                f"{read['bytes'] / seconds / 1e6:.1f} MB/s; broker {used_s / seconds:.2f} CPU s per second, "
                f"{in_loop_s / seconds:.3f} of them its loop's, "
                f"{stalls:.0f} loop turns over 5 ms, the longest since its start {longest_ms:.1f} ms"
            )
            sys.stderr.write(f"{lines[-1]}\n")
        for task in load:
            task.cancel()
    return lines


def _stalls(mesh: MeshProcess) -> float:
    return sum(metric(mesh, "us", STALLS))


def _read(address: str, readers: int, seconds: int) -> dict[str, int]:
    """Run the readers in a process of their own."""
    if not readers:
        time.sleep(seconds)
        return {"pages": 0, "rows": 0, "bytes": 0}
    found: dict[str, int] = client_process.ask("loadtest.bench.trace_readers", address, readers, seconds)
    return found


def read_all(address: str, seconds: float, total: dict[str, int], lock: threading.Lock) -> None:
    """Read pages until the time is over; one thread of the readers' process."""
    import pyarrow as pa

    host, _, port = address.rpartition(":")
    end = time.monotonic() + seconds
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    with contextlib.closing(connection):
        while time.monotonic() < end:
            positions = json.loads(_get(connection, "/v1/traces"))["kinds"]
            for kind in KINDS:
                position, until = positions[kind]["oldest"], positions[kind]["latest"]
                while position != until and time.monotonic() < end:
                    raw = _get(connection, f"/v1/traces/{kind}?from={position}&until={until}")
                    table = pa.ipc.open_stream(raw).read_all()
                    position = table.schema.metadata[NEXT_KEY].decode()
                    with lock:
                        total["pages"] += 1
                        total["rows"] += table.num_rows
                        total["bytes"] += len(raw)


def _get(connection: http.client.HTTPConnection, target: str) -> bytes:
    connection.request("GET", target)
    answer = connection.getresponse()
    raw = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{target}: {answer.status} {raw[:200]!r}")
    return raw


def main(address: str, readers: str, seconds: str) -> None:
    """Be the readers' process; print what they read."""
    total = {"pages": 0, "rows": 0, "bytes": 0}
    lock = threading.Lock()
    threads = [
        threading.Thread(target=read_all, args=(address, float(seconds), total, lock)) for _ in range(int(readers))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(total))


if __name__ == "__main__":
    main(*sys.argv[1:])
