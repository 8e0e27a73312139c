"""Publishes of many clients by one stream to each broker: the outcomes are those of calls that go by themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.passthrough import broker_service, carried_publishes
from gateway.passthrough.carried_publishes import (
    MESSAGE_BYTES_MAX,
    METHOD,
    REQUEST_BYTES_MAX,
    CarriedPublishes,
    Lost,
    PublishStreams,
)
from georelay._pb import carried_pb2 as pb
from georelay.limits import KIB
from mesh.listening.grpc_limits import METADATA_BYTES_MAX
from tests.unit.gateway.test_gateway_grpc import ANN, GrpcBroker, assert_unknown, open_channel, publish

__all__ = ["open_channel"]

REFUSED = pb.CarriedAnswer(
    status=grpc.StatusCode.UNAVAILABLE.value[0], details="no leader", trailing={"georelay-code": "NOT_LEADER"}
)


class CarryingBroker(GrpcBroker):
    """A broker that takes streams; `answer` says what becomes of a call, None: nothing yet."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[dict[str, Any]] = []
        self.messages: list[pb.CarriedRequest] = []
        self.came = asyncio.Event()
        self.answer: Callable[[pb.CarriedCall], pb.CarriedAnswer | None] = self.stored
        self.context: Any = None
        self.ended = asyncio.Event()
        self.cut = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

        async def carry(_: Any, context: Any) -> None:
            await self._carry(context)

        handler = grpc.stream_stream_rpc_method_handler(
            carry, pb.CarriedRequest.FromString, pb.CarriedResponse.SerializeToString
        )
        service, _, name = METHOD[1:].rpartition("/")
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))

    @staticmethod
    def stored(call: pb.CarriedCall) -> pb.CarriedAnswer:
        return pb.CarriedAnswer(response=b"carried:" + call.request)

    @property
    def carried(self) -> list[pb.CarriedCall]:
        return [call for message in self.messages for call in message.calls]

    async def tell(self, *answers: pb.CarriedAnswer, closing: bool = False) -> None:
        await self.context.write(pb.CarriedResponse(answers=answers, closing=closing))

    async def _carry(self, context: Any) -> None:
        self.context = context
        self.opened.append(dict(context.invocation_metadata()))
        await self.tell()
        cutting = asyncio.create_task(self._cut(context))
        while (message := await context.read()) is not grpc.aio.EOF:
            self.messages.append(message)
            self.came.set()
            for call in message.calls:
                answer = self.answer(call)
                if answer is not None:
                    await self.tell(_with_tag(answer, call.tag))
        cutting.cancel()
        self.ended.set()
        await self.may_end.wait()

    async def _cut(self, context: Any) -> None:
        await self.cut.wait()
        with contextlib.suppress(grpc.aio.AbortError):
            await context.abort(grpc.StatusCode.INTERNAL, "cut")


def _with_tag(answer: pb.CarriedAnswer, tag: int) -> pb.CarriedAnswer:
    copy = pb.CarriedAnswer()
    copy.CopyFrom(answer)
    copy.tag = tag
    return copy


@pytest.fixture
async def broker() -> AsyncIterator[CarryingBroker]:
    fake = CarryingBroker()
    await fake.start()
    yield fake
    await fake.server.stop(None)


@pytest.fixture
async def channel(start_mesh: Any, start_broker: Any, broker: CarryingBroker, open_channel: Any) -> Any:
    """A client of a gateway whose stream is open."""
    us = await start_broker()
    us.grpc = broker.address
    channel = open_channel(await start_mesh(us=[us]))
    await by_stream(channel)
    broker.messages.clear()
    broker.came.clear()
    return channel


async def by_stream(channel: Any) -> None:
    """Publish until one went by the stream."""
    async with asyncio.timeout(10):
        while not (await publish(channel)).startswith(b"carried:"):
            pass


