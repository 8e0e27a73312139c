"""Traces over HTTP: positions, reaches and pages of rows, for whoever may describe the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp.test_utils import TestClient, TestServer

from georelay.errors import AccessDenied
from georelay.trace.kinds import TraceKind
from georelay.trace.position import NEXT_KEY
from mesh.tracing.recorder_core import Drained
from mesh.tracing.shelf import TraceShelf
from mesh.tracing.writer import TraceWriter
from mesh.tracing.written import Identity
from region.api.admin_http import AdminHttp
from region.api.traces_http import TracesHttp
from region.security.access import Access, Operation, Principal, Resource
from tests.unit.api.edge_in_memory import Edge


class Denying:
    """Access that allows nobody anything, and says what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Operation, Resource]] = []

    def check(self, _: Principal, operation: Operation, resource: Resource, *__: str) -> None:
        self.asked.append((operation, resource))
        raise AccessDenied.to(resource.value)


@pytest.fixture
def shelf(tmp_path: Path) -> TraceShelf:
    writer = TraceWriter(
        directory=tmp_path,
        identity=Identity(region="us", broker=1001, boot_id="a0"),
        clock_ns=lambda: 1_700_000_000 * 10**9,
        roll_period_s=1e6,
        slow_roll_period_s=1e6,
    )
    rows = [("us", "eu", "us/1001", seq, 1, None, None, "ok", 5_000) for seq in range(10)]
    writer.take(Drained(rows={TraceKind.PROBE: list(rows)}))
    return TraceShelf(tmp_path, region="us", broker=1001)


def serving(edge: Edge, traces: TracesHttp) -> TestClient[Any, Any]:
    admin = AdminHttp(
        cluster=edge.cluster,
        credentials=edge.credentials,
        metrics=edge.metrics,
        records=edge.admin._records,
        traces=traces,
    )
    return TestClient(TestServer(admin.app()))


@pytest.fixture
async def http(edge: Edge, shelf: TraceShelf) -> AsyncIterator[Any]:
    async with serving(edge, TracesHttp(shelf, access=Access.open(), region="us", broker=1001)) as client:
        yield client


async def test_a_reader_finds_its_way_from_the_oldest_row_to_the_latest(http: Any) -> None:
    found = await (await http.get("/v1/traces", params={"kinds": "probe,clock"})).json()
    assert found == {
        "region": "us", "broker": 1001, "is_writing": True,
        "kinds": {"probe": {"oldest": "a0/0", "latest": "a0/10"}, "clock": {"oldest": "/0", "latest": "/0"}},
    }  # fmt: skip
    end = await (await http.get("/v1/traces/probe/end", params={"from": "a0/0", "rows": "4"})).json()
    assert end == {"end": "a0/4", "rows": 4, "has_more": True}
    seen = []
    position = "a0/0"
    while position != "a0/10":
        answer = await http.get("/v1/traces/probe", params={"from": position, "until": "a0/10", "rows": "3"})
        assert answer.content_type == "application/vnd.apache.arrow.stream"
        table = pa.ipc.open_stream(await answer.read()).read_all()
        seen.append(table.column("seq").to_pylist())
        position = table.schema.metadata[NEXT_KEY].decode()
    assert seen == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


async def test_an_expired_position_is_410_with_the_oldest_position(http: Any) -> None:
    for path in ("/v1/traces/probe", "/v1/traces/probe/end"):
        answer = await http.get(path, params={"from": "gone/3", "until": "a0/9"})
        assert (answer.status, (await answer.json())["code"]) == (410, "TRACES_EXPIRED")
        assert "the oldest is a0/0" in (await answer.json())["detail"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/v1/traces?kinds=probe,x", "kind: one of"),
        ("/v1/traces/spans?from=a0/0&until=a0/1", "kind: one of"),
        ("/v1/traces/probe?until=a0/1", "from:"),
        ("/v1/traces/probe?from=a0/0", "until:"),
        ("/v1/traces/probe?from=a0/0&until=a0/1&rows=0", "rows:"),
        ("/v1/traces/probe?from=a0/0&until=a0/1&rows=100001", "rows:"),
        ("/v1/traces/probe?from=a0/0&until=a0/1&bytes=16777217", "bytes:"),
        ("/v1/traces/probe/end?from=a0/0&rows=-1", "rows:"),
    ],
)
async def test_a_wrong_question_is_refused_with_the_name_of_its_field(http: Any, path: str, text: str) -> None:
    answer = await http.get(path)
    assert answer.status == 400
    assert (await answer.json())["detail"].startswith(text)


async def test_a_broker_that_keeps_no_traces_says_so(edge: Edge) -> None:
    async with serving(edge, TracesHttp(None, access=Access.open(), region="us", broker=1001)) as http:
        assert (await (await http.get("/v1/traces")).json())["is_writing"] is False
        answer = await http.get("/v1/traces/probe/end", params={"from": "a0/0"})
        assert (answer.status, "trace_dir" in (await answer.json())["detail"]) == (400, True)


async def test_traces_need_the_right_to_describe_the_cluster(edge: Edge, shelf: TraceShelf) -> None:
    access: Any = Denying()
    async with serving(edge, TracesHttp(shelf, access=access, region="us", broker=1001)) as http:
        for path in ("/v1/traces", "/v1/traces/probe", "/v1/traces/probe/end"):
            assert (await http.get(path, params={"from": "a0/0", "until": "a0/1"})).status == 403
    assert access.asked == [(Operation.DESCRIBE, Resource.CLUSTER)] * 3
