"""Users, lists and quotas over HTTP; every route and every gRPC method asks before it does anything."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from aiohttp.test_utils import TestClient, TestServer

from georelay._pb import admin_pb2, streams_pb2
from georelay.credentials import basic
from georelay.errors import GeorelayError
from georelay.ids import BrokerId
from mesh.listening.grpc_limits import host_of
from region.api._pb import broker_pb2
from region.api.admin_http import OPEN_PATHS, AdminHttp
from region.api.admin_service import AdminService
from region.api.bindings_http import BindingsHttp
from region.api.broker_service import BrokerService
from region.api.coalescer import Coalescer
from region.api.coordination_admin import CoordinationAdmin
from region.api.group_lag import GroupLag
from region.api.groups_http import GroupsHttp
from region.api.grpc_calls import GrpcCalls
from region.api.grpc_listener import GrpcListener
from region.api.grpc_services import grpc_handlers
from region.api.metrics import BrokerMetrics
from region.api.publishing import RecordPublisher
from region.api.queues_http import QueuesHttp
from region.api.reading import StreamReader
from region.api.records_http import RecordsHttp
from region.api.streams.service import StreamsService
from region.api.streams.services import StreamsServices
from region.broker.audit_events import RegionAuditEvents
from region.controller.security_book import SecurityBook
from region.controller.security_wishes import add_acls, plan, put_quota, put_user, remove_acls
from region.coordination.in_memory import InMemoryCoordinators
from region.kafka.counters import KafkaCounters
from region.security import administration
from region.security.access import Access, Operation, Resource
from region.security.acl import AclEntry, ResourcePattern
from region.security.administration import SecurityAdmin
from region.security.audit import AuditLog
from region.security.quotas import Quotas
from region.security.rules import Authorization, BookRules
from region.security.sign_in import SignInService

PASSWORD = "correct horse"


async def _ask_nobody(*_: Any, **__: Any) -> Any:
    raise AssertionError("there is no other broker")


class Guarded:
    """HTTP and gRPC of a broker whose lists are enforced; `root` may do everything."""

    def __init__(self, cluster: Any, credentials: Any, recorder: Any) -> None:
        self.book = SecurityBook()
        self.cluster = cluster
        self.trail = RegionAuditEvents(BrokerId(1001), known=lambda: (), alive=lambda: (), ask=_ask_nobody)
        self.audit = AuditLog(kept=self.trail.kept, wall_s=lambda: 1_700_000_000.0)
        self.sign_in = SignInService(credentials, book=lambda: self.book, refusals=self.audit)
        rules = BookRules(
            book=lambda: self.book, authorization=Authorization.AUTO, sign_in_needed=lambda: self.sign_in.required
        )
        self.access = Access(rules, super_users={"User:root"}, denied=self.audit.denied)
        self.admin = SecurityAdmin(
            controller=self,
            book=lambda: self.book,
            access=self.access,
            audit=self.audit,
            sign_in_needed=lambda: self.sign_in.required,
            knows_brokers=True,
        )
        metrics = BrokerMetrics(cluster, KafkaCounters())
        self.coalescer = Coalescer(cluster, entry_region=1, wall_ns=lambda: 1, monotonic_ns=time.monotonic_ns)
        publisher, reader = RecordPublisher(cluster, self.coalescer), StreamReader(cluster)
        self.quotas = Quotas(book=lambda: self.book, monotonic_s=lambda: 0.0)
        coordinators = self.coordinators = InMemoryCoordinators()
        self.http = AdminHttp(
            cluster=cluster,
            groups=GroupsHttp(coordinators=coordinators, cluster=cluster, reader=reader, access=self.access),
            queues=QueuesHttp(coordinators=coordinators, cluster=cluster, access=self.access, quotas=self.quotas),
            bindings=BindingsHttp(None, self.access),  # type: ignore[arg-type]  # nobody gets that far
            credentials=credentials,
            metrics=metrics,
            sign_in=self.sign_in,
            access=self.access,
            security=self.admin,
            audit_trail=self.trail,
            records=RecordsHttp(
                cluster=cluster,
                publisher=publisher,
                reader=reader,
                recorder=recorder,
                metrics=metrics,
                wall_ns=lambda: 1,
                access=self.access,
                quotas=self.quotas,
            ),
        )
        calls = self.calls = GrpcCalls(credentials, metrics, self.access, sign_in=self.sign_in, quotas=self.quotas)
        coordination = CoordinationAdmin(
            coordinators=coordinators,
            cluster=cluster,
            lag=GroupLag(coordinators, cluster, reader),
            access=self.access,
        )
        streams = StreamsServices(
            cluster=cluster,
            publisher=publisher,
            reader=reader,
            recorder=recorder,
            metrics=metrics,
            access=self.access,
            wall_ns=lambda: 1,
            monotonic_ns=lambda: 1,
            region_name=str,
            coordinators=coordinators,
            quotas=self.quotas,
        )
        self.services: list[AdminService | BrokerService | StreamsService] = [
            AdminService(cluster=cluster, calls=calls, region_name=str, coordination=coordination),
            StreamsService(streams, calls),
            BrokerService(
                cluster=cluster,
                publisher=publisher,
                reader=reader,
                calls=calls,
                recorder=recorder,
                metrics=metrics,
                wall_ns=lambda: 1,
            ),
        ]

    async def change_security(self, wish: dict[str, object], *, by: str) -> None:
        self.wish(wish)

    def wish(self, wish: dict[str, object]) -> None:
        for definition in plan(self.book, wish):
            self.book.remember(dataclasses.replace(definition, index=self.book.index + 1))

    def allow(self, principal: str, operation: Operation, resource: Resource, name: str = "kafka-cluster") -> None:
        entry = AclEntry(principal=principal, operation=operation)
        self.wish(add_acls([(ResourcePattern(resource=resource, name=name), entry)]))

    def take_away(self, principal: str, operation: Operation, resource: Resource, name: str) -> None:
        entry = AclEntry(principal=principal, operation=operation)
        self.wish(remove_acls([(ResourcePattern(resource=resource, name=name), entry)]))


@pytest.fixture
async def guarded(cluster: Any, credentials: Any, recorder: Any) -> AsyncIterator[Guarded]:
    credentials.users |= {"root": PASSWORD, "ann": PASSWORD}
    cluster.add_topic("orders")
    guarded = Guarded(cluster, credentials, recorder)
    yield guarded
    await guarded.coalescer.close()


@pytest.fixture
async def http(guarded: Guarded) -> AsyncIterator[Any]:
    async with TestClient(TestServer(guarded.http.app())) as client:
        yield client


async def ask(http: Any, method: str, path: str, body: Any = None, *, user: str | None = "root") -> tuple[int, Any]:
    headers = {} if user is None else {"Authorization": user if " " in user else basic(user, PASSWORD)}
    async with http.request(method, path, json=body, headers=headers) as answer:
        text = await answer.text()
        return answer.status, (await answer.json(content_type=None) if text.startswith("{") else text)


def routes() -> list[tuple[str, str]]:
    """Return every route of the listener but those that load balancers ask."""
    nothing: Any = None
    parts: dict[str, Any] = {"coordinators": nothing, "cluster": nothing, "access": nothing}
    app = AdminHttp(
        cluster=nothing,
        credentials=nothing,
        metrics=nothing,
        records=_Records(),  # type: ignore[arg-type]
        groups=GroupsHttp(**parts, reader=nothing),
        queues=QueuesHttp(**parts),
        bindings=BindingsHttp(nothing, nothing),
    ).app()
    found = [(route.method, route.resource.canonical) for route in app.router.routes() if route.resource is not None]
    return [(method, path) for method, path in found if method != "HEAD" and path not in OPEN_PATHS]


class _Records:
    async def read(self, _: Any) -> Any: ...

    async def publish(self, _: Any) -> Any: ...

    async def resolve(self, _: Any) -> Any: ...


BODIES = {
    "POST /v1/topics": {"name": "new"},
    "PATCH /v1/topics/{topic}": {"retention_ms": 1},
    "POST /v1/topics/{topic}/reassign": {},
    "POST /v1/topics/{topic}/delete-records": {"partition": 0},
    "POST /v1/topics/{topic}/records": {"value": "x"},
    "POST /v1/users": {"name": "eve", "password": PASSWORD},
    "PATCH /v1/users/{user}": {"enabled": False},
    "POST /v1/users/{user}/tokens": {"name": "t", "days": 1},
    "POST /v1/acls": {"entries": [{"resource": "topic", "name": "x", "principal": "User:a", "operation": "read"}]},
    "POST /v1/acls/remove": {"entries": []},
    "POST /v1/queues": {"name": "q", "topic": "orders"},
    "PATCH /v1/queues/{queue}": {"visibility_ms": 1000},
    "POST /v1/queues/{queue}/leases": {"acknowledge": []},
    "POST /v1/groups/{group}/reset-offsets": {"topic": "orders", "to": "earliest"},
    "POST /v1/bindings": {"name": "b", "source": "orders", "topic": "copies"},
    "POST /v1/routes/{kind}": {"subject": "billing-7", "value": "eu"},
    "POST /v1/quotas": {"principal": "User:a", "produce_bytes_per_s": 1},
}
# What everybody who is signed in may ask: who one is, and the topics that one may see (none here).
HARMLESS = {("GET", "/v1/whoami"), ("GET", "/v1/topics"), ("GET", "/v1/groups"), ("GET", "/v1/queues")}


@pytest.mark.parametrize(("method", "path"), routes(), ids=lambda part: part)
async def test_every_route_refuses_strangers_and_those_without_a_right(
    http: Any, guarded: Guarded, method: str, path: str
) -> None:
    names = {"topic": "orders", "broker": "1001", "user": "bob", "token": "t", "group": "g", "queue": "q"}
    real = path.format(**names, binding="b", kind="pin")
    status, document = await ask(http, method, real, BODIES.get(f"{method} {path}"), user=None)
    assert (status, document["code"]) == (401, "UNAUTHENTICATED")
    status, document = await ask(http, method, real, BODIES.get(f"{method} {path}"), user="ann")
    if (method, path) in HARMLESS:
        assert status == 200 and "orders" not in str(document)
    else:
        assert (status, document["code"]) == (403, "ACCESS_DENIED"), document
        assert "orders" not in str(document)
    assert guarded.cluster.changes == [] and guarded.cluster.published == []
    assert guarded.audit.changes == 0  # what somebody may not is noted as a denial


async def test_users_are_made_changed_and_deleted(http: Any, guarded: Guarded) -> None:
    assert (await ask(http, "POST", "/v1/users", {"name": "bob", "password": PASSWORD}))[0] == 201
    assert (await ask(http, "GET", "/v1/whoami", user="bob"))[1]["principal"] == "User:bob"
    assert (await ask(http, "PATCH", "/v1/users/bob", {"enabled": False}))[0] == 200
    assert (await ask(http, "GET", "/v1/whoami", user="bob"))[0] == 401
    _, document = await ask(http, "GET", "/v1/users")
    assert document["users"] == [
        {
            "name": "bob",
            "enabled": False,
            "expires_s": None,
            "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"],
            "tokens": [],
        }
    ]
    assert (await ask(http, "DELETE", "/v1/users/bob"))[0] == 204
    assert (await ask(http, "DELETE", "/v1/users/bob"))[0] == 403  # POLICY_VIOLATION: there is none


async def test_a_token_is_shown_once_and_its_owner_may_make_and_delete_it(http: Any, guarded: Guarded) -> None:
    await ask(http, "POST", "/v1/users", {"name": "bob", "password": PASSWORD})
    status, made = await ask(http, "POST", "/v1/users/bob/tokens", {"name": "ci", "days": 1}, user="bob")
    assert status == 201 and made["token"].startswith("grt_")
    assert (await ask(http, "GET", "/v1/whoami", user=f"Bearer {made['token']}"))[1]["principal"] == "User:bob"
    assert made["token"] not in str((await ask(http, "GET", "/v1/users"))[1])
    assert (await ask(http, "POST", "/v1/users/root/tokens", {"name": "ci", "days": 1}, user="bob"))[0] == 403
    assert (await ask(http, "DELETE", "/v1/users/bob/tokens/ci", user="bob"))[0] == 204
    assert (await ask(http, "GET", "/v1/whoami", user=f"Bearer {made['token']}"))[0] == 401


async def test_a_token_makes_no_tokens_because_a_stolen_one_would_never_end(http: Any, guarded: Guarded) -> None:
    await ask(http, "POST", "/v1/users", {"name": "bob", "password": PASSWORD})
    _, made = await ask(http, "POST", "/v1/users/bob/tokens", {"name": "ci", "days": 1}, user="bob")
    bearer = f"Bearer {made['token']}"
    assert (await ask(http, "POST", "/v1/users/bob/tokens", {"name": "next", "days": 90}, user=bearer))[0] == 403
    assert (await ask(http, "DELETE", "/v1/users/bob/tokens/ci", user=bearer))[0] == 204


async def test_no_keys_are_made_for_who_may_not_add_users(
    http: Any, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def make_keys(_: str) -> Any:
        raise AssertionError("a tenth of a second for everybody who asks")

    monkeypatch.setattr(administration, "make_keys", make_keys)
    for method, path in (("POST", "/v1/users"), ("PATCH", "/v1/users/bob")):
        body = {"name": "eve", "password": PASSWORD} if method == "POST" else {"password": PASSWORD}
        assert (await ask(http, method, path, body, user="ann"))[0] == 403


async def test_the_audit_log_is_read_in_pages_by_who_may_describe_the_cluster(http: Any, guarded: Guarded) -> None:
    await ask(http, "POST", "/v1/quotas", {"principal": "User:ann", "fetch_bytes_per_s": 5})
    assert (await ask(http, "GET", "/v1/whoami", user=basic("ann", "wrong")))[0] == 401
    assert (await ask(http, "GET", "/v1/audit/events", user="ann"))[0] == 403
    _, first = await ask(http, "GET", "/v1/audit/events?limit=2")
    assert [(row["event"], row["written_by"]) for row in first["events"]] == [
        ("access.denied", 1001),
        ("sign_in.refused", 1001),
    ]
    assert first["events"][0]["grant"].endswith("--principal User:ann --operation describe --resource cluster")
    guarded.allow("User:ann", Operation.DESCRIBE, Resource.CLUSTER)
    _, second = await ask(http, "GET", f"/v1/audit/events?limit=2&before={first['next']}", user="ann")
    assert [(row["what"], row["of"], row["outcome"]) for row in second["events"]] == [
        ("quota.changed", "User:ann", "done")
    ]
    assert (second["next"], second["unheard"], second["region"]) == (None, [], guarded.cluster.region)
    assert PASSWORD not in str((first, second)) and "wrong" not in str((first, second))
    _, refused = await ask(http, "GET", "/v1/audit/events?event=sign_in.refused")
    assert [row["user"] for row in refused["events"]] == ["(unknown)"]


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "before=yesterday", "event=all", "region=mars"])
async def test_a_page_of_the_audit_log_that_cannot_be_is_refused_in_words(http: Any, query: str) -> None:
    status, document = await ask(http, "GET", f"/v1/audit/events?{query}")
    assert (status, document["code"]) == (400, "BAD_REQUEST")
    assert document["detail"].startswith(query.partition("=")[0])


async def test_lists_and_quotas_are_added_and_removed(http: Any, guarded: Guarded) -> None:
    entry = {"resource": "topic", "name": "orders", "principal": "User:ann", "operation": "read"}
    assert (await ask(http, "GET", "/v1/topics/orders", user="ann"))[0] == 403
    assert (await ask(http, "POST", "/v1/acls", {"entries": [entry]}))[0] == 201
    assert (await ask(http, "GET", "/v1/topics/orders", user="ann"))[0] == 200
    _, document = await ask(http, "GET", "/v1/acls")
    assert document["entries"] == [{**entry, "host": "*", "permission": "allow", "pattern": "literal"}]
    assert (await ask(http, "POST", "/v1/acls/remove", {"entries": [entry]}))[0] == 204
    assert (await ask(http, "GET", "/v1/topics/orders", user="ann"))[0] == 403
    assert (await ask(http, "POST", "/v1/quotas", {"principal": "User:*", "fetch_bytes_per_s": 5}))[0] == 200
    _, document = await ask(http, "GET", "/v1/quotas")
    assert document["quotas"] == [
        {
            "principal": "User:*",
            "produce_bytes_per_s": None,
            "fetch_bytes_per_s": 5,
            "request_share_ppm": None,
        }
    ]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/users", {"name": "a:b"}),
        ("POST", "/v1/users", {"name": "bob", "password": "short"}),
        ("POST", "/v1/users", {"name": "bob", "pasword": PASSWORD}),
        ("POST", "/v1/users", []),
        ("PATCH", "/v1/users/bob", {"enabled": "yes"}),
        ("POST", "/v1/users/bob/tokens", {"name": "t", "days": 1000}),
        ("POST", "/v1/acls", {"entries": [{"resource": "topic", "principal": "User:a", "operation": "read"}]}),
        ("POST", "/v1/acls", {"entries": [{"resource": "moon", "name": "x"}]}),
        ("POST", "/v1/quotas", {"principal": "ann"}),
    ],
)
async def test_a_body_that_means_nothing_is_refused_and_changes_nothing(
    http: Any, guarded: Guarded, method: str, path: str, body: Any
) -> None:
    before = guarded.book.index
    status, document = await ask(http, method, path, body)
    assert (status, document["code"]) == (400, "BAD_REQUEST")
    assert guarded.book.index == before
    assert PASSWORD not in str(document)


async def test_a_first_user_that_could_not_administer_is_refused_with_the_way_out(
    http: Any, guarded: Guarded, credentials: Any
) -> None:
    credentials.users.clear()
    status, document = await ask(http, "POST", "/v1/users", {"name": "ann", "password": PASSWORD}, user=None)
    assert status == 403 and "georelay acls add --principal User:ann --operation all" in document["detail"]
    entry = {"resource": "cluster", "principal": "User:ann", "operation": "all"}
    assert (await ask(http, "POST", "/v1/acls", {"entries": [entry]}, user=None))[0] == 201
    assert (await ask(http, "POST", "/v1/users", {"name": "ann", "password": PASSWORD}, user=None))[0] == 201
    assert (await ask(http, "GET", "/v1/users", user=None))[0] == 401
    assert (await ask(http, "GET", "/v1/users", user="ann"))[0] == 200


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (lambda guarded: guarded.take_away("User:bob", Operation.READ, Resource.TOPIC, "orders"), 403),
        (lambda guarded: guarded.wish(put_user("bob", is_enabled=False, is_new=False)), 401),
    ],
    ids=["revoked", "disabled"],
)
async def test_a_long_poll_brings_nothing_after_the_right_or_the_user_has_ended(
    http: Any, guarded: Guarded, end: Callable[[Guarded], None], status: int
) -> None:
    await ask(http, "POST", "/v1/users", {"name": "bob", "password": PASSWORD})
    guarded.allow("User:bob", Operation.READ, Resource.TOPIC, "orders")
    path = "/v1/topics/orders/records?offset=latest&wait_ms=20000"
    waiting = asyncio.ensure_future(ask(http, "GET", path, user="bob"))
    async with asyncio.timeout(5):
        while not guarded.cluster.stream("orders", 0)._waiters:
            await asyncio.sleep(0.01)
    end(guarded)
    guarded.cluster.stream("orders", 0).add(b"nobody may know")
    assert (await waiting)[0] == status


async def test_what_a_queue_hands_out_over_http_counts_as_bytes_and_needs_the_right_when_it_comes(
    http: Any, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    async def call(*_: Any, **__: Any) -> dict[str, Any]:
        if len(paused) == 1:
            guarded.take_away("User:ann", Operation.READ, Resource.QUEUE, "q")
        return {"records": []}

    async def pause(pause_ms: int) -> None:
        paused.append(pause_ms)

    monkeypatch.setattr(guarded.coordinators, "call", call)
    monkeypatch.setattr(QueuesHttp, "_pause", staticmethod(pause))
    guarded.wish(put_quota("User:ann", fetch_bytes_per_s=1))
    guarded.allow("User:ann", Operation.READ, Resource.QUEUE, "q")
    assert (await ask(http, "POST", "/v1/queues/q/records?consumer=c", user="ann"))[0] == 200
    assert paused[0] > 1_000
    assert (await ask(http, "POST", "/v1/queues/q/records?consumer=c", user="ann"))[0] == 403


async def test_publishing_waits_until_the_quota_is_kept(
    http: Any, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    async def pause(pause_ms: int) -> None:
        paused.append(pause_ms)

    monkeypatch.setattr(RecordsHttp, "_pause", staticmethod(pause))
    await ask(http, "POST", "/v1/quotas", {"principal": "User:root", "produce_bytes_per_s": 10})
    assert (await ask(http, "POST", "/v1/topics/orders/records", {"value": "x" * 40}))[0] == 200
    assert paused[0] > 1_000


def grpc_requests() -> dict[str, Any]:
    """Return by method a request that would do something. Where the answer has a row for each item: (request, rows)."""
    admin, streams = admin_pb2, streams_pb2
    publish = streams.Publish(
        tag=1, topic="orders", records=streams.NewRecords(records=[streams.NewRecord(value=b"x")])
    )
    places = streams.StartPositions(positions=[streams.StartPosition(stream="orders", earliest=True)])
    return {
        "broker.Broker/Publish": broker_pb2.PublishRequest(topic="orders", body=b"x"),
        "broker.Broker/Subscribe": broker_pb2.SubscribeRequest(topics={"orders": 0}),
        "georelay.v1.Admin/ListTopics": None,  # filtered
        "georelay.v1.Admin/ListGroups": None,
        "georelay.v1.Admin/ListQueues": None,
        "georelay.v1.Admin/CreateTopic": admin.CreateTopicRequest(name="new"),
        "georelay.v1.Admin/AlterTopic": admin.AlterTopicRequest(name="orders", retention_ms=1),
        "georelay.v1.Admin/CreateQueue": admin.QueueDefinition(name="q", topic="orders"),
        "georelay.v1.Admin/ListBrokers": admin.ListBrokersRequest(),
        **{
            f"georelay.v1.Admin/{name}": getattr(admin, f"{name}Request")(name="orders")
            for name in (
                *("DeleteTopic", "DescribeTopic", "DeleteRecords", "ReassignTopic"),
                *("DescribeGroup", "DeleteGroup", "SetGroupOffsets", "DescribeQueue", "DeleteQueue"),
            )
        },
        **{
            f"georelay.v1.Admin/{name}": getattr(admin, f"{name}Request")(id=1001)
            for name in ("AddBroker", "DrainBroker", "RemoveBroker")
        },
        "georelay.v1.Streams/Locate": (streams.LocateRequest(topics=["orders"], create=True), "topics"),
        "georelay.v1.Streams/FindOffsets": (
            streams.FindOffsetsRequest(partitions=[streams.StreamPartition(stream="orders", partition=0)]),
            "found",
        ),
        "georelay.v1.Streams/Resolve": streams.ResolveRequest(topic="orders"),
        "georelay.v1.Streams/PublishStream": (streams.PublishStreamRequest(publishes=[publish]), "acknowledgements"),
        "georelay.v1.Streams/Subscribe": streams.SubscribeRequest(start=streams.SubscribeStart(positions=places)),
        "georelay.v1.Streams/InitProducer": streams.InitProducerRequest(),
        "georelay.v1.Streams/AddToTransaction": streams.AddToTransactionRequest(
            transactional_id="t", partitions=[streams.StreamPartition(stream="orders", partition=0)]
        ),
        "georelay.v1.Streams/EndTransaction": streams.EndTransactionRequest(transactional_id="t"),
    }


ANSWERS: dict[str, Any] = {
    "Locate": streams_pb2.LocateResponse,
    "FindOffsets": streams_pb2.FindOffsetsResponse,
    "PublishStream": streams_pb2.PublishStreamResponse,
}


async def test_every_grpc_method_refuses_strangers_and_those_without_a_right(guarded: Guarded) -> None:
    handlers = [service.handler() for service in guarded.services]
    listener = GrpcListener(handlers, host="127.0.0.1", port=0, admit=guarded.calls.admit)
    port = await listener.start()
    requests = grpc_requests()
    options = (("grpc.enable_http_proxy", 0),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        for service in guarded.services:
            for path in service.handler()._method_handlers:
                assert path[1:] in requests, f"{path} has no row in this test"
                row = requests[path[1:]]
                request, rows = row if isinstance(row, tuple) else (row or admin_pb2.ListTopicsRequest(), "")
                name = path.rpartition("/")[2]
                kind = {"PublishStream": "stream_stream", "Subscribe": "stream_stream"}.get(name, "unary_unary")
                make = getattr(channel, "unary_stream" if path == "/broker.Broker/Subscribe" else kind)
                method = make(
                    path,
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=ANSWERS[name].FromString if name in ANSWERS else None,
                )
                assert (await outcome_of(method, request, None))[0] is grpc.StatusCode.UNAUTHENTICATED, path
                code, answers = await outcome_of(method, request, basic("ann", PASSWORD))
                if rows:
                    refusals = [item.refusal.code for answer in answers for item in getattr(answer, rows)]
                    assert (code, refusals) == (grpc.StatusCode.OK, ["ACCESS_DENIED"]), path
                elif row is None:
                    assert code is grpc.StatusCode.OK, path
                    assert b"orders" not in b"".join(answers)
                else:
                    assert code is grpc.StatusCode.PERMISSION_DENIED, path
    await listener.close()
    assert guarded.cluster.changes == [] and guarded.cluster.published == []


async def outcome_of(method: Any, request: Any, authorization: str | None) -> tuple[grpc.StatusCode, list[Any]]:
    """Return the status of a call that says all it has to say at once, and what it was answered."""
    metadata = () if authorization is None else (("authorization", authorization),)
    answers = []
    try:
        if isinstance(method, grpc.aio.StreamStreamMultiCallable):
            call = method(iter([request]), metadata=metadata)
        else:
            call = method(request, metadata=metadata)
        if hasattr(call, "__aiter__"):
            async for answer in call:
                answers.append(answer)
        else:
            answers.append(await call)
    except grpc.aio.AioRpcError as error:
        assert "orders" not in (error.details() or "")  # noqa: PT017 - of every refusal
        return error.code(), answers
    return await call.code(), answers


@pytest.mark.parametrize(
    ("peer", "host"),
    [("ipv4:10.0.0.1:1234", "10.0.0.1"), ("ipv6:%5B::1%5D:1234", "::1"), ("ipv6:[::1]:1", "::1"), ("unix:x", "")],
)
def test_the_host_of_a_grpc_peer_is_its_address(peer: str, host: str) -> None:
    assert host_of(peer) == host


def test_denials_are_errors_of_ours() -> None:
    from georelay.errors import AccessDenied

    assert issubclass(AccessDenied, GeorelayError) and "x" not in str(AccessDenied.to("topic"))


async def test_pages_of_other_sites_and_foreign_names_are_refused_over_http(http: Any, guarded: Guarded) -> None:
    signed_in = {"Authorization": basic("root", PASSWORD)}
    for more in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}):
        async with http.delete("/v1/topics/orders", headers=signed_in | more) as answer:
            assert (answer.status, (await answer.json())["code"]) == (403, "POLICY_VIOLATION")
    assert guarded.cluster.topic("orders") is not None
    async with http.get("/v1/topics", headers=signed_in | {"Host": "evil.example"}) as answer:
        assert answer.status == 403
    own = {"Origin": str(http.make_url("/")).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    async with http.delete("/v1/topics/orders", headers=signed_in | own) as answer:
        assert answer.status == 204


async def test_a_stranger_is_refused_before_its_request_is_read_and_health_is_for_everybody(guarded: Guarded) -> None:
    handlers = grpc_handlers(guarded.services, ready=lambda: True)
    listener = GrpcListener(handlers, host="127.0.0.1", port=0, admit=guarded.calls.admit)
    port = await listener.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_unary("/georelay.v1.Admin/CreateTopic")  # nothing of the request was sent yet
        stranger = call(metadata=())
        assert await asyncio.wait_for(stranger.code(), 10) is grpc.StatusCode.UNAUTHENTICATED
        assert dict(await stranger.trailing_metadata())["georelay-code"] == "UNAUTHENTICATED"
        assert await channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"
        signed_in = (("authorization", basic("root", PASSWORD)),)
        request = admin_pb2.CreateTopicRequest(name="made").SerializeToString()
        await channel.unary_unary("/georelay.v1.Admin/CreateTopic")(request, metadata=signed_in)
    counted = guarded.calls._requests.labels("grpc", "create_topic", "UNAUTHENTICATED")._value.get()
    assert (counted, guarded.cluster.topic("made") is not None) == (1, True)
    await listener.close()
