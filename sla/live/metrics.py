"""live.json as Prometheus metrics: counts since the checkpoint was begun, so that Prometheus makes windows of them.

Rule 1: a record is late three times: as measured, surely (whatever the clocks hide) and perhaps. Who is woken by an
        alert is woken by what is sure.
Rule 2: what is served is the file, as it stands at each scrape: a view that nobody keeps any more is told by its age.
Rule 3: on this host only: there is no sign-in.
"""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sla.errors import JobFailed, UsageError

_LATE: Final = {"measured": "n_good", "surely": "n_good_hi", "perhaps": "n_good_lo"}
_OUTCOMES: Final = ("ok", "client_error", "server_error", "timeout")


class LiveCollector(Collector):
    """Reads a live.json when it is scraped.

    Args:
        path: of the file; while there is none, there are no metrics.
        now_s: wall clock, seconds since 1970.
    """

    def __init__(self, path: Path, *, now_s: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now_s = now_s

    def describe(self) -> list[Metric]:
        """Return nothing: values are read only when they are asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        try:
            document = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return
        yield from families(document, now_s=self._now_s())


def families(document: Mapping[str, Any], *, now_s: float) -> Iterator[Metric]:
    """Yield the metrics of a live.json, see sla.live.status_core."""
    age_s = max(0.0, now_s - document["made_at_s"])
    yield GaugeMetricFamily("georelay_sla_live_age_seconds", "Time since live.json was written.", value=age_s)
    is_degraded = float(document["state"] != "live")
    yield GaugeMetricFamily("georelay_sla_live_degraded", "1 while the live view misses something.", value=is_degraded)
    ages = GaugeMetricFamily(
        "georelay_sla_region_age_seconds", "Age of the newest traces of a region's oldest broker.", labels=["region"]
    )
    for region in document["regions"]:
        if region["newest_s"] is not None:
            ages.add_metric([region["region"]], age_s + region["age_s"])
    yield ages
    yield from _of_pairs(document["pairs"])
    requests = CounterMetricFamily(
        "georelay_sla_requests",
        "Requests by outcome; those of a gateway are those of its brokers, counted again.",
        labels=["region", "gateway", "op", "outcome"],
    )
    for row in document["requests"]:
        for outcome in _OUTCOMES:
            labels = [row["region"], row["gateway"], row["op"], outcome]
            requests.add_metric(labels, row["since_start"][outcome])
    yield requests


def _of_pairs(pairs: list[dict[str, Any]]) -> Iterator[Metric]:
    records = CounterMetricFamily("georelay_sla_records", "Records delivered to a region.", labels=["origin", "dest"])
    late = CounterMetricFamily(
        "georelay_sla_records_late",
        "Records delivered later than 50 ms: as measured, surely and perhaps.",
        labels=["origin", "dest", "bound"],
    )
    probes = CounterMetricFamily(
        "georelay_sla_probes", "Probes, ok or bad (late, lost, refused).", labels=["origin", "dest", "outcome"]
    )
    for row in pairs:
        pair, counts = [row["origin"], row["dest"]], row["since_start"]
        records.add_metric(pair, counts["n"])
        for bound, good in _LATE.items():
            late.add_metric([*pair, bound], counts["n"] - counts[good])
        for outcome in ("ok", "bad"):
            probes.add_metric([*pair, outcome], counts[f"probes_{outcome}"])
    yield from (records, late, probes)


def serve(where: str, path: Path) -> Callable[[], None]:
    """Serve `/metrics` of a live.json on a loopback address; return what ends it.

    Raises:
        UsageError: `where` is no loopback address and port.
        JobFailed: the port cannot be had.
    """
    host, port = parse_address(where)
    registry = CollectorRegistry()
    registry.register(LiveCollector(path))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise JobFailed(f"--metrics {where}: {error.strerror or error}") from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def parse_address(text: str) -> tuple[str, int]:
    """Read HOST:PORT of this host.

    Raises:
        UsageError: it is none; the text says what to write.
    """
    host, _, port = text.rpartition(":")
    try:
        is_ours = ipaddress.ip_address(host.strip("[]")).is_loopback and 0 < int(port) < 1 << 16
    except ValueError:
        is_ours = False
    if not is_ours:
        raise UsageError(f"--metrics {text}: write an address of this host and a port, such as 127.0.0.1:9109")
    return host.strip("[]"), int(port)
