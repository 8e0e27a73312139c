"""Batched produce of 100 B records: two producers into one region of three brokers, fsync on.

As fast as they can, producers and brokers share the cores of one machine and slow each other down; at a pace some of
the CPU stays idle, so that the CPU seconds are those of the brokers.
"""

from __future__ import annotations

import json
import statistics
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from loadtest.bench import client_process
from loadtest.bench.client_settings import Settings
from loadtest.bench.machine import IdleWatch, cpu_seconds
from loadtest.mesh_process import MeshProcess

RECORDS_PER_PRODUCER = 400_000
VALUE_BYTES = 100
LINGER_MS = 5
PRODUCERS = 2
PARTITIONS = 6
RUNS = 3
IDLE_SHARE_MIN = 0.1
PACE_PER_SECOND = 400_000
PACED_LINGER_MS = 25
PACED_SECONDS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to produce, and where.

    Args:
        label: for the report.
        topic: that must be there.
        is_idempotent, linger_ms, settings: of the producers; settings: how they connect.
        rate_per_second, records: of each of them; rate 0: as fast as it can.
        value_bytes: of a record.
    """

    label: str
    mesh: MeshProcess
    topic: str
    is_idempotent: bool = True
    linger_ms: int = LINGER_MS
    settings: Settings = field(default_factory=dict)
    rate_per_second: int = 0
    records: int = RECORDS_PER_PRODUCER
    value_bytes: int = VALUE_BYTES


class Cost(NamedTuple):
    """What one run took: CPU seconds of the brokers per 100,000 records, their syncs per 1,000; idle: machine."""

    records_per_s: float
    cpu_s: float
    syncs: float
    idle_share: float


def run(mesh: MeshProcess, *, records: int = RECORDS_PER_PRODUCER, runs: int = RUNS) -> list[str]:
    """Return report lines: medians of `runs` runs with idempotence off and on, in turns."""
    ways = [
        Way(label="batched produce, idempotence off", mesh=mesh, topic="plain", is_idempotent=False, records=records),
        Way(label="batched produce, idempotence on ", mesh=mesh, topic="idempotent", records=records),
    ]
    return [line for way, costs in zip(ways, in_turns(ways, runs), strict=True) for line in lines_of(way, costs)]


def run_paced(mesh: MeshProcess, *, rate_per_second: int = PACE_PER_SECOND, seconds: int = PACED_SECONDS) -> list[str]:
    """Return report lines at a pace, of all producers together."""
    way = Way(
        label=f"batched produce at {rate_per_second:,}/s, linger {PACED_LINGER_MS} ms, idempotence off",
        mesh=mesh,
        topic="paced",
        is_idempotent=False,
        linger_ms=PACED_LINGER_MS,
        rate_per_second=rate_per_second // PRODUCERS,
        records=rate_per_second // PRODUCERS * seconds,
    )
    return lines_of(way, in_turns([way], RUNS, warms_up=True)[0])


def in_turns(ways: Sequence[Way], runs: int, *, warms_up: bool = False) -> list[list[Cost]]:
    """Make the topics, run every way `runs` times in turns, and return what each way took.

    Args:
        warms_up: a second of each pace before, for connections, first segments and caches.
    """
    for way in ways:
        create_topic(way.mesh, way.topic, PARTITIONS)
        if warms_up:
            produce(replace(way, records=way.rate_per_second))
    rounds = [[_cost_of(way) for way in ways] for _ in range(runs)]
    return [list(costs) for costs in zip(*rounds, strict=True)]


def lines_of(way: Way, costs: Sequence[Cost]) -> list[str]:
    """Return the report lines of several runs of one way."""
    rate, cpu_s, syncs, _ = (statistics.median(column) for column in zip(*costs, strict=True))
    line = (
        f"{way.label}: {rate:>9,.0f} records/s (runs {', '.join(f'{cost.records_per_s:,.0f}' for cost in costs)}), "
        f"{cpu_s:.3f} CPU s per 100,000 records summed over 3 brokers "
        f"(runs {', '.join(f'{cost.cpu_s:.3f}' for cost in costs)}), {syncs:.2f} syncs per 1,000 acknowledged records"
    )
    idle = min(cost.idle_share for cost in costs)
    note = f"  note: only {idle:.0%} of the CPU was idle: producers and brokers shared the cores"
    return [line, note] if idle < IDLE_SHARE_MIN else [line]


def _cost_of(way: Way) -> Cost:
    pids = [way.mesh.pid_of(f"us-{number}") for number in (1, 2, 3)]
    watch = IdleWatch()
    watch.start()
    cpu_before, syncs_before = sum(map(cpu_seconds, pids)), sync_count(way.mesh)
    seconds = produce(way)
    acknowledged = way.records * PRODUCERS
    return Cost(
        records_per_s=acknowledged / seconds,
        cpu_s=(sum(map(cpu_seconds, pids)) - cpu_before) / acknowledged * 1e5,
        syncs=(sync_count(way.mesh) - syncs_before) / acknowledged * 1e3,
        idle_share=watch.share(),
    )


def produce(way: Way) -> float:
    """Run the producers; return the seconds of the slower one. Raises RuntimeError: not every record was stored."""
    numbers = (way.records, int(way.is_idempotent), way.rate_per_second, way.linger_ms, way.value_bytes)
    bootstrap = ",".join(way.mesh.endpoints["regions"]["us"]["kafka"])
    words = ("loadtest.bench.kafka_client", "bulk", bootstrap, way.topic, *numbers)
    running = [client_process.start(*words, settings=way.settings) for _ in range(PRODUCERS)]
    outcomes = [client_process.answer(process) for process in running]
    acknowledged = sum(outcome["acknowledged"] for outcome in outcomes)
    if acknowledged != way.records * PRODUCERS:
        raise RuntimeError(f"only {acknowledged} of {way.records * PRODUCERS} records were acknowledged")
    return float(max(outcome["seconds"] for outcome in outcomes))


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
