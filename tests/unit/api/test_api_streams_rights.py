"""The native API and what its callers may do: rights that are missing, that go away, and callers that take too much."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from georelay._pb import streams_pb2 as pb
from georelay.credentials import basic
from georelay.errors import Unauthenticated
from georelay.wire.batch import build_batch
from region.api._pb import broker_pb2
from region.api.broker_service import BrokerService
from region.api.coalescer import Coalescer
from region.api.grpc_calls import GrpcCalls
from region.api.grpc_listener import GrpcListener
from region.api.metrics import BrokerMetrics
from region.api.publishing import RecordPublisher
from region.api.reading import StreamReader
from region.api.streams import group_source, publish_call, queue_source
from region.api.streams.credit import Credit
from region.api.streams.group_member import GroupMember
from region.api.streams.outbox import WAITING_MAX, Outbox, Writer
from region.api.streams.queue_source import QueueSource
from region.api.streams.service import StreamsService
from region.api.streams.services import StreamsServices
from region.controller.security_book import SecurityBook
from region.controller.security_wishes import add_acls, delete_user, plan, put_quota, put_user, remove_acls
from region.coordination.in_memory import InMemoryCoordinators
from region.coordination.part import Part
from region.groups.factory import groups_factory
from region.groups.settings import GroupSettings
from region.groups.topic_names import TopicNames
from region.kafka.counters import KafkaCounters
from region.security.access import Access, Operation, Resource
from region.security.acl import AclEntry, ResourcePattern
from region.security.quotas import Quotas
from region.security.rules import Authorization, BookRules
from region.security.scram_core import make_key
from region.security.sign_in import SignInService
from region.security.user import ITERATIONS_MIN, Mechanism

PASSWORD = "correct horse"
SECONDS = 5


class Home:
    """A region whose lists are enforced, with the user ann, and a channel to it."""

    def __init__(self, cluster: Any, credentials: Any, recorder: Any) -> None:
        self.book = SecurityBook()
        self.cluster = cluster
        cluster.add_topic("orders")
        cluster.add_topic("secret")
        key = make_key(Mechanism.SCRAM_SHA_256, PASSWORD, salt=bytes(16), iterations=ITERATIONS_MIN)
        self.wish(put_user("ann", keys=[key], is_new=True))
        self.sign_in = SignInService(credentials, book=lambda: self.book)
        self.access = Access(BookRules(book=lambda: self.book, authorization=Authorization.ON))
        self.quotas = Quotas(book=lambda: self.book, monotonic_s=lambda: 0.0)
        metrics = BrokerMetrics(cluster, KafkaCounters())
        self.coalescer = Coalescer(cluster, entry_region=1, wall_ns=lambda: 1, monotonic_ns=lambda: 1)
        calls = GrpcCalls(credentials, metrics, self.access, sign_in=self.sign_in, quotas=self.quotas)
        self.coordinators = InMemoryCoordinators()
        names = TopicNames(
            topic=cluster.topic,
            topics=cluster.topics,
            version=lambda: cluster.metadata_epoch,
            is_deleted=lambda _: False,
        )
        settings = GroupSettings(initial_rebalance_delay_ms=0)
        self.coordinators.register(Part.GROUPS, groups_factory(names, settings, rng=random.Random(1)))
        publisher, reader = RecordPublisher(cluster, self.coalescer), StreamReader(cluster)
        self.services = StreamsServices(
            cluster=cluster,
            publisher=publisher,
            reader=reader,
            recorder=recorder,
            metrics=metrics,
            access=self.access,
            wall_ns=lambda: 1_700_000_000_000_000_000,
            monotonic_ns=lambda: 1,
            region_name=str,
            coordinators=self.coordinators,
            quotas=self.quotas,
        )
        broker = BrokerService(
            cluster=cluster,
            publisher=publisher,
            reader=reader,
            calls=calls,
            recorder=recorder,
            metrics=metrics,
            wall_ns=lambda: 1,
        )
        handlers = [StreamsService(self.services, calls).handler(), broker.handler()]
        self.listener = GrpcListener(handlers, host="127.0.0.1", port=0)
        self.channel: Any = None

    def wish(self, wish: dict[str, object]) -> None:
        for definition in plan(self.book, wish):
            self.book.remember(dataclasses.replace(definition, index=self.book.index + 1))

    def allow(self, operation: Operation, resource: Resource, name: str) -> None:
        self.wish(add_acls([_binding(operation, resource, name)]))

    def take_away(self, operation: Operation, resource: Resource, name: str) -> None:
        self.wish(remove_acls([_binding(operation, resource, name)]))

    def call(self, method: str, asked: Any, answered: Any) -> Any:
        make = self.channel.stream_stream if method in ("PublishStream", "Subscribe") else self.channel.unary_unary
        call = make(
            f"/georelay.v1.Streams/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answered.FromString,
        )
        metadata = (("authorization", basic("ann", PASSWORD)),)
        return call(metadata=metadata) if asked is None else call(asked, metadata=metadata)

    async def subscribed(self, **source: Any) -> Any:
        call = self.call("Subscribe", None, pb.SubscribeResponse)
        await call.write(pb.SubscribeRequest(start=pb.SubscribeStart(credit_bytes=1 << 20, **source)))
        return call


def _binding(operation: Operation, resource: Resource, name: str) -> Any:
    return ResourcePattern(resource=resource, name=name), AclEntry(principal="User:ann", operation=operation)


@pytest.fixture
async def home(cluster: Any, credentials: Any, recorder: Any) -> AsyncIterator[Home]:
    home = Home(cluster, credentials, recorder)
    port = await home.listener.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=(("grpc.enable_http_proxy", 0),)) as channel:
        home.channel = channel
        yield home
    await home.listener.close()
    await home.coalescer.close()


async def status_of(call: Any) -> str:
    """Return the status that a call ends with, whatever it brings before."""
    async with asyncio.timeout(SECONDS):
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return str((await call.code()).name)


async def read_until(call: Any, kind: str) -> Any:
    async with asyncio.timeout(SECONDS):
        while True:
            response = await call.read()
            if response.WhichOneof("response") == kind:
                return getattr(response, kind)


def positions(stream: str) -> Any:
    return pb.StartPositions(positions=[pb.StartPosition(stream=stream, earliest=True)])


ENDS = [
    (lambda home: home.take_away(Operation.READ, Resource.TOPIC, "orders"), "PERMISSION_DENIED"),
    (lambda home: home.wish(put_user("ann", is_enabled=False, is_new=False)), "UNAUTHENTICATED"),
    (lambda home: home.wish(delete_user("ann")), "UNAUTHENTICATED"),
]
ENDS_IDS = ["revoked", "disabled", "deleted"]


@pytest.mark.parametrize(("end", "status"), ENDS, ids=ENDS_IDS)
async def test_an_open_subscription_ends_with_the_right_or_the_user_although_nothing_comes(
    home: Home, end: Callable[[Home], None], status: str
) -> None:
    home.allow(Operation.READ, Resource.TOPIC, "orders")
    call = await home.subscribed(positions=positions("orders"))
    await read_until(call, "started")
    end(home)
    assert await status_of(call) == status


@pytest.mark.parametrize(("end", "status"), ENDS, ids=ENDS_IDS)
async def test_an_open_subscription_of_the_small_contract_ends_as_well(
    home: Home, end: Callable[[Home], None], status: str
) -> None:
    home.allow(Operation.READ, Resource.TOPIC, "orders")
    home.cluster.stream("orders", 0).add(b"x")
    call = home.channel.unary_stream(
        "/broker.Broker/Subscribe",
        request_serializer=broker_pb2.SubscribeRequest.SerializeToString,
        response_deserializer=broker_pb2.MessageResponse.FromString,
    )(broker_pb2.SubscribeRequest(topics={"orders": 0}), metadata=(("authorization", basic("ann", PASSWORD)),))
    assert (await call.read()).body == b"x"
    end(home)
    assert await status_of(call) == status


async def test_an_open_publish_stream_ends_with_its_user(home: Home) -> None:
    call = home.call("PublishStream", None, pb.PublishStreamResponse)
    await call.read()
    home.wish(put_user("ann", is_enabled=False, is_new=False))
    assert await status_of(call) == "UNAUTHENTICATED"


async def test_an_assignment_gives_no_right_to_read(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any member may lead its group, and the leader says who reads what: it may name topics of others."""
    home.cluster.stream("secret", 0).add(b"nobody may know")

    async def joined(_: GroupMember) -> dict[str, tuple[int, ...]]:
        return {"secret": (0,)}

    monkeypatch.setattr(GroupMember, "_join", joined)
    home.allow(Operation.READ, Resource.TOPIC, "orders")
    home.allow(Operation.READ, Resource.GROUP, "g")
    group = pb.GroupMembership(group="g", topics=["orders"], reset=pb.OFFSET_RESET_EARLIEST)
    call = await home.subscribed(group=group)
    assert await status_of(call) == "PERMISSION_DENIED"


