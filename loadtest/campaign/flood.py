"""`python -m loadtest.campaign flood`: connection floods and slow clients against a region, as another client sees it.

A producer and a consumer of 200 records a second measure the time from sending to reading: before, while 100,000
connections are attempted at the leader's Kafka port, while slow clients hold connections at its Kafka and HTTP ports,
and after each. Exit code 1 when a record failed or is missing, or when p99 under attack is over twice that before (and
over it by more than NOISE_MS: on a shared machine the scheduler alone makes so much).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from loadtest.bench.batched import create_topic
from loadtest.campaign.command_line import carry_out, new_parser
from loadtest.campaign.flooder import PARENT_VARIABLE
from loadtest.campaign.mesh import CampaignFailed
from loadtest.mesh_process import MeshProcess
from loadtest.scratch import scratch_directory

TOPIC: Final = "probe"
FACTOR_MAX: Final = 2.0
NOISE_MS: Final = 10.0
SETTLE_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of the monotonic clock, in seconds."""

    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Latencies of one phase in ms."""

    name: str
    records: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the sorted values lie (nearest rank)."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


def measured(phase: Phase, rows: Sequence[tuple[float, float]]) -> Measured:
    """Return what the records sent within a phase took. Raises CampaignFailed without any."""
    values = sorted(latency for sent, latency in rows if phase.start_s <= sent < phase.end_s)
    if not values:
        raise CampaignFailed(f"no record was read in the phase '{phase.name}'")
    return Measured(
        name=phase.name,
        records=len(values),
        p50_ms=percentile(values, 0.5),
        p99_ms=percentile(values, 0.99),
        max_ms=values[-1],
    )


def is_hurt(before: Measured, under: Measured) -> bool:
    """Return whether an attack was felt."""
    return under.p99_ms > max(FACTOR_MAX * before.p99_ms, before.p99_ms + NOISE_MS)


class Flood:
    """One run against one mesh."""

    def __init__(self, mesh: MeshProcess, directory: Path, options: argparse.Namespace) -> None:
        self._mesh = mesh
        self._directory = directory
        self._options = options
        self._region = mesh.endpoints["regions"]["us"]
        self.phases: list[Phase] = []
        self.attacks: dict[str, dict[str, Any]] = {}

    async def run(self) -> tuple[list[Measured], dict[str, int]]:
        """Return the phases and what the probe counted."""
        await asyncio.to_thread(create_topic, self._mesh, TOPIC, 1)
        leader = await asyncio.to_thread(self._leader)
        kafka, admin = self._region["kafka"][leader], self._region["admin"][leader]
        latencies = self._directory / "latencies.txt"
        ca = str(self._mesh.ca)
        probe = await self._python(
            "flood_probe", ",".join(self._region["kafka"]), TOPIC, str(self._options.rate), ca, str(latencies)
        )
        await asyncio.sleep(SETTLE_SECONDS)
        await self._quiet("before")
        options = self._options
        await self._attack("flood", "connect", kafka, str(options.attempts), str(options.attempts_per_s))
        await self._quiet("after the flood")
        await self._attack("slow clients", "loris", str(options.seconds * 2), f"{kafka},{admin}", ca)
        await self._quiet("after slow clients")
        probe.send_signal(signal.SIGTERM)
        output, _ = await probe.communicate()
        lines = (line.split() for line in latencies.read_text(encoding="ascii").splitlines())
        rows = [(float(sent), float(latency)) for sent, latency in lines]
        return [measured(phase, rows) for phase in self.phases], json.loads(output)

    def refusals(self) -> dict[str, int]:
        """Return what the brokers refused, by listener and reason, all brokers together."""
        counts: dict[str, int] = {}
        for admin in self._region["admin"]:
            for name, value in re.findall(r"georelay_listener_refused_total\{(.*?)\} (\S+)", self._scrape(admin)):
                labels = dict(re.findall(r'(\w+)="(\w+)"', name))
                key = f"{labels['listener']}: {labels['reason']}"
                counts[key] = counts.get(key, 0) + int(float(value))
        return counts

    def _leader(self) -> int:
        for _ in range(100):
            for number, admin in enumerate(self._region["admin"]):
                row = f'georelay_stream_is_leader{{origin="us",partition="0",topic="{TOPIC}"}} 1.0'
                if row in self._scrape(admin):
                    return number
            time.sleep(0.1)
        raise CampaignFailed(f"{TOPIC} has no leader")

    def _scrape(self, admin: str) -> str:
        url = f"{self._mesh.scheme}://{admin}/metrics"
        with urllib.request.urlopen(url, timeout=10, context=self._mesh.ssl_context) as answer:  # noqa: S310 - own mesh
            text: str = answer.read().decode()
            return text

    async def _quiet(self, name: str) -> None:
        start_s = time.monotonic()
        await asyncio.sleep(self._options.seconds)
        self.phases.append(Phase(name=name, start_s=start_s, end_s=time.monotonic()))

    async def _attack(self, name: str, *arguments: str) -> None:
        start_s = time.monotonic()
        attacker = await self._python("flooder", *arguments)
        output, _ = await attacker.communicate()
        if attacker.returncode:
            raise CampaignFailed(f"the attacker ended with {attacker.returncode}")
        self.attacks[name] = json.loads(output)
        self.phases.append(Phase(name=name, start_s=start_s, end_s=time.monotonic()))

    async def _python(self, module: str, *arguments: str) -> asyncio.subprocess.Process:
        # They end with us, however we end: an attacker without a purpose is the last thing a machine needs.
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
        command = (sys.executable, "-m", f"loadtest.campaign.{module}", *arguments)
        return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)


def table_of(phases: Sequence[Measured]) -> Table:
    """Return the table of a run."""
    table = Table(title="sending to reading of 200 records/s while others attack", title_justify="left")
    for column in ("phase", "records", "p50 ms", "p99 ms", "max ms", "p99 / before"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    for row in phases:
        ratio = row.p99_ms / phases[0].p99_ms
        table.add_row(
            row.name, str(row.records), f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}", f"{row.max_ms:.1f}", f"{ratio:.2f}"
        )
    return table


async def run(options: argparse.Namespace, console: Console) -> int:
    """Return the exit code."""
    with scratch_directory("georelay-flood-", options.scratch) as scratch:
        async with MeshProcess(scratch, regions="us", brokers_per_region=3, arguments=("--tls",)) as mesh:
            flood = Flood(mesh, scratch, options)
            phases, counted = await flood.run()
            refusals = await asyncio.to_thread(flood.refusals)
    console.print(table_of(phases))
    for name, counts in flood.attacks.items():
        console.print(f"{name}: {json.dumps(counts)}", markup=False, highlight=False)
    console.print(f"refused by the brokers: {json.dumps(refusals)}", markup=False, highlight=False)
    console.print(f"probe: {json.dumps(counted)}", markup=False, highlight=False)
    under = [row for row in phases if row.name in flood.attacks]
    exact = not counted["failed"] and counted["sent"] == counted["received"]
    return 0 if exact and not any(is_hurt(phases[0], row) for row in under) else 1


def main(arguments: list[str]) -> int:
    """Run it."""
    parser = new_parser("campaign flood", __doc__)
    parser.add_argument("--attempts", type=int, default=100_000, help="connections attempted (default 100000)")
    parser.add_argument("--attempts-per-s", type=float, default=4_000, help="how fast (default 4000)")
    parser.add_argument("--rate", type=float, default=200, help="records per second of the probe (default 200)")
    parser.add_argument("--seconds", type=float, default=10, help="of each quiet phase (default 10)")
    options = parser.parse_args(arguments)
    return carry_out(run, options, width_chars=120)
