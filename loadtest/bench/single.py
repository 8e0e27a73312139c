"""Single-record publishes at a steady rate over eight topics: publish -> deliver, in the region and at a mirror.

Open model: latency counts from the intended send time. Producer and consumers are foreign clients (librdkafka) in
processes of their own; the producer's own scheduling lag is printed beside the figures.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from loadtest.bench import client_process
from loadtest.bench.batched import create_topic
from loadtest.bench.client_settings import PLAIN, Settings
from loadtest.bench.machine import IdleWatch, context_switches, cpu_seconds
from loadtest.mesh_process import MeshProcess
from loadtest.quantile_core import quantile

TOPICS = 8
RATE_PER_SECOND = 1_000
SECONDS = 10
WARM_UP_SECONDS = 3
SETTLE_SECONDS = 3
RUNS = 3

Reader = tuple[object, ...]  # role of loadtest.bench.kafka_client and its last arguments


class Figure(NamedTuple):
    """What one run measured in one region; `cpu` of its brokers, in cores, their context switches per record sent."""

    p50_ms: float
    p99_ms: float
    p999_ms: float
    cpu: float
    switches: float


def run(mesh: MeshProcess, *, seconds: int = SECONDS, runs: int = RUNS) -> list[str]:
    """Return report lines for every region of the mesh; the first region is the home."""
    topics = [f"single-{number}" for number in range(TOPICS)]
    for topic in topics:
        create_topic(mesh, topic, 1)
    return measure(mesh, topics, partitions=1, seconds=seconds, runs=runs)


def measure(mesh: MeshProcess, topics: list[str], *, partitions: int, seconds: int, runs: int) -> list[str]:
    """Return report lines for records that go round `partitions` partitions of each of the topics."""
    time.sleep(SETTLE_SECONDS)
    regions = list(mesh.endpoints["regions"])
    figures: dict[str, list[Figure]] = {region: [] for region in regions}
    notes = []
    for _ in range(runs):
        one, note = run_once(mesh, topics, partitions=partitions, seconds=seconds)
        notes.append(note)
        for region, figure in one.items():
            figures[region].append(figure)
    lines = []
    for row, region in enumerate(regions):
        brokers = len(mesh.endpoints["regions"][region]["kafka"])
        place = f"{'mirror' if row else 'home'} region {region} ({brokers} broker{'s' if brokers > 1 else ''})"
        lines.append(line_of(f"{what(topics, partitions)}, {place}", figures[region]))
    return lines + [f"  {note}" for note in notes]


def what(topics: list[str], partitions: int) -> str:
    """Return what is sent, for the report."""
    return f"single records at {RATE_PER_SECOND}/s over {len(topics)} x {partitions} partitions"


def line_of(label: str, figures: list[Figure]) -> str:
    """Return the report line of several runs."""
    p50_ms, p99_ms, _, cpu, _ = (sorted(column)[len(column) // 2] for column in zip(*figures, strict=True))
    return (
        f"{label}: publish->deliver p50 {p50_ms:.2f} ms, p99 {p99_ms:.2f} ms "
        f"(p99 of the runs: {', '.join(f'{figure.p99_ms:.1f}' for figure in figures)}); CPU {cpu:.0%} of a core"
    )


def run_once(
    mesh: MeshProcess,
    topics: list[str],
    *,
    partitions: int,
    seconds: int,
    settings: Settings = PLAIN,
    readers: Sequence[Reader] = (("consume",),),
    rate_per_second: int = RATE_PER_SECOND,
) -> tuple[dict[str, Figure], str]:
    """Send for `seconds` after a time to warm up; return the figures of each region and a note on the producer.

    Args:
        settings: how the clients connect.
        readers: role and last arguments of the clients that read in each region.
        rate_per_second: of all records together.
    """
    regions = list(mesh.endpoints["regions"])
    pids = {
        region: [mesh.pid_of(f"{region}-{row + 1}") for row in range(len(mesh.endpoints["regions"][region]["kafka"]))]
        for region in regions
    }
    total = WARM_UP_SECONDS + seconds
    names = ",".join(topics)
    client = partial(client_process.start, "loadtest.bench.kafka_client", settings=settings)
    read_seconds = total + SETTLE_SECONDS + 2
    consumers = {
        region: [
            client(role, mesh.endpoints["regions"][region]["kafka"][0], names, partitions, read_seconds, *last)
            for role, *last in readers
        ]
        for region in regions
    }
    time.sleep(SETTLE_SECONDS)
    bootstrap = mesh.endpoints["regions"][regions[0]]["kafka"][0]
    producer = client("produce", bootstrap, names, partitions, rate_per_second, total)
    time.sleep(WARM_UP_SECONDS)
    measured_from = time.monotonic_ns()
    before = {region: _used(rows) for region, rows in pids.items()}
    watch = IdleWatch()
    watch.start()
    time.sleep(seconds - 1)
    used = {region: _used(rows) - before[region] for region, rows in pids.items()}
    lasted_s = (time.monotonic_ns() - measured_from) / 1e9
    idle = watch.share()
    sent = client_process.answer(producer)
    figures = {}
    for region, processes in consumers.items():
        rows = [row for process in processes for row in client_process.answer(process)["rows"]]
        latencies = [latency for due, latency in rows if due >= measured_from]
        p50_ms, p99_ms, p999_ms = (quantile(latencies, share, none=0) / 1e6 for share in (0.5, 0.99, 0.999))
        cpu, switches = used[region].cpu_s / lasted_s, used[region].switches / (lasted_s * rate_per_second)
        figures[region] = Figure(p50_ms, p99_ms, p999_ms, cpu, switches)
    note = (
        f"producer: {sent['sent']} sent, {sent['failed']} failed, own lag p99 {sent['lag_p99_ms']:.2f} ms; "
        f"idle CPU {idle:.0%}"
    )
    return figures, note + ("; note: less than 10 % idle" if idle < 0.1 else "")


@dataclass(frozen=True, slots=True)
class _Used:
    """What brokers have used since they began."""

    cpu_s: float
    switches: int

    def __sub__(self, before: _Used) -> _Used:
        return _Used(self.cpu_s - before.cpu_s, self.switches - before.switches)


def _used(pids: Sequence[int]) -> _Used:
    return _Used(sum(map(cpu_seconds, pids)), sum(map(context_switches, pids)))