async def test_offsets_are_committed_for_topics_that_one_may_read_only(home: Home) -> None:
    home.allow(Operation.READ, Resource.TOPIC, "orders")
    home.allow(Operation.READ, Resource.GROUP, "g")
    call = await home.subscribed(group=pb.GroupMembership(group="g", topics=["orders"]))
    assigned = await read_until(call, "assigned")
    for topic, code in (("secret", "ACCESS_DENIED"), ("orders", "")):
        offset = pb.CommittedOffset(topic=topic, partition=0, offset=0)
        commit = pb.Commit(tag=1, generation=assigned.generation, offsets=[offset])
        await call.write(pb.SubscribeRequest(commit=commit))
        assert (await read_until(call, "committed")).refusal.code == code
    call.cancel()


async def test_positions_in_a_transaction_need_the_right_to_read_their_topics(home: Home) -> None:
    home.allow(Operation.WRITE, Resource.TRANSACTIONAL_ID, "t")
    home.allow(Operation.READ, Resource.GROUP, "g")
    offsets = [pb.CommittedOffset(topic="secret", partition=0, offset=0)]
    request = pb.AddToTransactionRequest(transactional_id="t", producer_id=1, group="g", offsets=offsets)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await home.call("AddToTransaction", request, pb.AddToTransactionResponse)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def publish(home: Home, **fields: Any) -> str:
    """Return the code that a publish is refused with, "" when it is stored."""
    call = home.call("PublishStream", None, pb.PublishStreamResponse)
    await call.read()
    await call.write(pb.PublishStreamRequest(publishes=[pb.Publish(tag=1, **fields)]))
    async with asyncio.timeout(SECONDS):
        (answer,) = (await call.read()).acknowledgements
    call.cancel()
    return str(answer.refusal.code)


