"""Publish calls that a gateway carries in one stream: each is the call of its own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from georelay._pb import carried_pb2 as pb
from georelay.credentials import basic
from georelay.errors import PolicyViolation
from mesh.listening.admission_core import AdmissionCounters, AdmissionLimits, Refusal
from region.api import carried_calls
from region.api._pb import broker_pb2
from region.api.broker_service import BrokerService
from region.api.carried_calls import CARRY_METHOD, CarriedCalls
from region.api.grpc_listener import GrpcListener
from region.api.grpc_services import grpc_handlers
from region.controller.security_wishes import delete_user, put_user
from region.security.scram_core import make_key
from region.security.user import ITERATIONS_MIN, Mechanism
from tests.unit.api.test_api_security import PASSWORD, Guarded, guarded

__all__ = ["guarded"]

ROOT = basic("root", PASSWORD)
ANN = basic("ann", PASSWORD)


class Room:
    """A broker's gRPC listener with a carried stream, and its counters."""

    def __init__(self, guarded: Guarded) -> None:
        (broker,) = (service for service in guarded.services if isinstance(service, BrokerService))
        self.carried = CarriedCalls(guarded.calls, broker.publish_handler())
        self.counters = AdmissionCounters()
        parts: Any = SimpleNamespace(
            counters=self.counters, contexts=None, limits=AdmissionLimits(connections_per_address_max=4)
        )
        self.listener = GrpcListener(
            grpc_handlers([self.carried], ready=lambda: True),
            host="127.0.0.1",
            port=0,
            parts=parts,
            admit=guarded.calls.admit,
            carried=self.carried,
        )
        self.channel: Any = None

    async def open(self, authorization: str | None = ROOT) -> Stream:
        metadata = () if authorization is None else (("authorization", authorization),)
        call = self.channel.stream_stream(
            CARRY_METHOD,
            request_serializer=pb.CarriedRequest.SerializeToString,
            response_deserializer=pb.CarriedResponse.FromString,
        )(metadata=metadata, timeout=10)
        assert await call.read() == pb.CarriedResponse()
        return Stream(call)


