"""What benchmarks ask of a mesh over HTTP: topics, and figures that brokers keep."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from typing import Any

from loadtest.http_body import body_of
from loadtest.mesh_process import MeshProcess

SYNCS = "georelay_log_syncs_total"
STALLS = "georelay_loop_stalls_total"
LONGEST_STALL = "georelay_loop_stall_seconds_max"


def create_topic(mesh: MeshProcess, topic: str, partitions: int, *, home: str = "us") -> None:
    """Create a topic through the gateway."""
    ask(mesh, "/v1/topics", {"name": topic, "partitions": partitions, "homes": "one", "home": home})


def ask(mesh: MeshProcess, path: str, body: Mapping[str, Any] | None = None, *, address: str = "") -> bytes:
    """Return the answer to a GET, or to a POST of `body`, of the gateway or of the admin listener at `address`.

    Raises:
        urllib.error.URLError: no answer, or not a good one (HTTPError).
    """
    base = f"{mesh.scheme}://{address}" if address else mesh.gateway
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data=data, headers=mesh.headers)  # noqa: S310 - own mesh
    return body_of(request, timeout_s=60, context=mesh.ssl_context)


def metric(mesh: MeshProcess, region: str, name: str) -> list[float]:
    """Return a metric without labels of every broker of a region. Raises LookupError: a broker does not know it."""
    values = []
    for admin in mesh.endpoints["regions"][region]["admin"]:
        rows = [line.split() for line in ask(mesh, "/metrics", address=admin).decode().splitlines()]
        if not (found := [float(row[1]) for row in rows if row and row[0] == name]):
            raise LookupError(f"{admin} has no metric {name}")
        values += found
    return values


def pids_of(mesh: MeshProcess, *regions: str) -> dict[str, int]:
    """Return the processes of the brokers of these regions, of all without any, by their names."""
    return {
        name: mesh.pid_of(name)
        for region in regions or mesh.endpoints["regions"]
        for name in (f"{region}-{row + 1}" for row in range(len(mesh.endpoints["regions"][region]["kafka"])))
    }


def loop_stalls(mesh: MeshProcess) -> list[str]:
    """Return how often since their start, and for how long at most, the event loops of the brokers were held."""
    lines = []
    for region in mesh.endpoints["regions"]:
        counts, longest = metric(mesh, region, STALLS), metric(mesh, region, LONGEST_STALL)
        lines.append(
            f"  event loops of {region}: {', '.join(f'{count:.0f}' for count in counts)} turns over 5 ms, "
            f"the longest {max(longest) * 1e3:.1f} ms (other processes' turns on the CPU are among them)"
        )
    return lines
