"""What became of clients' requests at this gateway, read from its own counters once per second; nothing per request.

Publish and consume: HTTP requests for records, and gRPC calls (one that streams is one, counted when it ends).
Connect: Kafka bootstrap connections. Records that Kafka clients publish do not come through a gateway.
A refusal that a client could follow to another broker is an error here: for clients of a gateway there is no other.
`offered`: requests to publish; bodies are not read, so how many records they hold is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import Counter

from gateway.metrics import GatewayMetrics
from georelay.trace.kinds import Operation
from mesh.tracing.outcome_core import Totals

_ROUTES: Final = {
    "POST /v1/topics/{topic}/records": Operation.PUBLISH,
    "GET /v1/topics/{topic}/records": Operation.CONSUME,
    "GET /v1/topics/{topic}/consumers/{consumer}/records": Operation.CONSUME,
    "GET /v1/topics/{topic}/consumers/{consumer}/events": Operation.CONSUME,
}
_METHODS: Final = {
    "Publish": Operation.PUBLISH,
    "Streams.PublishStream": Operation.PUBLISH,
    "Subscribe": Operation.CONSUME,
    "Streams.Subscribe": Operation.CONSUME,
}
_SERVED: Final = frozenset({"OK", "CANCELLED"})  # who leaves a stream was served
_SERVER_ERRORS: Final = frozenset(
    {"UNAVAILABLE", "INTERNAL", "UNKNOWN", "DATA_LOSS", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"}
)
_CONNECTS: Final = {
    "joined": lambda count: Totals(ok=count),
    "failed": lambda count: Totals(server_error=count),
    "refused": lambda count: Totals(client_error=count),
}


def http_totals(status: int, count: int) -> Totals:
    """Return answers with an HTTP status as outcomes."""
    if status < 400:
        return Totals(ok=count)
    if status < 500:
        return Totals(client_error=count)
    return Totals(timeout=count) if status == 504 else Totals(server_error=count)


def grpc_totals(code: str, count: int) -> Totals:
    """Return calls that ended with a status of gRPC as outcomes."""
    if code in _SERVED:
        return Totals(ok=count)
    if code == "DEADLINE_EXCEEDED":
        return Totals(timeout=count)
    return Totals(server_error=count) if code in _SERVER_ERRORS else Totals(client_error=count)


class GatewayOutcomes:
    """Totals since the start of this gateway."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics

    def totals(self) -> Mapping[Operation, Totals]:
        """Return the counts of this moment."""
        totals = dict.fromkeys(Operation, Totals())
        for labels, count in _counts(self._metrics.http_requests):
            operation = _ROUTES.get(labels["route"])
            if operation is not None:
                totals[operation] += http_totals(int(labels["status"]), count)
        for labels, count in _counts(self._metrics.grpc_calls):
            operation = _METHODS.get(labels["method"])
            if operation is not None:
                totals[operation] += grpc_totals(labels["code"], count)
        for labels, count in _counts(self._metrics.kafka_connects):
            totals[Operation.CONNECT] += _CONNECTS[labels["result"]](count)
        publish = totals[Operation.PUBLISH]
        totals[Operation.PUBLISH] = publish + Totals(offered=publish.attempts)
        return totals


def _counts(counter: Counter) -> Iterator[tuple[dict[str, str], int]]:
    for family in counter.collect():
        for sample in family.samples:
            if sample.name.endswith("_total"):
                yield sample.labels, int(sample.value)
