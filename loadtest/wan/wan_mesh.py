"""A mesh in a WAN test bed, both started and steered through the command line, as anybody would."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from loadtest.bench.mesh_asks import ask
from loadtest.login import Login, settings_of
from loadtest.mesh_process import MeshProcess

USER: Final = "bench"
PAIRS: Final = "us-eu=70ms,us-ap=150ms,eu-ap=120ms"
COMMAND: Final = (sys.executable, "-P", "-m", "georelay.cli", "wan")
METRIC: Final = "georelay_link_connections{"
COMMAND_SECONDS_MAX: Final = 120


def wan(*words: str) -> str:
    """Run `georelay wan WORDS` and return what it prints. Raises RuntimeError with what it says."""
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


class WanBed:
    """A test bed that runs, steered by its name."""

    def __init__(self, bed: str) -> None:
        self.bed = bed

    def wan(self, *words: str) -> dict[str, Any]:
        """Run `georelay wan WORDS --json` and return what it prints. Raises RuntimeError with what it says."""
        document: dict[str, Any] = json.loads(wan(*words, "--name", self.bed, "--json"))
        return document

    async def wan_at_ns(self, *words: str) -> int:
        """The same for a change; returns when it was done, on the monotonic clock."""
        document = await asyncio.to_thread(self.wan, *words)
        return int(document["at_ns"])

    @cached_property
    def record(self) -> dict[str, Any]:
        """Return what the bed is, which stays as it is."""
        found: dict[str, Any] = self.wan("stat")["bed"]
        return found

    @property
    def host(self) -> str:
        """Return where processes in the regions reach those outside of the bed; no cut touches that way."""
        return f"198.19.{16 * self.record['plan']['slot']}.2"

    def entrance(self, region: str) -> tuple[str, ...]:
        """Return the words in front of a command of root's whose network is to be that of a region."""
        return ("nsenter", f"--net=/proc/{self.record['pid']}/fd/{self.record['networks'][region]}", "--")

    def address(self, place: str, number: int = 1) -> str:
        """Return an address of a region; brokers have the first ones."""
        plan = self.record["plan"]
        return f"198.18.{16 * plan['slot'] + 1 + plan['regions'].index(place)}.{number}"

    def router_since(self, since_ns: int) -> dict[str, Any]:
        """Return how late the router was at its worst in each second since then (monotonic), "lag_us", and if it is
        "realtime".
        """
        router = self.wan("stat")["router"]
        lags = [lag for second, lag in router["lag_seconds_us"] if second >= since_ns // 1_000_000_000]
        return {"lag_us": lags, "realtime": bool(router["realtime"])}


class WanMesh(MeshProcess, WanBed):
    """`georelay up --wan` as a child process. Use as an async context manager."""

    def __init__(
        self,
        directory: Path,
        *,
        brokers_per_region: int,
        pairs: str = PAIRS,
        regions: tuple[str, ...] = (),
        congestion_control: str = "",
        arguments: tuple[str, ...] = (),
    ) -> None:
        """Take how many brokers each region has, what TCP uses between them ("": the kernel's), more words of `up`.

        Args:
            regions: those with brokers; none: all that `pairs` names.
        """
        self.regions = list(regions) or list(
            dict.fromkeys(name for item in pairs.split(",") for name in item.split("=")[0].split("-"))
        )
        WanBed.__init__(self, f"bench-{os.getpid()}")
        words = ["--wan", pairs, "--wan-name", self.bed, *arguments]
        if congestion_control:
            words += ["--wan-congestion-control", congestion_control]
        super().__init__(
            directory,
            regions=",".join(self.regions),
            brokers_per_region=brokers_per_region,
            arguments=tuple(words),
            user=(USER, secrets.token_urlsafe(16)),
        )

    @property
    def login(self) -> Login:
        """Return how clients sign in."""
        return Login(rdkafka=settings_of(self))

    def bed_since(self, since_ns: int) -> dict[str, Any]:
        """Return how the bed was since then (monotonic): `router_since`, and what TCP used, "congestion_control"."""
        return {**self.router_since(since_ns), "congestion_control": self.congestion_control()}

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
