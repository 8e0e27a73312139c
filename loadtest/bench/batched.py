"""Batched produce of 100 B records: two producers into one region of three brokers, fsync on."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import urllib.request
from typing import Any

from loadtest.bench.client_settings import PLAIN, Settings, environment
from loadtest.bench.machine import IdleWatch, cpu_seconds
from loadtest.bench.producer import LINGER_MS
from loadtest.mesh_process import MeshProcess

RECORDS_PER_PRODUCER = 400_000
PRODUCERS = 2
PARTITIONS = 6
RUNS = 3
PRODUCER_SECONDS_MAX = 180


def run(mesh: MeshProcess, *, records: int = RECORDS_PER_PRODUCER, runs: int = RUNS) -> list[str]:
    """Return report lines: medians of `runs` runs with idempotence off and on."""
    bootstrap = ",".join(mesh.endpoints["regions"]["us"]["kafka"])
    pids = [mesh.pid_of(f"us-{number}") for number in (1, 2, 3)]
    lines = []
    for idempotent in (False, True):
        topic = f"bench-{'idempotent' if idempotent else 'plain'}"
        create_topic(mesh, topic, PARTITIONS)
        rates, costs, idles, syncs = [], [], [], []
        for _ in range(runs):
            watch = IdleWatch()
            watch.start()
            cpu_before, syncs_before = sum(map(cpu_seconds, pids)), sync_count(mesh)
            outcomes = produce(bootstrap, topic, records, idempotent=idempotent)
            acknowledged = records * PRODUCERS
            rates.append(acknowledged / max(outcome["seconds"] for outcome in outcomes))
            costs.append((sum(map(cpu_seconds, pids)) - cpu_before) / acknowledged * 1e5)
            syncs.append((sync_count(mesh) - syncs_before) / acknowledged * 1e3)
            idles.append(watch.share())
        lines.append(
            f"batched produce, idempotence {'on ' if idempotent else 'off'}: "
            f"{statistics.median(rates):>9,.0f} records/s "
            f"(runs {', '.join(f'{rate:,.0f}' for rate in rates)}), "
            f"{statistics.median(costs):.3f} CPU s per 100,000 records summed over 3 brokers, "
            f"{statistics.median(syncs):.2f} syncs per 1,000 acknowledged records (3 brokers)"
        )
        if min(idles) < 0.1:
            lines.append(f"  note: only {min(idles):.0%} of the CPU was idle: producers and brokers shared the cores")
    return lines


def create_topic(mesh: MeshProcess, topic: str, partitions: int, *, home: str = "us") -> None:
    """Create a topic through the gateway."""
    ask(mesh, "/v1/topics", {"name": topic, "partitions": partitions, "homes": "one", "home": home})


def ask(mesh: MeshProcess, path: str, body: dict[str, Any] | None = None, *, address: str = "") -> bytes:
    """Return the answer to a GET, or to a POST of `body`, of the gateway or of the admin listener at `address`.

    Raises:
        urllib.error.URLError: no answer, or not a good one (HTTPError).
    """
    base = f"{mesh.scheme}://{address}" if address else mesh.gateway
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data=data, headers=mesh.headers)  # noqa: S310 - own mesh
    with urllib.request.urlopen(request, timeout=60, context=mesh.ssl_context) as answer:  # noqa: S310
        text: bytes = answer.read()
    return text


def sync_count(mesh: MeshProcess, region: str = "us") -> float:
    """Return how many syncs the brokers of a region have done, from their metrics."""
    return sum(metric(mesh, region, "georelay_log_syncs_total"))


def metric(mesh: MeshProcess, region: str, name: str) -> list[float]:
    """Return a metric without labels of every broker of a region; 0 where it is not known."""
    values = []
    for admin in mesh.endpoints["regions"][region]["admin"]:
        rows = [line.split() for line in ask(mesh, "/metrics", address=admin).decode().splitlines()]
        values.append(next((float(row[1]) for row in rows if row and row[0] == name), 0.0))
    return values


def produce(
    bootstrap: str,
    topic: str,
    records: int,
    *,
    idempotent: bool,
    rate_per_second: int = 0,
    linger_ms: int = LINGER_MS,
    settings: Settings = PLAIN,
) -> list[dict[str, float]]:
    """Run the producers and return what each says; `records` and rate (0: as fast as it can) are of each of them.

    Args:
        settings: how they connect.

    Raises:
        RuntimeError: not every record was acknowledged.
    """
    numbers = (records, int(idempotent), rate_per_second, linger_ms)
    arguments = [sys.executable, "-m", "loadtest.bench.producer", bootstrap, topic, *map(str, numbers)]
    running = [subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment(settings)) for _ in range(PRODUCERS)]
    outcomes = []
    for process in running:
        output, _ = process.communicate(timeout=PRODUCER_SECONDS_MAX)
        if process.returncode:
            raise RuntimeError(f"a producer ended with {process.returncode}")
        outcomes.append(json.loads(output))
    acknowledged = sum(outcome["acknowledged"] for outcome in outcomes)
    if acknowledged != records * PRODUCERS:
        raise RuntimeError(f"only {acknowledged} of {records * PRODUCERS} records were acknowledged")
    return outcomes
