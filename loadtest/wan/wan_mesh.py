"""A mesh in a WAN test bed, both started and steered through the command line, as anybody would."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from loadtest.bench.batched import ask
from loadtest.bench.client_settings import Settings
from loadtest.bench.machine import IdleWatch, cpu_seconds
from loadtest.campaign.mesh import georelay
from loadtest.mesh_process import MeshProcess
from loadtest.wan.floors_core import Conditions, Rtts, parse_pairs

PAIRS: Final = "us-eu=70ms,us-ap=150ms,eu-ap=120ms"
USER: Final = "bench"
METRIC: Final = "georelay_link_connections{"
COMMAND_SECONDS_MAX: Final = 120
SETTLE_SECONDS: Final = 5


class WanMesh(MeshProcess):
    """`georelay up --wan` as a child process. Use as an async context manager."""

    def __init__(
        self,
        directory: Path,
        *,
        brokers_per_region: int,
        pairs: str = PAIRS,
        congestion_control: str = "",
        arguments: tuple[str, ...] = (),
    ) -> None:
        """Take how many brokers each region has, what TCP uses between them ("": the kernel's), more words of `up`."""
        self.rtts: Rtts = parse_pairs(pairs)
        self.regions = list(dict.fromkeys(name for item in pairs.split(",") for name in item.split("=")[0].split("-")))
        self.bed = f"bench-{os.getpid()}"
        self._password = secrets.token_urlsafe(16)
        words = ["--wan", pairs, "--wan-name", self.bed, *arguments]
        if congestion_control:
            words += ["--wan-congestion-control", congestion_control]
        super().__init__(
            directory,
            regions=",".join(self.regions),
            brokers_per_region=brokers_per_region,
            arguments=tuple(words),
            user=(USER, self._password),
        )

    @property
    def credentials(self) -> str:
        """Return name and password of the one whom it lets do everything."""
        return f"{USER}:{self._password}"

    @property
    def client_settings(self) -> Settings:
        """Return how librdkafka signs in."""
        return {
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(self.ca),
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": self._password,
            # The mesh lets nobody in before it knows its users; then clients are told at once, not in a minute.
            "reconnect.backoff.max.ms": "500",
        }

    def wan(self, *words: str) -> dict[str, Any]:
        """Run `georelay wan WORDS --json` and return what it prints. Raises RuntimeError with what it says."""
        command = [sys.executable, "-P", "-m", "georelay.cli", "wan", *words, "--name", self.bed, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    async def wan_at_ns(self, *words: str) -> int:
        """The same for a change; returns when it was done, on the monotonic clock."""
        document = await asyncio.to_thread(self.wan, *words)
        return int(document["at_ns"])

    async def create_topic(
        self, name: str, *, homes: str = "one", home: str = "", config: dict[str, str] | None = None
    ) -> None:
        """Create a topic of one partition, and wait a moment until every region has heard of it."""
        words = ["topics", "create", name, "--partitions", "1", "--homes", homes, *(("--home", home) if home else ())]
        await self._georelay(*words)
        if config:
            pairs = [f"{key}={value}" for key, value in config.items()]
            await self._georelay("topics", "alter", name, *pairs)

    async def _georelay(self, *words: str) -> None:
        where = ("--endpoints", str(self.directory / "endpoints.json"))
        user = {"GEORELAY_USER": self.credentials}
        await georelay(*words, *where, within_s=COMMAND_SECONDS_MAX, environment=user)

    def congestion_control(self) -> str:
        """Return what the kernel uses on the links of a broker: "cubic", or "bbr 1, cubic 3" where they differ."""
        admin = self.endpoints["regions"][self.regions[0]]["admin"][0]
        rows = [line for line in ask(self, "/metrics", address=admin).decode().splitlines() if line.startswith(METRIC)]
        found: Counter[str] = Counter()
        for row in rows:
            found[row.split('"')[1]] += round(float(row.rpartition(" ")[2]))
        if not found:
            return "unknown (no link)"
        return next(iter(found)) if len(found) == 1 else ", ".join(f"{name} {count}" for name, count in found.items())

    def broker_pids(self) -> dict[str, list[int]]:
        """Return the pids of each region's brokers."""
        return {
            region: [
                self.pid_of(f"{region}-{row + 1}") for row in range(len(self.endpoints["regions"][region]["kafka"]))
            ]
            for region in self.regions
        }


class Watch:
    """What machine, brokers and router do between `start` and `stop`, which look at /proc only and cost nothing."""

    def __init__(self, mesh: WanMesh) -> None:
        self._mesh = mesh
        self._router = int(mesh.wan("stat")["bed"]["pid"])
        self._pids = {**mesh.broker_pids(), "gateway": [mesh.pid_of("gateway")], "router": [self._router]}
        self._idle = IdleWatch()
        self._cpu_s: dict[str, float] = {}
        self._idle_share = 0.0
        self.began_ns = 0
        self.ended_ns = 0

    @property
    def seconds(self) -> float:
        """Return how long it was."""
        return (self.ended_ns - self.began_ns) / 1e9

    def start(self) -> None:
        """Begin."""
        self._cpu_s = self._cpu_now()
        self._idle.start()
        self.began_ns = time.monotonic_ns()

    def stop(self) -> None:
        """End."""
        self.ended_ns = time.monotonic_ns()
        self._idle_share = self._idle.share()
        self._cpu_s = {name: now - self._cpu_s[name] for name, now in self._cpu_now().items()}

    def result(self) -> tuple[Conditions, dict[str, float]]:
        """Return the conditions, and CPU seconds by region, "gateway" and "router"; asks the test bed."""
        found = self._mesh.wan("stat")
        router = found["router"]
        began_s, ended_s = self.began_ns // 1_000_000_000, self.ended_ns // 1_000_000_000
        lags = [lag for second, lag in router["lag_seconds_us"] if began_s <= second <= ended_s]
        conditions = Conditions(
            idle_share=self._idle_share,
            lag_us=max(lags, default=0),
            realtime=bool(router["realtime"]),
            congestion_control=self._mesh.congestion_control(),
        )
        return conditions, self._cpu_s

    def _cpu_now(self) -> dict[str, float]:
        return {name: sum(map(cpu_seconds, pids)) for name, pids in self._pids.items()}