async def test_publishing_creates_a_topic_only_for_who_may_create_it(home: Home) -> None:
    records = pb.NewRecords(records=[pb.NewRecord(value=b"x")])
    home.allow(Operation.WRITE, Resource.TOPIC, "new")
    assert await publish(home, topic="new", partition=-1, records=records) == "ACCESS_DENIED"
    assert "new" not in home.cluster.views
    home.allow(Operation.CREATE, Resource.TOPIC, "new")
    assert await publish(home, topic="new", partition=-1, records=records) == ""


async def test_a_batch_with_a_transactional_id_needs_the_right_to_that_id(home: Home) -> None:
    batch = build_batch([(b"x", None, ())], timestamps_ms=1)
    home.allow(Operation.WRITE, Resource.TOPIC, "orders")
    assert await publish(home, topic="orders", batch=batch, transactional_id="bank") == "ACCESS_DENIED"
    assert home.cluster.published == []
    home.allow(Operation.WRITE, Resource.TRANSACTIONAL_ID, "bank")
    assert await publish(home, topic="orders", batch=batch, transactional_id="bank") == ""


async def test_a_call_whose_client_does_not_read_its_answers_is_not_read(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_call, "WINDOW_PUBLISHES", 10)
    calls: list[Any] = []
    begin = publish_call.PublishCall.__init__

    def noted(call: Any, *arguments: Any, **named: Any) -> None:
        begin(call, *arguments, **named)
        calls.append(call)

    monkeypatch.setattr(publish_call.PublishCall, "__init__", noted)

    async def stuck(_: Any, __: Any) -> None:
        await asyncio.get_running_loop().create_future()

    call = home.call("PublishStream", None, pb.PublishStreamResponse)
    await call.read()
    monkeypatch.setattr(Writer, "write", stuck)
    for _ in range(3):
        publishes = [pb.Publish(tag=tag, topic="secret") for tag in range(1_000)]
        await call.write(pb.PublishStreamRequest(publishes=publishes))
        await asyncio.sleep(0.1)
    assert len(calls[0]._answers) <= 20
    call.cancel()


