"""What one connection, and all together, may take of a broker's memory and patience."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import Any

import pytest

from georelay.limits import KIB, MIB
from georelay.wire.api import ApiKey, ErrorCode
from georelay.wire.requests import (
    ApiVersionsRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    MetadataRequest,
    MetadataRequestTopic,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from mesh.listening.admission_core import Refusal
from region.kafka import connection as connection_module
from region.kafka import listener as listener_module
from region.kafka.connection import ConnectionLimits
from region.kafka.handlers import metadata as metadata_module
from region.kafka.request_memory import RequestMemory
from region.kafka.unread_answers import ROOM_BYTES_MIN, UNREAD_S, UnreadAnswers
from tests.conditions import until

MORE = ApiKey.API_VERSIONS


@pytest.fixture(autouse=True)
def swept_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "SWEEP_S", 0.02)


def produce_start(size_bytes: int, sent: int) -> bytes:
    """Return the first `sent` bytes of a Produce frame."""
    return (struct.pack(">ihhi", size_bytes, ApiKey.PRODUCE, 7, 1) + bytes(sent))[:sent]


async def closed(client: Any) -> bool:
    with suppress(ConnectionResetError):
        return bool(await asyncio.wait_for(client.reader.read(1), 5) == b"")
    return True


@pytest.mark.parametrize("sent", [5, 12, 40 * KIB], ids=["a length", "a header", "some of a large one"])
async def test_a_request_that_does_not_come_whole_is_cut_off_and_counted(bed: Any, sent: int) -> None:
    await bed.listen(limits=ConnectionLimits(request_s=0.1))
    client = await bed.client()
    client.writer.write(produce_start(64 * KIB, sent))
    assert await closed(client)
    assert bed.listener._acceptor.counters.refused == {Refusal.TOO_SLOW: 1}


async def test_a_connection_that_sends_nothing_is_not_slow(bed: Any) -> None:
    await bed.listen(limits=ConnectionLimits(request_s=0.05))
    client = await bed.client()
    await client.call(ApiVersionsRequest(), MORE, 0)
    await asyncio.sleep(0.2)
    await client.call(ApiVersionsRequest(), MORE, 0)


async def test_a_large_request_that_keeps_coming_is_waited_for(bed: Any) -> None:
    await bed.listen(limits=ConnectionLimits(request_s=0.05))
    client = await bed.client()
    whole = produce_start(200 * KIB, 200 * KIB)  # 2 s at the least rate
    client.writer.write(whole[: 190 * KIB])
    await asyncio.sleep(0.3)
    assert not bed.listener._acceptor.counters.refused
    client.writer.close()


async def test_who_does_not_sign_in_in_time_is_cut_off_and_counted(bed: Any) -> None:
    bed.credentials.users = {"u": "p"}
    await bed.listen(limits=ConnectionLimits(sign_in_s=0.1))
    client = await bed.client()
    await client.call(ApiVersionsRequest(), MORE, 0)
    assert await closed(client)
    assert bed.listener._acceptor.counters.refused == {Refusal.NO_SIGN_IN: 1}


async def test_before_a_sign_in_no_large_frame_is_collected(bed: Any) -> None:
    bed.credentials.users = {"u": "p"}
    await bed.listen()
    client = await bed.client()
    client.writer.write(produce_start(64 * KIB + 1, 100))
    assert await closed(client)
    assert bed.services.counters.wire_errors == 1


async def test_bytes_of_requests_are_counted_from_their_start_to_their_answer(bed: Any) -> None:
    memory = RequestMemory()
    await bed.listen(memory=memory)
    client = await bed.client()
    client.writer.write(produce_start(100 * KIB, 50 * KIB))
    await until(lambda: memory.used_bytes == 100 * KIB)
    client.writer.close()
    await until(lambda: memory.used_bytes == 0)


async def test_an_answered_request_holds_nothing(bed: Any) -> None:
    memory = RequestMemory()
    await bed.listen(memory=memory)
    client = await bed.client()
    for _ in range(10):
        await client.call(ApiVersionsRequest(), MORE, 0)
    assert memory.used_bytes == 0


async def test_with_the_budget_used_up_further_requests_wait_and_none_is_lost(bed: Any) -> None:
    memory = RequestMemory(limit_bytes=64 * KIB)
    await bed.listen(memory=memory)
    holder, waiting = await bed.client(), await bed.client()
    await waiting.call(ApiVersionsRequest(), MORE, 0)
    holder.writer.write(produce_start(64 * KIB, 50 * KIB))
    await until(lambda: memory.is_full)
    waiting.send(ApiVersionsRequest(), 0)  # what was read before the bound was seen is answered
    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await waiting.receive(MORE, 0)
    waiting.send(ApiVersionsRequest(), 0)
    await until(lambda: memory.waits > 0)
    holder.writer.close()
    answered = await waiting.receive(MORE, 0)
    assert answered
    assert memory.used_bytes == 0


async def test_requests_of_one_user_leave_as_much_to_others_as_they_take(bed: Any) -> None:
    for user in ("ann", "bob"):
        bed.credentials.users[user] = "secret"
    memory = RequestMemory(limit_bytes=100 * KIB)
    await bed.listen(memory=memory)

    async def signed_in(user: str) -> Any:
        client = await bed.client()
        await client.call(SaslHandshakeRequest(mechanism="PLAIN"), ApiKey.SASL_HANDSHAKE, 1)
        token = f"\0{user}\0secret".encode()
        answer = await client.call(SaslAuthenticateRequest(auth_bytes=token), ApiKey.SASL_AUTHENTICATE, 2)
        assert answer.error_code == ErrorCode.NONE
        return client

    holder, of_the_same, other = [await signed_in(user) for user in ("ann", "ann", "bob")]
    holder.writer.write(produce_start(64 * KIB, 50 * KIB))
    await until(lambda: memory.held_by("User:ann") == 64 * KIB)
    of_the_same.writer.write(produce_start(34 * KIB, KIB))
    await until(lambda: memory.waits > 0)
    other.writer.write(produce_start(33 * KIB, KIB))
    await until(lambda: memory.held_by("User:bob") == 33 * KIB)
    assert memory.held_by("User:ann") == 64 * KIB
    holder.writer.close()
    await until(lambda: memory.held_by("User:ann") == 34 * KIB)
    of_the_same.writer.close()
    other.writer.close()
    await until(lambda: memory.used_bytes == 0)


async def test_a_connection_with_too_many_unanswered_bytes_is_not_read(bed: Any) -> None:
    limits = ConnectionLimits(request_bytes_max=1)
    memory = RequestMemory()
    await bed.listen(limits=limits, memory=memory)
    client = await bed.client()
    for _ in range(5):  # each is answered before the next is handled
        client.send(ApiVersionsRequest(), 0)
    for _ in range(5):
        await client.receive(MORE, 0)
    assert memory.used_bytes == 0


async def test_a_length_alone_takes_a_megabyte_at_most(bed: Any) -> None:
    memory = RequestMemory()
    await bed.listen(memory=memory)
    client = await bed.client()
    client.writer.write(produce_start(30 * 1024 * KIB, 20))
    await until(lambda: memory.used_bytes > 0)
    assert memory.used_bytes == 1024 * KIB
    client.writer.write(bytes(1024 * KIB))
    await until(lambda: memory.used_bytes == 4 * 1024 * KIB)


async def test_a_large_frame_waits_for_memory_and_is_handled_when_there_is_some(bed: Any) -> None:
    memory = RequestMemory(limit_bytes=64 * KIB)
    bed.cluster.add_topic("t")
    await bed.listen(memory=memory)
    holder, waiting = await bed.client(), await bed.client()
    holder.writer.write(produce_start(64 * KIB, 50 * KIB))
    await until(lambda: memory.is_full)
    whole = produce_start(100 * KIB, 100 * KIB + 4)
    waiting.writer.write(whole[:1000])
    await until(lambda: memory.waits > 0)
    assert memory.used_bytes == 64 * KIB  # nothing was taken for it
    waiting.writer.write(whole[1000:])
    holder.writer.close()
    assert await closed(waiting)  # it was read: what is in it is no Produce request
    assert bed.services.counters.wire_errors == 1
    assert memory.used_bytes == 0


def test_waiting_connections_are_woken_once_when_there_is_room() -> None:
    memory = RequestMemory(limit_bytes=10)
    woken: list[str] = []
    memory.take(20)
    memory.wait(lambda: woken.append("a"))
    forgotten = lambda: woken.append("b")  # noqa: E731
    memory.wait(forgotten)
    memory.forget(forgotten)
    memory.take(-10)
    assert woken == []
    memory.take(-1)
    memory.take(-1)
    assert woken == ["a"]


def fetch(topic: str, *, wait_ms: int = 0) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MIB)
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=MIB, topics=[FetchTopic(topic, [wanted])])


def add_megabytes(bed: Any, count: int) -> None:
    bed.cluster.add_topic("full")
    for _ in range(count):
        bed.cluster.stream("full", 0).add(bytes(MIB - KIB))


@pytest.mark.parametrize("is_cold", [False, True], ids=["from memory", "from disk"])
@pytest.mark.parametrize("is_behind_a_long_poll", [False, True], ids=["at once", "behind a long poll"])
async def test_answers_that_a_client_does_not_read_are_bounded_and_none_is_lost(
    bed: Any, is_cold: bool, is_behind_a_long_poll: bool
) -> None:
    add_megabytes(bed, 1)
    bed.cluster.add_topic("empty")
    bed.cluster.stream("full", 0).in_memory = not is_cold
    answers = RequestMemory()
    await bed.listen(limits=ConnectionLimits(answer_bytes_max=4 * MIB), answers=answers)
    client = await bed.client()
    client.writer.transport.pause_reading()
    if is_behind_a_long_poll:
        client.send(fetch("empty", wait_ms=60_000), 11)
    for _ in range(60):
        client.send(fetch("full"), 11)
    highest_bytes = 0
    for _ in range(40):
        await asyncio.sleep(0.005)
        highest_bytes = max(highest_bytes, answers.used_bytes)
    assert highest_bytes <= 5 * MIB
    assert not is_behind_a_long_poll or highest_bytes > 3 * MIB  # it was waited for
    bed.cluster.stream("empty", 0).add(b"x")
    client.writer.transport.resume_reading()
    for _ in range(60 + is_behind_a_long_poll):
        await client.receive(ApiKey.FETCH, 11)
    await until(lambda: answers.used_bytes == 0)


async def test_clients_that_do_not_read_cannot_stop_one_that_does_and_are_cut_off(
    bed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_megabytes(bed, 8)
    answers = RequestMemory(limit_bytes=64 * KIB)
    await bed.listen(answers=answers)
    silent, reader = await bed.client(), await bed.client()
    silent.writer.transport.pause_reading()
    for _ in range(60):
        silent.send(fetch("full"), 11)
    await until(lambda: answers.is_full)
    answer = await reader.call(fetch("full"), ApiKey.FETCH, 11)
    assert answer.responses[0].partitions[0].records
    await until(lambda: sum(row.unread.used_bytes > 0 for row in bed.listener._connections) == 1)
    (connection,) = [row for row in bed.listener._connections if row.unread.used_bytes]
    now_ns = bed.services.monotonic_ns()
    connection.sweep(now_ns + int(UNREAD_S * 0.9e9))
    assert not connection.is_closing
    connection.sweep(now_ns + int(UNREAD_S * 1.5e9))
    assert bed.listener._acceptor.counters.refused == {Refusal.TOO_SLOW: 1}
    await until(lambda: answers.used_bytes == 0)


def test_with_the_budget_used_up_only_who_has_read_everything_has_room() -> None:
    budget = RequestMemory(limit_bytes=10)
    one, other = UnreadAnswers(100, budget), UnreadAnswers(100, budget)
    one.count(10)
    assert (one.room_bytes, other.room_bytes) == (0, ROOM_BYTES_MIN)
    one.count(-1)
    assert (one.room_bytes, other.room_bytes) == (91, 100)
    one.close()
    one.count(5)
    assert budget.used_bytes == 0


async def test_a_connection_without_a_sign_in_ends_when_there_are_users(bed: Any) -> None:
    client = await bed.client()
    await client.call(ApiVersionsRequest(), MORE, 0)
    bed.credentials.users = {"u": "p"}
    assert await closed(client)


async def test_a_partition_that_a_fetch_names_again_is_refused_and_waits_for_nothing(bed: Any) -> None:
    bed.cluster.add_topic("empty")
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MIB)
    request = FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=MIB, topics=[FetchTopic("empty", [wanted] * 3)])
    client = await bed.client()
    answer = await client.call(request, ApiKey.FETCH, 11)
    assert [row.error_code for row in answer.responses[0].partitions] == [0, 42, 42]
    assert not bed.cluster.stream("empty", 0)._waiters


async def test_remembered_metadata_is_bounded_in_bytes(bed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "CACHED_BYTES_MAX", 200)
    handlers: list[Any] = []
    begin = metadata_module.MetadataHandler.__init__

    def noted(handler: Any, services: Any) -> None:
        begin(handler, services)
        handlers.append(handler)

    monkeypatch.setattr(metadata_module.MetadataHandler, "__init__", noted)
    for name in "abcdef":
        bed.cluster.add_topic(name)
    client = await bed.client()
    for name in "abcdef":
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), ApiKey.METADATA, 9)
    (handler,) = handlers
    assert 0 < sum(map(len, handler._cache.values())) <= 200


async def test_a_connection_that_is_closed_and_not_read_is_aborted(bed: Any) -> None:
    client = await bed.client()
    await client.call(ApiVersionsRequest(), MORE, 0)
    (connection,) = bed.listener._connections
    connection._is_closing = True  # what close() leaves of one whose client does not read
    connection.sweep(bed.services.monotonic_ns() + int((connection_module.LAST_WORDS_S + 1) * 1e9))
    assert await closed(client)
