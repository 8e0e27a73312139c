"""Counters and gauges of one gateway, in its own registry (no global state)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.routing.client_book_core import ClientBook
from gateway.routing.client_routes import ClientRoutes
from gateway.routing.router import Router
from gateway.routing.rules_core import Kind


class _RegionCollector(Collector):
    """Reads readiness and distance at the moment of the scrape."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def describe(self) -> list[GaugeMetricFamily]:
        """Return nothing, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of every region."""
        known = GaugeMetricFamily("georelay_gateway_region_brokers", "Brokers that are known", None, ["region"])
        ready = GaugeMetricFamily(
            "georelay_gateway_region_ready", "1 while a broker of the region is ready", None, ["region"]
        )
        rtt = GaugeMetricFamily(
            "georelay_gateway_region_rtt_ms", "Round trip to the nearest ready broker", None, ["region"]
        )
        for region in self._router.ranking():
            known.add_metric([region.name], len(region.brokers))
            ready.add_metric([region.name], float(region.ready))
            if region.rtt_ns is not None:
                rtt.add_metric([region.name], region.rtt_ns / 1e6)
        yield known
        yield ready
        yield rtt


class ClientsCollector(Collector):
    """Reads how many clients are remembered, how often they were moved, and what operators decided."""

    def __init__(self, router: Router, book: ClientBook, routes: ClientRoutes) -> None:
        self._router = router
        self._book = book
        self._routes = routes

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        yield GaugeMetricFamily("georelay_gateway_clients", "Clients that are remembered", len(self._book))
        yield CounterMetricFamily(
            "georelay_gateway_clients_without_place",
            "Questions of clients that the memory has no place for",
            self._book.without_place,
        )
        moves = CounterMetricFamily(
            "georelay_gateway_client_moves", "Clients that were sent to another region than before", labels=["why"]
        )
        for why, count in self._routes.moves.items():
            moves.add_metric([why], count)
        yield moves
        rules = GaugeMetricFamily("georelay_gateway_rules", "Decisions of operators in force", labels=["kind"])
        in_force = [rule.kind for rule in self._router.rules.in_force()]
        for kind in Kind:
            rules.add_metric([kind.value], in_force.count(kind.value))
        yield rules


class GatewayMetrics:
    """Everything /metrics shows."""

    def __init__(self, router: Router) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_RegionCollector(router))
        self.http_requests = Counter(
            "georelay_gateway_http_requests",
            "Requests by route and status",
            ["route", "status"],
            registry=self._registry,
        )
        self.failovers = Counter(
            "georelay_gateway_failovers",
            "Attempts that moved on to another broker, by listener",
            ["listener"],
            registry=self._registry,
        )
        self.kafka_connections = Gauge(
            "georelay_gateway_kafka_connections", "Open bootstrap connections", registry=self._registry
        )
        self.kafka_closed = Counter(
            "georelay_gateway_kafka_closed",
            "Bootstrap connections ended, by reason",
            ["reason"],
            registry=self._registry,
        )
        self.kafka_connects = Counter(
            "georelay_gateway_kafka_connects",
            "Bootstrap connections by what became of connecting: joined, failed, refused",
            ["result"],
            registry=self._registry,
        )
        self.grpc_calls = Counter(
            "georelay_gateway_grpc_calls",
            "Calls passed through, by method and status",
            ["method", "code"],
            registry=self._registry,
        )
        self.grpc_streams = Gauge(
            "georelay_gateway_grpc_streams",
            "Calls that stream both ways and are open now, by method",
            ["method"],
            registry=self._registry,
        )
        self.sockets = Gauge("georelay_gateway_sockets", "Open WebSockets", registry=self._registry)

    def register(self, collector: Collector) -> None:
        """Show what another collector reads."""
        self._registry.register(collector)

    def expose(self) -> bytes:
        """Return the Prometheus text format."""
        return generate_latest(self._registry)