async def test_a_partition_is_read_once_and_positions_are_bounded(home: Home) -> None:
    home.allow(Operation.READ, Resource.TOPIC, "orders")
    twice = [pb.StartPosition(stream="orders", earliest=True), pb.StartPosition(stream="orders", latest=True)]
    call = await home.subscribed(positions=pb.StartPositions(positions=twice))
    assert await status_of(call) == "INVALID_ARGUMENT"
    many = [pb.StartPosition(stream="orders", earliest=True)] * 10_001
    call = await home.subscribed(positions=pb.StartPositions(positions=many))
    assert await status_of(call) == "INVALID_ARGUMENT"


class _Stuck:
    """A call whose client does not read."""

    async def write(self, _: Any) -> None:
        await asyncio.get_running_loop().create_future()


async def test_nobody_waits_for_a_client_that_has_gone() -> None:
    outbox = Outbox(_Stuck())
    putting = [asyncio.ensure_future(outbox.put(number)) for number in range(WAITING_MAX + 5)]
    await asyncio.sleep(0.01)
    assert not all(task.done() for task in putting)
    outbox.ended.cancel()
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*putting)
        await outbox.put("more")


@pytest.mark.parametrize("kind", ["commits", "settlements"])
async def test_what_a_client_asks_without_waiting_for_answers_is_bounded(
    home: Home, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(group_source, "COMMITTING_MAX", 3)
    monkeypatch.setattr(queue_source, "SETTLING_MAX", 3)

    async def never(_: Any) -> None:
        await asyncio.get_running_loop().create_future()

    source: Any
    nothing: Any = None
    who = home.sign_in.principal_of("ann", host="")
    if kind == "commits":
        asked = pb.GroupMembership(group="g", topics=["orders"])
        source = group_source.GroupSource(
            asked,
            home.services,
            reading=nothing,
            put=never,
            principal=who,
            peer="",
        )
        request, tasks = pb.SubscribeRequest(commit=pb.Commit(tag=1)), source._tasks
    else:
        source = QueueSource(
            pb.QueueMembership(queue="q"),
            home.services,
            credit=nothing,
            put=never,
            principal=who,
        )
        settle = pb.Settle(settlements=[pb.Settlement(lease="x")])
        request, tasks = pb.SubscribeRequest(settle=settle), source._settling
    for _ in range(3):
        await source.handle(request)
    fourth = asyncio.ensure_future(source.handle(request))
    done, _ = await asyncio.wait((fourth,), timeout=0.05)
    assert not done and len(tasks) == 3
    for task in (fourth, *tasks):
        task.cancel()


async def test_a_queue_gives_nothing_to_who_may_not_read_it_any_more_and_counts_its_bytes(home: Home) -> None:
    row = {
        "lease": "l",
        "partition": 0,
        "deliveries": 1,
        "leased_until_ms": 1 << 60,
        "offset": 0,
        "timestamp_ms": 1,
        "key": None,
        "value": "eHg=",
        "headers": [],
    }
    delivered: list[Any] = []

    async def put(response: Any) -> None:
        delivered.append(response)

    async def call(*_: Any, **__: Any) -> dict[str, Any]:
        return {"records": [row]}

    def refuse() -> None:
        raise Unauthenticated("ended")

    home.coordinators.call = call  # type: ignore[method-assign]
    home.wish(put_quota("User:ann", fetch_bytes_per_s=1))
    who = home.sign_in.principal_of("ann", host="")
    credit = Credit(1000)
    asked = pb.QueueMembership(queue="q")
    source = QueueSource(asked, home.services, credit=credit, put=put, principal=who, check_right=refuse)
    with pytest.raises(Unauthenticated):
        await source.run()
    assert delivered == []
    source = QueueSource(asked, home.services, credit=credit, put=put, principal=who)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await source.run()
    assert len(delivered) == 1  # the second waits for the quota
    assert home.quotas.throttled_ms > 1_000


async def test_a_defect_of_ours_tells_nothing_of_itself(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> Any:
        raise RuntimeError("/var/lib/georelay/secret")

    monkeypatch.setattr(RecordPublisher, "publish", broken)
    home.allow(Operation.WRITE, Resource.TOPIC, "orders")
    call = home.channel.unary_unary(
        "/broker.Broker/Publish", request_serializer=broker_pb2.PublishRequest.SerializeToString
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(
            broker_pb2.PublishRequest(topic="orders", body=b"x"),
            metadata=(("authorization", basic("ann", PASSWORD)),),
        )
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(caught.value.details())