class Stream:
    """The gateway's end."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.is_told_to_end = False

    async def send(self, *calls: pb.CarriedCall, cancelled: tuple[int, ...] = ()) -> None:
        await self.call.write(pb.CarriedRequest(calls=calls, cancelled=cancelled))

    async def answers(self, count: int) -> dict[int, pb.CarriedAnswer]:
        found: dict[int, pb.CarriedAnswer] = {}
        while len(found) < count:
            response = await self.call.read()
            self.is_told_to_end |= response.closing
            found |= {answer.tag: answer for answer in response.answers}
        return found

    async def told_to_end(self) -> None:
        while not self.is_told_to_end:
            self.is_told_to_end = (await self.call.read()).closing


def call_of(tag: int, *, topic: str = "orders", authorization: str | None = ROOT) -> pb.CarriedCall:
    request = broker_pb2.PublishRequest(topic=topic, body=b"%d" % tag).SerializeToString()
    return pb.CarriedCall(tag=tag, request=request, authorization=authorization, client="10.0.0.1")


def told(answer: pb.CarriedAnswer) -> tuple[int, str]:
    return answer.status, answer.trailing["georelay-code"]


@pytest.fixture
async def room(guarded: Guarded) -> AsyncIterator[Room]:
    guarded.cluster.add_topic("orders")
    room = Room(guarded)
    port = await room.listener.start()
    options = (("grpc.enable_http_proxy", 0),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as room.channel:
        yield room
    await room.listener.close()


async def test_calls_of_one_message_are_stored_and_answered_each_with_its_id(room: Room, guarded: Guarded) -> None:
    stream = await room.open()
    await stream.send(*(call_of(tag) for tag in range(3)))
    answers = await stream.answers(3)
    ids = [broker_pb2.PublishResponse.FromString(answers[tag].response).id for tag in range(3)]
    assert ids == ["orders/0/0", "orders/0/1", "orders/0/2"]
    assert len(guarded.cluster.stream("orders", 0).entries) == 1


async def test_a_call_has_the_rights_of_its_own_caller_and_none_of_who_opened_the_stream(room: Room) -> None:
    stream = await room.open(ROOT)
    await stream.send(
        call_of(1, authorization=ANN),
        call_of(2, authorization=None),
        call_of(3, authorization=basic("root", "guessed-badly")),
        call_of(4),
    )
    answers = await stream.answers(4)
    assert told(answers[1]) == (grpc.StatusCode.PERMISSION_DENIED.value[0], "ACCESS_DENIED")
    for tag in (2, 3):
        assert told(answers[tag]) == (grpc.StatusCode.UNAUTHENTICATED.value[0], "UNAUTHENTICATED")
    assert answers[4].status == 0


async def test_a_stranger_opens_no_stream(room: Room) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await room.open(None)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_request_that_is_none_is_refused_alone(room: Room) -> None:
    stream = await room.open()
    await stream.send(pb.CarriedCall(tag=1, request=b"\xff", authorization=ROOT), call_of(2), call_of(3, topic=""))
    answers = await stream.answers(3)
    for tag in (1, 3):
        assert told(answers[tag]) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], "BAD_REQUEST")
    assert answers[2].status == 0


async def test_what_a_refusal_says_is_cut(room: Room, guarded: Guarded) -> None:
    guarded.cluster.publish_errors.append(PolicyViolation("x" * 60_000))
    stream = await room.open()
    await stream.send(call_of(1))
    answer = (await stream.answers(1))[1]
    assert told(answer) == (grpc.StatusCode.PERMISSION_DENIED.value[0], "POLICY_VIOLATION")
    assert answer.ByteSize() < 2_000


async def test_calls_beyond_the_limit_of_an_address_are_refused_as_busy_and_counted(
    room: Room, guarded: Guarded
) -> None:
    guarded.cluster.stream("orders", 0).auto_commit = False
    stream = await room.open()  # takes one of four places
    await stream.send(*(call_of(tag) for tag in range(5)))
    answers = await stream.answers(2)
    assert {told(answer) for answer in answers.values()} == {(grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], "BUSY")}
    assert room.counters.refused[Refusal.TOO_MANY_OF_ADDRESS] == 2
    stream.call.cancel()


async def test_a_message_of_very_many_calls_begins_no_more_than_may_be_open_and_a_few_in_a_turn(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carried_calls, "CALLS_OPEN_MAX", 3)
    monkeypatch.setattr(carried_calls, "CALLS_PER_TURN_MAX", 2)
    stream = await room.open()
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, room.listener.budget.calls_open - 1)  # the stream is one
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await stream.send(*(call_of(tag) for tag in range(20)))
    answers = await stream.answers(20)
    watching.cancel()
    assert {answer.status for answer in answers.values()} == {0}, "of one address three are let in beside the stream"
    assert 0 < most <= 3


async def test_what_the_calls_of_a_stream_hold_is_bounded_as_if_they_came_alone(room: Room) -> None:
    room.listener.budget.limit_bytes = 0
    stream = await room.open()
    await stream.send(call_of(1))
    assert told((await stream.answers(1))[1]) == (grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], "BUSY")
    assert room.counters.refused[Refusal.TOO_MANY] == 1


async def test_a_cancelled_call_gives_its_place_back_and_harms_no_other(room: Room, guarded: Guarded) -> None:
    guarded.cluster.stream("orders", 0).auto_commit = False
    stream = await room.open()
    await stream.send(call_of(1), call_of(2), call_of(3))
    while room.listener.budget.calls_open < 4:
        await asyncio.sleep(0)
    await stream.send(cancelled=(1, 2, 99))
    while room.listener.budget.calls_open > 2:
        await asyncio.sleep(0)
    guarded.cluster.stream("orders", 0).commit()
    assert (await stream.answers(1))[3].status == 0
    await stream.send(call_of(1))  # the tag is free again
    stream.call.cancel()


async def test_a_broker_that_stops_answers_what_was_sent(room: Room) -> None:
    stream = await room.open()
    closing = asyncio.create_task(room.listener.close())
    await stream.told_to_end()
    await stream.send(call_of(1))
    await stream.call.done_writing()
    assert (await stream.answers(1))[1].status == 0
    assert await stream.call.code() is grpc.StatusCode.OK
    await closing


async def test_a_stream_is_to_end_when_who_opened_it_may_sign_in_no_more(
    room: Room, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carried_calls, "RECHECK_S", 0.01)
    key = make_key(Mechanism.SCRAM_SHA_256, PASSWORD, salt=bytes(16), iterations=ITERATIONS_MIN)
    guarded.wish(put_user("eve", keys=[key], is_new=True))
    stream = await room.open(basic("eve", PASSWORD))
    guarded.wish(delete_user("eve"))
    await stream.told_to_end()
    await stream.send(call_of(1))
    assert (await stream.answers(1))[1].status == 0


async def test_a_tag_that_is_not_answered_yet_is_not_given_twice(room: Room, guarded: Guarded) -> None:
    guarded.cluster.stream("orders", 0).auto_commit = False
    stream = await room.open()
    await stream.send(call_of(1), call_of(1))
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await stream.answers(1)
    assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_streams_are_few(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried_calls, "STREAMS_MAX", 1)
    stream = await room.open()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await room.open()
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    stream.call.cancel()


@pytest.mark.parametrize("raw", [b"\xff", b"\x0a" + b"\xff\xff\x7f" + bytes(0x1FFFFF)], ids=["garbage", "large"])
async def test_a_message_that_is_none_or_too_large_ends_the_stream_with_the_reason(room: Room, raw: bytes) -> None:
    call = room.channel.stream_stream(CARRY_METHOD)(metadata=(("authorization", ROOT),), timeout=10)
    await call.read()
    await call.write(raw)
    with capture_logs() as logs, pytest.raises(grpc.aio.AioRpcError) as ended:
        await call.read()
    assert ended.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(ended.value.trailing_metadata())["georelay-code"] in ("BAD_REQUEST", "TOO_LARGE")
    assert not logs
