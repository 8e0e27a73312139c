"""Every change of the cluster stands in the audit log, whichever door it came through and whatever became of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from georelay._pb import admin_pb2
from georelay.errors import PolicyViolation, Unavailable
from region.api.admin_http import AdminHttp
from region.api.admin_service import AdminService
from region.api.bindings_http import BindingsHttp
from region.api.coalescer import Coalescer
from region.api.control_http import ControlHttp
from region.api.coordination_admin import CoordinationAdmin
from region.api.groups_http import GroupsHttp
from region.api.grpc_calls import GrpcCalls
from region.api.homes_http import HomesHttp
from region.api.metrics import BrokerMetrics
from region.api.orphans_http import OrphansHttp
from region.api.publishing import Asker, RecordPublisher, require_topic
from region.api.queues_http import QueuesHttp
from region.api.reading import StreamReader
from region.api.records_http import RecordsHttp
from region.api.regions_http import RegionsHttp
from region.kafka.counters import KafkaCounters
from region.security.access import Access, Principal

Note = tuple[str, str, dict[str, str]]


class Away:
    """Coordinators, control, bindings and orphans that are out of reach, but for what a handler asks first."""

    mesh_id = "m1"
    reader = None

    def __init__(self) -> None:
        self.error: Exception = Unavailable("away")

    async def call(self, *_: Any, **__: Any) -> Any:
        raise self.error

    __call__ = recover = add = remove = drop = call

    async def resolve(self, binding: Any) -> Any:
        return binding

    def status(self) -> Any:
        return {}


class Bed:
    def __init__(self, cluster: Any, credentials: Any, recorder: Any) -> None:
        self.notes: list[Note] = []
        self.cluster, self.away = cluster, Away()
        access = self.access = Access.open(changed=self.note)
        away: Any = self.away
        self.coalescer = Coalescer(cluster, entry_region=1, wall_ns=lambda: 1, monotonic_ns=lambda: 1)
        publisher, reader = RecordPublisher(cluster, self.coalescer), StreamReader(cluster)
        metrics = BrokerMetrics(cluster, KafkaCounters())
        known: Any = SimpleNamespace(topics=list, home_row=lambda _: None)
        self.http = AdminHttp(
            cluster=cluster,
            credentials=credentials,
            metrics=metrics,
            access=access,
            records=RecordsHttp(
                cluster=cluster,
                publisher=publisher,
                reader=reader,
                recorder=recorder,
                metrics=metrics,
                wall_ns=lambda: 1,
                access=access,
            ),
            groups=GroupsHttp(coordinators=away, cluster=cluster, reader=reader, access=access),
            queues=QueuesHttp(coordinators=away, cluster=cluster, access=access),
            bindings=BindingsHttp(away, access),
            control=ControlHttp(away, access),
            regions=RegionsHttp(away, access),
            homes=HomesHttp(known=known, call=away, region_names=lambda: {2: "eu"}, access=access),  # type: ignore[dict-item]
            orphans=OrphansHttp(away, publisher=publisher, access=access, region="local"),
        )
        self.grpc = AdminService(
            cluster=cluster,
            calls=GrpcCalls(credentials, metrics, access),
            region_name=str,
            coordination=CoordinationAdmin(coordinators=away, cluster=cluster, lag=away, access=access),
        )

    def note(self, principal: Principal, what: str, /, *, outcome: str, **detail: str) -> None:
        assert principal.name == "User:ANONYMOUS"
        self.notes.append((what, outcome, detail))


@pytest.fixture
async def bed(cluster: Any, credentials: Any, recorder: Any) -> AsyncIterator[Bed]:
    cluster.add_topic("orders")
    bed = Bed(cluster, credentials, recorder)
    yield bed
    await bed.coalescer.close()


MADE = [
    ("POST", "/v1/topics", {"name": "new"}, "topic.created", {"topic": "new"}),
    (
        *("PATCH", "/v1/topics/orders", {"retention_ms": 5}, "topic.altered"),
        {"topic": "orders", "settings": "retention.ms=5"},
    ),
    (
        *("POST", "/v1/topics/orders/reassign", {"replicas": [1001]}, "topic.reassigned"),
        {"topic": "orders", "partitions": "0", "replicas": "1001"},
    ),
    (
        *("POST", "/v1/topics/orders/delete-records", {"partition": 0, "before": "latest"}, "records.deleted"),
        {"topic": "orders", "partition": "0", "before": "high watermark"},
    ),
    ("DELETE", "/v1/topics/orders", None, "topic.deleted", {"topic": "orders"}),
    ("POST", "/v1/topics/fresh/records", {"value": "x"}, "topic.created", {"topic": "fresh", "how": "automatic"}),
    ("POST", "/v1/brokers/1009", None, "broker.added", {"broker": "1009", "peers": ""}),
    (
        *("POST", "/v1/routes/pin", {"subject": "ann", "value": "eu"}, "route.decided"),
        {"kind": "pin", "subject": "ann", "value": "eu"},
    ),
    ("POST", "/v1/brokers/1001/drain", None, "broker.drained", {"broker": "1001"}),
]


@pytest.mark.parametrize(("method", "path", "body", "what", "detail"), MADE, ids=lambda part: str(part)[:40])
async def test_a_change_over_http_is_noted(
    bed: Bed, method: str, path: str, body: Any, what: str, detail: dict[str, str]
) -> None:
    bed.cluster.states[1001] = "active"
    async with TestClient(TestServer(bed.http.app())) as client, client.request(method, path, json=body) as answer:
        assert answer.status < 300, await answer.text()
    assert bed.notes == [(what, "done", detail)]


REFUSED = [
    ("DELETE", "/v1/topics/nothing", None, "topic.deleted", "UNKNOWN_TOPIC"),
    ("DELETE", "/v1/brokers/1001", None, "broker.removed", "POLICY_VIOLATION"),
    ("POST", "/v1/queues", {"name": "q", "topic": "orders"}, "queue.created", "UNAVAILABLE"),
    ("PATCH", "/v1/queues/q", {"delay_ms": 1}, "queue.altered", "UNAVAILABLE"),
    ("DELETE", "/v1/queues/q", None, "queue.deleted", "UNAVAILABLE"),
    ("POST", "/v1/queues/q/purge", None, "queue.purged", "UNAVAILABLE"),
    ("DELETE", "/v1/groups/g", None, "group.deleted", "UNAVAILABLE"),
    ("POST", "/v1/bindings", {"name": "b", "source": "orders", "topic": "c"}, "binding.added", "UNAVAILABLE"),
    ("DELETE", "/v1/bindings/b", None, "binding.removed", "UNAVAILABLE"),
    ("POST", "/v1/control/recover", {"confirm": "m1"}, "control.recovered", "UNAVAILABLE"),
    ("POST", "/v1/regions", {"number": 3, "name": "us"}, "region.added", "UNAVAILABLE"),
    ("POST", "/v1/regions/3/drain", None, "region.drained", "UNAVAILABLE"),
    ("POST", "/v1/regions/3/keep", None, "region.kept", "UNAVAILABLE"),
    ("DELETE", "/v1/regions/3", None, "region.removed", "UNAVAILABLE"),
    ("POST", "/v1/homes/move", {"to": "eu", "from": "1"}, "home.moved", "UNAVAILABLE"),
    ("POST", "/v1/homes/failover", {"region": "eu", "accept_loss": True}, "home.failed_over", "UNAVAILABLE"),
    ("DELETE", "/v1/orphans/orders/0/2", None, "orphans.dropped", "UNAVAILABLE"),
]


@pytest.mark.parametrize(("method", "path", "body", "what", "outcome"), REFUSED, ids=lambda part: str(part)[:40])
async def test_a_change_over_http_that_fails_is_noted_with_its_code(
    bed: Bed, method: str, path: str, body: Any, what: str, outcome: str
) -> None:
    async with TestClient(TestServer(bed.http.app())) as client, client.request(method, path, json=body) as answer:
        assert answer.status >= 400
    assert [note[:2] for note in bed.notes] == [(what, outcome)]


def test_every_route_that_changes_the_cluster_is_tried_here(bed: Bed) -> None:
    app = bed.http.app()
    # What is not noted: records, leases, and users, lists and quotas, which are security.changed.
    others = {"/v1/topics/{topic}/records", "/v1/queues/{queue}/records", "/v1/queues/{queue}/leases"}
    others |= {"/v1/orphans/{topic}/{partition}/{epoch}/republish", "/v1/groups/{group}/reset-offsets"}
    tried = {(method, path) for method, path, *_ in [*MADE, *REFUSED]}
    for route in app.router.routes():
        assert route.resource is not None
        path = route.resource.canonical
        if (
            route.method in ("GET", "HEAD")
            or path in others
            or path.startswith(("/v1/users", "/v1/acls", "/v1/quotas"))
        ):
            continue
        matches = [row for row in tried if row[0] == route.method and route.resource.get_info() is not None]
        pattern = route.resource.get_info().get("pattern")
        assert any(pattern.fullmatch(p) if pattern else p == path for _, p in matches), (route.method, path)


async def test_changes_over_grpc_are_noted(bed: Bed) -> None:
    root = Principal.of_user("")
    service: Any = bed.grpc
    bed.cluster.states[1001] = "active"
    await service._create(admin_pb2.CreateTopicRequest(name="new"), root)
    await service._alter(admin_pb2.AlterTopicRequest(name="new", retention_ms=7), root)
    await service._delete_records(admin_pb2.DeleteRecordsRequest(name="new", partition=0, before=0), root)
    await service._reassign(admin_pb2.ReassignTopicRequest(name="new", partition=0, replicas=[1001]), root)
    await service._delete(admin_pb2.DeleteTopicRequest(name="new"), root)
    await service._add_broker(admin_pb2.AddBrokerRequest(id=1009), root)
    await service._drain_broker(admin_pb2.DrainBrokerRequest(id=1009), root)
    with pytest.raises(PolicyViolation):
        await service._remove_broker(admin_pb2.RemoveBrokerRequest(id=1009), root)
    for work in (
        service._coordination.create_queue(admin_pb2.QueueDefinition(name="q", topic="orders"), root),
        service._coordination.delete_queue(admin_pb2.DeleteQueueRequest(name="q"), root),
        service._coordination.delete_group(admin_pb2.DeleteGroupRequest(name="g"), root),
        service._coordination.set_offsets(
            admin_pb2.SetGroupOffsetsRequest(
                name="g", offsets=[admin_pb2.GroupOffset(topic="orders", partition=0, offset=1)]
            ),
            root,
        ),
    ):
        with pytest.raises(Unavailable):
            await work
    assert [note[:2] for note in bed.notes] == [
        ("topic.created", "done"),
        ("topic.altered", "done"),
        ("records.deleted", "done"),
        ("topic.reassigned", "done"),
        ("topic.deleted", "done"),
        ("broker.added", "done"),
        ("broker.drained", "done"),
        ("broker.removed", "POLICY_VIOLATION"),
        ("queue.created", "UNAVAILABLE"),
        ("queue.deleted", "UNAVAILABLE"),
        ("group.deleted", "UNAVAILABLE"),
        ("group.offsets_set", "UNAVAILABLE"),
    ]


async def test_a_topic_that_is_there_is_not_noted_as_made(bed: Bed) -> None:
    asker = Asker(access=bed.access, principal=Principal.of_user(""))
    await require_topic(bed.cluster, "orders", asker)
    assert bed.notes == []
