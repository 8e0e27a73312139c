"""What became of clients' requests, read from the counters of the listeners once per second.

Publish: partitions of Kafka Produce, and gRPC and HTTP calls (a PublishStream is one, however many records it carries).
Consume: Kafka Fetch requests, of which one that had an error in any partition is no success; gRPC and HTTP calls.
Connect: Kafka connections; one whose sign-in was refused is the client's error, one over the limit is the server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from georelay import errors
from georelay.errors import GeorelayError, Outcome
from georelay.trace.kinds import Operation
from georelay.wire.api import ApiKey, ErrorCode
from mesh.tracing.outcome_core import Totals
from region.api.metrics import BrokerMetrics
from region.kafka.counters import KafkaCounters

_REDIRECTIONS: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
_SERVER_ERRORS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_METHODS: Final = {
    ("grpc", "publish"): Operation.PUBLISH,
    ("grpc", "publish_stream"): Operation.PUBLISH,
    ("grpc", "subscribe"): Operation.CONSUME,
    ("grpc", "subscribe_stream"): Operation.CONSUME,
    ("http", "POST /v1/topics/{topic}/records"): Operation.PUBLISH,
    ("http", "GET /v1/topics/{topic}/records"): Operation.CONSUME,
    ("http", "GET /v1/topics/{topic}/consumers/{consumer}/records"): Operation.CONSUME,
    ("http", "GET /v1/topics/{topic}/consumers/{consumer}/events"): Operation.CONSUME,
}
_CLASSES: Final[Mapping[str, type[GeorelayError]]] = {
    each.code: each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, GeorelayError)
}
_REDIRECTING: Final = frozenset({errors.NotLeader.code, errors.NotHome.code})


def kafka_totals(counts: Mapping[int, int]) -> Totals:
    """Return errors by Kafka code as outcomes."""
    client = server = timeout = 0
    for code, count in counts.items():
        if code in _REDIRECTIONS:
            continue
        if code == ErrorCode.REQUEST_TIMED_OUT:
            timeout += count
        elif code in _SERVER_ERRORS:
            server += count
        else:
            client += count
    return Totals(client_error=client, server_error=server, timeout=timeout)


def edge_total(code: str, count: int) -> Totals:
    """Return calls that ended with a code of gRPC or HTTP as outcomes."""
    if code == "OK":
        return Totals(ok=count)
    if code in _REDIRECTING:
        return Totals()
    known = _CLASSES.get(code)
    if known is not None and known.outcome is Outcome.UNKNOWN:
        return Totals(timeout=count)
    status = known.http_status if known is not None else _status_of(code)
    if status < 300:  # accepted, and not as far as was asked: no error
        return Totals(ok=count)
    return Totals(client_error=count) if status < 500 else Totals(server_error=count)


def _status_of(code: str) -> int:
    text = code.removeprefix("HTTP_")
    return int(text) if text.isdecimal() else 500


class RequestOutcomes:
    """Totals since the start of this broker's listeners."""

    def __init__(self, *, kafka: KafkaCounters, metrics: BrokerMetrics) -> None:
        self._kafka = kafka
        self._metrics = metrics

    def totals(self) -> Mapping[Operation, Totals]:
        """Return the counts of this moment."""
        kafka = self._kafka
        fetches = kafka.latency_by_api.get(ApiKey.FETCH)
        fetch_errors = {
            code: max(0, count - kafka.publish_errors.get(code, 0)) for code, count in kafka.errors_by_code.items()
        }
        consume_errors = kafka_totals(fetch_errors)
        fetched = 0 if fetches is None else max(0, fetches.count - consume_errors.attempts)
        totals = {
            Operation.PUBLISH: kafka_totals(kafka.publish_errors)
            + Totals(ok=kafka.publishes_stored, offered=kafka.records_in + self._records_in()),
            Operation.CONSUME: consume_errors + Totals(ok=fetched),
            Operation.CONNECT: Totals(
                ok=max(0, kafka.connections_accepted - kafka.sign_ins_refused),
                client_error=kafka.sign_ins_refused,
                server_error=kafka.connections_refused,
            ),
        }
        for (listener, method, code), count in self._edge():
            operation = _METHODS.get((listener, method))
            if operation is not None:
                totals[operation] += edge_total(code, count)
        return totals

    def _edge(self) -> list[tuple[tuple[str, str, str], int]]:
        return [
            ((sample.labels["listener"], sample.labels["method"], sample.labels["code"]), int(sample.value))
            for family in self._metrics.edge_requests.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        ]

    def _records_in(self) -> int:
        return sum(
            int(sample.value)
            for family in self._metrics.edge_records.collect()
            for sample in family.samples
            if sample.name.endswith("_total") and sample.labels["direction"] == "in"
        )
