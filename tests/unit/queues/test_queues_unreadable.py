"""Batches whose records are no records: a queue says so once, and goes on behind them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.wire.batch import HEADER_BYTES, Compression, build_batch


def spoilt(*values: bytes, record: int, compression: Compression = Compression.NONE) -> bytes:
    """Return a batch in which one record is none; with a codec nothing of it unfolds."""
    raw = bytearray(build_batch([(value, None, ()) for value in values], timestamps_ms=1, compression=compression))
    position = HEADER_BYTES
    for _ in range(record):
        position += 1 + raw[position] // 2
    raw[position] = 0xFE
    return bytes(raw)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
async def test_a_batch_of_garbage_is_one_dead_letter_and_what_follows_is_delivered(
    scene: Any, texts: Any, compression: Compression
) -> None:
    await scene.make()
    scene.cluster.append("orders", 0, spoilt(b"a", b"b", b"c", record=0, compression=compression), 3)
    await scene.publish("good")
    async with asyncio.timeout(5):
        assert texts(await scene.receive(wait_ms=30_000)) == ["good"]
        while not scene.cluster.records("q-dead-letters"):
            await scene.pass_s(0.1)
    (letter,) = scene.cluster.records("q-dead-letters")
    told = dict(letter.headers)
    assert (letter.key, letter.value) == (None, None)
    assert (told["georelay-reason"], told["georelay-offset"], told["georelay-records"]) == (b"unreadable", b"0", b"3")
    assert told["georelay-unreadable"]
    assert (await scene.call("describe"))["partitions"][0]["cursor"] == 3


async def test_what_stands_before_the_garbage_is_delivered_and_the_rest_of_the_batch_passed_over(
    scene: Any, texts: Any
) -> None:
    await scene.make()
    scene.cluster.append("orders", 0, spoilt(b"a", b"b", b"c", b"d", record=2), 4)
    await scene.publish("e")
    rows = await scene.receive()
    assert texts(rows) == ["a", "b", "e"]
    await scene.pass_s(0.1)
    assert await scene.codes("acknowledge", rows) == ["OK", "OK", "OK"]
    assert (await scene.call("describe"))["partitions"][0]["cursor"] == 5
    assert [dict(letter.headers)["georelay-offset"] for letter in scene.cluster.records("q-dead-letters")] == [b"2"]


async def test_without_a_dead_letter_topic_garbage_is_passed_over(scene: Any, texts: Any) -> None:
    await scene.make(max_deliveries=0)
    scene.cluster.append("orders", 0, spoilt(b"a", b"b", record=1), 2)
    await scene.publish("c")
    rows = await scene.receive()
    await scene.pass_s(0.1)
    assert texts(rows) == ["a", "c"]
    assert await scene.codes("acknowledge", rows) == ["OK", "OK"]
    assert (await scene.call("describe"))["partitions"][0]["cursor"] == 3


async def test_a_record_before_garbage_that_is_read_again_is_found(scene: Any, texts: Any) -> None:
    await scene.make(visibility_timeout_ms=1_000)
    scene.cluster.append("orders", 0, spoilt(b"a", b"b", b"c", record=1), 3)
    async with asyncio.timeout(5):
        assert texts(await scene.receive("one", wait_ms=30_000)) == ["a"]
    await scene.pass_s(1.5)
    assert texts(await scene.receive("two")) == ["a"]
    await scene.fail_over()
    await scene.pass_s(1.5)
    assert texts(await scene.receive("three")) == ["a"]
    assert len(scene.cluster.records("q-dead-letters")) == 1
