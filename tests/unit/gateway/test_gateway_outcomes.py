"""What became of requests at a gateway: counters to rows, and rows to files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from gateway.config import GatewayConfig
from gateway.metrics import GatewayMetrics
from gateway.outcomes import GatewayOutcomes, grpc_totals, http_totals
from gateway.routing.region_view_core import RegionView
from gateway.routing.router import Router
from gateway.traces import GatewayTraces, writer_number
from georelay.ids import BROKERS_PER_REGION_MAX, REGION_NUMBER_MAX
from georelay.trace.files import TraceFileName
from georelay.trace.kinds import Operation, TraceKind
from georelay.trace.spool import BROKER_MAX
from mesh.tracing.outcome_core import Totals


@pytest.fixture
def metrics() -> GatewayMetrics:
    return GatewayMetrics(Router(RegionView([]), monotonic_ns=lambda: 0))


@pytest.mark.parametrize(
    ("status", "field"),
    [(200, "ok"), (202, "ok"), (400, "client_error"), (429, "client_error"), (503, "server_error"), (504, "timeout")],
)
def test_an_http_status_is_one_outcome(status: int, field: str) -> None:
    assert http_totals(status, 3) == Totals(**{field: 3})


@pytest.mark.parametrize(
    ("code", "field"),
    [
        ("OK", "ok"),
        ("CANCELLED", "ok"),
        ("INVALID_ARGUMENT", "client_error"),
        ("UNAUTHENTICATED", "client_error"),
        ("UNAVAILABLE", "server_error"),
        ("RESOURCE_EXHAUSTED", "server_error"),
        ("DEADLINE_EXCEEDED", "timeout"),
    ],
)
def test_a_grpc_status_is_one_outcome(code: str, field: str) -> None:
    assert grpc_totals(code, 2) == Totals(**{field: 2})


def test_records_and_connections_count_and_other_requests_do_not(metrics: GatewayMetrics) -> None:
    metrics.http_requests.labels("POST /v1/topics/{topic}/records", "200").inc(2)
    metrics.http_requests.labels("POST /v1/topics/{topic}/records", "503").inc()
    metrics.http_requests.labels("GET /v1/topics/{topic}/records", "200").inc(4)
    metrics.http_requests.labels("GET /v1/topics", "500").inc(9)
    metrics.grpc_calls.labels("Streams.PublishStream", "OK").inc()
    metrics.grpc_calls.labels("ListTopics", "OK").inc(9)
    for result, count in (("joined", 5), ("failed", 1), ("refused", 2)):
        metrics.kafka_connects.labels(result).inc(count)
    totals = GatewayOutcomes(metrics).totals()
    assert totals[Operation.PUBLISH] == Totals(ok=3, server_error=1, offered=4)
    assert totals[Operation.CONSUME] == Totals(ok=4)
    assert totals[Operation.CONNECT] == Totals(ok=5, server_error=1, client_error=2)


def test_a_gateway_writes_under_a_number_that_no_broker_can_have() -> None:
    for name in ("gateway", "", "gateway-a-8080"):
        assert REGION_NUMBER_MAX * 1000 + BROKERS_PER_REGION_MAX < writer_number(name) <= BROKER_MAX


async def test_the_rows_of_a_gateway_that_stops_are_in_a_file_of_its_region(
    metrics: GatewayMetrics, tmp_path: Path
) -> None:
    raw: Any = {"number": 1, "kafka": "127.0.0.1:1", "grpc": "127.0.0.1:2", "admin": "127.0.0.1:3"}
    config = GatewayConfig(
        mesh_id="m",
        name="edge-1",
        region="us",
        trace_dir=str(tmp_path),
        regions=[{"name": "us", "number": 1, "brokers": [raw]}],  # type: ignore[arg-type]
    )
    traces = GatewayTraces(config, metrics)
    traces.start()
    metrics.http_requests.labels("POST /v1/topics/{topic}/records", "504").inc()
    await traces.close()
    (path,) = tmp_path.glob("date=*/hour=*/region=us/*.parquet")
    name = TraceFileName.parse(path.name)
    assert name is not None
    assert (name.kind, name.broker) == (TraceKind.OUTCOME, writer_number("edge-1"))
    rows = {row["op"]: row for row in pq.ParquetFile(path).read().to_pylist()}
    assert set(rows) == {"publish", "consume", "connect"}
    assert (rows["publish"]["gateway"], rows["publish"]["region"]) == ("edge-1", "us")
    assert [rows["publish"][each] for each in ("attempts", "ok", "timeout", "offered")] == [1, 0, 1, 1]