async def failure_of(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value


async def test_a_publish_carries_its_bytes_and_its_own_caller(channel: Any, broker: CarryingBroker) -> None:
    assert await publish(channel, b"\xff one", ANN) == b"carried:\xff one"
    assert await publish(channel, b"two") == b"carried:two"
    one, two = broker.carried
    assert (one.request, one.authorization, one.client) == (b"\xff one", ANN[0][1], "127.0.0.1")
    assert not two.HasField("authorization")
    assert len(broker.opened) == 1


async def test_a_stream_is_opened_in_the_name_of_a_caller_whom_the_broker_has_taken(
    start_mesh: Any, start_broker: Any, broker: CarryingBroker, open_channel: Any
) -> None:
    async def refuse(_request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no", (("georelay-code", "UNAUTHENTICATED"),))
        return b""

    us = await start_broker()
    us.grpc = broker.address
    channel = open_channel(await start_mesh(us=[us]))
    broker.publish = refuse
    assert (await failure_of(publish(channel, metadata=ANN))).code() is grpc.StatusCode.UNAUTHENTICATED
    assert not broker.opened
    broker.publish = broker.store
    await publish(channel, metadata=ANN)
    await by_stream(channel)
    assert [opened["authorization"] for opened in broker.opened] == [ANN[0][1]]


async def test_calls_that_come_together_travel_together(channel: Any, broker: CarryingBroker) -> None:
    requests = [b"%d" % number for number in range(100)]
    answers = await asyncio.gather(*(publish(channel, request) for request in requests))
    assert answers == [b"carried:" + request for request in requests]
    assert len(broker.messages) < 100


async def test_a_refusal_comes_back_with_status_details_and_metadata(channel: Any, broker: CarryingBroker) -> None:
    broker.answer = lambda call: REFUSED if call.request == b"bad" else broker.stored(call)
    failed, good = await asyncio.gather(failure_of(publish(channel, b"bad")), publish(channel, b"good"))
    assert (failed.code(), failed.details()) == (grpc.StatusCode.UNAVAILABLE, "no leader")
    assert dict(failed.trailing_metadata())["georelay-code"] == "NOT_LEADER"
    assert good == b"carried:good"


async def test_what_a_lost_stream_did_not_answer_is_unknown_and_what_comes_later_goes_by_itself(
    channel: Any, broker: CarryingBroker
) -> None:
    broker.answer = lambda _: None
    lost = [asyncio.create_task(failure_of(publish(channel, b"%d" % number))) for number in range(3)]
    while len(broker.carried) < 3:
        await broker.came.wait()
        broker.came.clear()
    broker.cut.set()
    for task in lost:
        assert_unknown(await task)
    assert await publish(channel, b"later") == b"id:later"
    assert not {b"0", b"1", b"2"} & {request for request, _ in broker.published}


async def test_a_late_answer_is_unknown_and_harms_no_other(
    channel: Any, broker: CarryingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_service, "ANSWER_TIMEOUT_S", 0.2)
    broker.answer = lambda call: None if call.request == b"slow" else broker.stored(call)
    slow = asyncio.create_task(failure_of(publish(channel, b"slow")))
    assert await publish(channel, b"quick") == b"carried:quick"
    assert_unknown(await slow)


async def test_a_client_that_leaves_cancels_its_call_and_no_other(channel: Any, broker: CarryingBroker) -> None:
    broker.answer = lambda call: None if call.request.startswith(b"wait") else broker.stored(call)
    leaving = channel.unary_unary("/broker.Broker/Publish")(b"wait: leaves")
    staying = asyncio.create_task(publish(channel, b"wait: stays"))
    while len(broker.carried) < 2:
        await broker.came.wait()
        broker.came.clear()
    tags = {call.request: call.tag for call in broker.carried}
    leaving.cancel()
    while not any(message.cancelled for message in broker.messages):
        await broker.came.wait()
        broker.came.clear()
    assert [tag for message in broker.messages for tag in message.cancelled] == [tags[b"wait: leaves"]]
    await broker.tell(pb.CarriedAnswer(tag=tags[b"wait: leaves"]))  # crossed the cancelling on its way
    await broker.tell(pb.CarriedAnswer(tag=tags[b"wait: stays"], response=b"stayed"))
    assert await staying == b"stayed"


async def test_a_broker_that_stops_gets_nothing_more_and_answers_what_it_has(
    channel: Any, broker: CarryingBroker
) -> None:
    broker.answer = lambda _: None
    broker.may_end.clear()
    waiting = asyncio.create_task(publish(channel, b"before"))
    await broker.came.wait()
    await broker.tell(closing=True)
    async with asyncio.timeout(5):
        await broker.ended.wait()  # the gateway has ended its side
    assert await publish(channel, b"after") == b"id:after"
    (before,) = broker.carried
    assert before.request == b"before"
    await broker.tell(pb.CarriedAnswer(tag=before.tag, response=b"answered"))
    broker.may_end.set()
    assert await waiting == b"answered"


async def test_a_broker_without_streams_gets_every_call_by_itself(
    start_mesh: Any, start_broker: Any, open_channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carried_publishes, "AGAIN_S", 0.0)
    older = GrpcBroker()
    await older.start()
    us = await start_broker()
    us.grpc = older.address
    channel = open_channel(await start_mesh(us=[us]))
    assert [await publish(channel, b"%d" % number) for number in range(5)] == [b"id:%d" % n for n in range(5)]
    await older.server.stop(None)


@pytest.mark.parametrize(
    ("request_", "metadata"),
    [
        (b"x" * (REQUEST_BYTES_MAX + 1), ()),
        (b"geo", (("georelay-durability", "geo:2"),)),
        (b"deadline", (("georelay-deadline-ms", "0"),)),
    ],
    ids=["large", "more regions", "deadline"],
)
async def test_what_may_hold_up_others_goes_by_itself(
    channel: Any, broker: CarryingBroker, request_: bytes, metadata: Any
) -> None:
    assert await publish(channel, request_, metadata) == b"id:" + request_
    assert not broker.carried


# --- the stream alone ----------------------------------------------------------------------------


class FakeCall:
    """A channel and its one stream, whose writes wait for `room`."""

    def __init__(self) -> None:
        self.written: list[pb.CarriedRequest] = []
        self.room = asyncio.Event()
        self.responses: asyncio.Queue[Any] = asyncio.Queue()
        self.is_done = False

    def stream_stream(self, *_: Any, **__: Any) -> Callable[..., FakeCall]:
        return lambda **_: self

    async def read(self) -> Any:
        return await self.responses.get()

    async def write(self, message: pb.CarriedRequest) -> None:
        self.written.append(message)
        await self.room.wait()

    async def done_writing(self) -> None:
        self.is_done = True

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    def cancel(self) -> None:
        pass


async def open_stream(streams: PublishStreams, call: Any, address: str = "a") -> CarriedPublishes:
    streams.succeeded(address, call, ())
    call.responses.put_nowait(pb.CarriedResponse())
    while (stream := streams.of(address, call)) is None:
        await asyncio.sleep(0)
    return stream


def begun(stream: CarriedPublishes, request: bytes) -> asyncio.Task[Any]:
    return asyncio.create_task(stream.publish(request, authorization=None, client="c"))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("address", ["a", "b"])
async def test_while_another_waits_at_whichever_broker_calls_gather(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(carried_publishes, "PACE_S", 0.2)
    monkeypatch.setattr(carried_publishes, "PACE_S_MAX", 0.2)
    calls: dict[str, Any] = {"a": FakeCall(), "b": FakeCall()}
    streams = PublishStreams()
    opened = {name: await open_stream(streams, call, name) for name, call in calls.items()}
    for call in calls.values():
        call.room.set()
    first = begun(opened["a"], b"alone")
    await until(lambda: bool(calls["a"].written))  # at once
    gathered = []
    for request in (b"second", b"third"):
        gathered.append(begun(opened[address], request))
        await some_turns()
    count = len(calls[address].written)
    await until(lambda: len(calls[address].written) > count)
    assert [call.request for call in calls[address].written[-1].calls] == [b"second", b"third"]
    await streams.close()
    await asyncio.gather(first, *gathered, return_exceptions=True)


async def test_full_messages_and_what_did_not_fit_into_them_wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried_publishes, "PACE_S", 3600.0)
    monkeypatch.setattr(carried_publishes, "PACE_S_MAX", 3600.0)
    call: Any = FakeCall()
    streams = PublishStreams()
    stream = await open_stream(streams, call)
    call.room.set()
    tasks = [begun(stream, bytes(60 * KIB)) for _ in range(40)]
    await until(lambda: sum(len(message.calls) for message in call.written) == 40)
    tasks.append(begun(stream, b"small"))  # this one waits for others again
    await some_turns()
    assert sum(len(message.calls) for message in call.written) == 40
    await streams.close()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_what_was_not_written_when_a_stream_ends_was_not_sent() -> None:
    call: Any = FakeCall()
    streams = PublishStreams()
    stream = await open_stream(streams, call)
    written = begun(stream, b"written")
    await until(lambda: bool(call.written))
    unwritten = begun(stream, b"unwritten")
    await asyncio.sleep(0)
    call.responses.put_nowait(grpc.aio.EOF)
    assert await unwritten is None
    with pytest.raises(Lost):
        await written
    assert streams.of("a", call) is None


async def test_a_call_whose_client_leaves_before_it_is_written_is_never_sent() -> None:
    call: Any = FakeCall()
    streams = PublishStreams()
    stream = await open_stream(streams, call)
    first = begun(stream, b"first")
    await until(lambda: bool(call.written))
    leaving = begun(stream, b"leaving")
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    last = begun(stream, b"last")
    call.room.set()
    await until(lambda: len(call.written) == 2)
    assert [(one.request, list(message.cancelled)) for message in call.written for one in message.calls] == [
        (b"first", []),
        (b"last", []),
    ]
    await streams.close()
    await asyncio.gather(first, last, return_exceptions=True)


async def test_a_message_holds_so_many_bytes_and_calls_keep_their_order() -> None:
    call: Any = FakeCall()
    streams = PublishStreams()
    stream = await open_stream(streams, call)
    call.room.set()
    tasks = [begun(stream, bytes(REQUEST_BYTES_MAX)) for _ in range(20)]
    await until(lambda: sum(len(message.calls) for message in call.written) == 20)
    assert max(message.ByteSize() for message in call.written) < MESSAGE_BYTES_MAX + KIB
    tags = [one.tag for message in call.written for one in message.calls]
    assert tags == sorted(tags)
    await streams.close()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_long_credentials_count_in_what_a_message_holds() -> None:
    call: Any = FakeCall()
    streams = PublishStreams()
    stream = await open_stream(streams, call)
    call.room.set()
    secret = "bearer " + "x" * METADATA_BYTES_MAX
    tasks = [asyncio.create_task(stream.publish(b"r", authorization=secret, client="c")) for _ in range(100)]
    await until(lambda: sum(len(message.calls) for message in call.written) == 100)
    assert max(message.ByteSize() for message in call.written) < MESSAGE_BYTES_MAX + KIB
    await streams.close()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_new_channel_gets_a_new_stream_and_the_old_one_ends_when_it_is_answered() -> None:
    old: Any = FakeCall()
    new: Any = FakeCall()
    streams = PublishStreams()
    old.room.set()
    stream = await open_stream(streams, old)
    waiting = begun(stream, b"waits")
    await until(lambda: bool(old.written))
    assert streams.of("a", new) is None
    streams.keep(())  # the broker has moved
    await until(lambda: old.is_done)
    await open_stream(streams, new)
    old.responses.put_nowait(pb.CarriedResponse(answers=[pb.CarriedAnswer(tag=1, response=b"late")]))
    assert (await waiting).response == b"late"
    old.responses.put_nowait(grpc.aio.EOF)
    await streams.close()


async def test_a_refused_stream_is_not_asked_for_again_at_once() -> None:
    call: Any = FakeCall()
    streams = PublishStreams()
    streams.succeeded("a", call, ())
    call.responses.put_nowait(grpc.aio.EOF)
    await some_turns()
    again: Any = FakeCall()
    streams.succeeded("a", again, ())
    again.responses.put_nowait(pb.CarriedResponse())
    await some_turns()
    assert streams.of("a", again) is None
    await streams.close()
