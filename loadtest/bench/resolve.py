"""How long a gateway takes to say which region a client shall use: 1,000 questions a second, beside a running mesh."""

from __future__ import annotations

from functools import partial
from typing import Final
from urllib.parse import urlsplit

from loadtest.bench import client_process
from loadtest.bench.machine import Meter
from loadtest.mesh_process import MeshProcess

RATES: Final = (250, 500, 1_000)  # per second
SECONDS: Final = 20
WARM_UP_SECONDS: Final = 3
GOAL_MS: Final = 5.0  # p99 at the last rate


def run(mesh: MeshProcess, *, seconds: int = SECONDS) -> list[str]:
    """Return one report line for each rate."""
    address, gateway = urlsplit(mesh.gateway).netloc, mesh.pid_of("gateway")
    ask = partial(client_process.ask, "loadtest.bench.resolve_client", address)
    ask(RATES[0], WARM_UP_SECONDS)
    lines = []
    for rate in RATES:
        meter = Meter({"gateway": gateway})
        found = ask(rate, seconds)
        used_s = meter.cpu_s()
        each_us = used_s * 1e6 / sum(found["answers"].values())
        lines.append(
            f"{rate} resolves/s due, {found['per_s']:.0f} answered {found['answers']}: p50 {found['p50_ms']:.2f} ms, "
            f"p99 {found['p99_ms']:.2f} ms, max {found['p100_ms']:.1f} ms; gateway "
            f"{used_s / found['took_s']:.2f} cores, {each_us:.0f} us of CPU each, "
            f"{meter.resident_mib():.0f} MiB"
        )
    lines.append(f"goal: p99 <= {GOAL_MS:g} ms at {RATES[-1]}/s")
    return lines
