"""Records that are too large to be handed out: they go to the dead-letter topic, whatever it takes."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import Busy
from region.queues import live_queue
from region.queues.commands_core import Condemn, Drop

LARGE = "x" * 200


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_queue, "RECORD_BYTES_MAX", 100)


def reasons(scene: Any) -> list[bytes | None]:
    """Return why each dead letter is one."""
    return [dict(record.headers)["georelay-reason"] for record in scene.cluster.records("q-dead-letters")]


async def test_a_record_that_is_too_large_is_handed_to_nobody_and_becomes_a_dead_letter(
    scene: Any, texts: Any, settled: Any
) -> None:
    await scene.make()
    waiting = scene.receiving(count=2, wait_ms=30_000)
    await settled()
    await scene.publish(LARGE)
    assert not waiting.done()
    await scene.publish("small")
    await scene.pass_s(0.1)
    assert texts(await waiting) == ["small"]
    assert reasons(scene) == [b"too_large"]
    assert scene.part.counters.records_expired == 0


async def test_without_a_dead_letter_topic_a_record_that_is_too_large_is_dropped(scene: Any, texts: Any) -> None:
    await scene.make(max_deliveries=0)
    await scene.publish(LARGE, "small")
    await scene.pass_s(0.1)
    assert texts(await scene.receive()) == ["small"]
    assert (await scene.call("describe"))["partitions"][0]["open"] == 1


@pytest.mark.parametrize("max_deliveries", [0, 5], ids=["drop", "condemn"])
async def test_refusing_a_record_that_is_too_large_is_tried_until_it_is_done(
    scene: Any, texts: Any, monkeypatch: pytest.MonkeyPatch, max_deliveries: int
) -> None:
    await scene.make(max_deliveries=max_deliveries)
    live = scene.part.live("q")
    plain = live.propose
    left = 3

    async def busy(command: Any, **more: Any) -> Any:
        nonlocal left
        if isinstance(command, Condemn | Drop) and left:
            left -= 1
            raise Busy("too much waits")
        return await plain(command, **more)

    monkeypatch.setattr(live, "propose", busy)
    await scene.publish(LARGE)
    for _ in range(8):
        await scene.pass_s(0.1)
        assert await scene.receive() == []
    assert left == 0
    assert live.state.cursor(0) == 1
    assert reasons(scene) == [b"too_large"] if max_deliveries else live.state.counts.expired == 1


async def test_a_record_that_is_too_large_is_refused_again_when_an_epoch_began_meanwhile(
    scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.make()
    live = scene.part.live("q")
    plain = live.propose

    async def late(command: Any, **more: Any) -> Any:
        if isinstance(command, Condemn):
            monkeypatch.setattr(live, "propose", plain)
            scene.cluster.decide("orders", 2, 1)
            scene.cluster.begin("orders")
            await live.begin_epoch(0, 2, 1)
        return await plain(command, **more)

    scene.cluster.tables["orders", 0] = [(1, 0)]  # control knows of a move: commands name epochs
    monkeypatch.setattr(live, "propose", late)
    await scene.publish(LARGE)
    for _ in range(3):
        await scene.pass_s(0.1)
        assert await scene.receive() == []
    assert reasons(scene) == [b"too_large"]
