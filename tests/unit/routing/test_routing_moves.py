"""Copies when the home of their source moves: each is there once after a plan, and none is missing after a loss."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from georelay.errors import OutcomeUnknown, Unavailable
from georelay.ids import Epoch, Offset, RegionNumber
from region.routing.administration import BindingAdmin
from region.routing.copies_core import CopyBook, CopyKey, CopyRow, SaveCopies, TakeCopies

KEY = CopyKey("one", 1, "s")


def row(cursor: int, *, producer: int = 1, epoch: int = 1, sequence: int = 0) -> CopyRow:
    return CopyRow(producer_id=producer, cursor=cursor, sequence=sequence, partitions=1, epoch=epoch)


async def moved(broker: Any, start: int) -> tuple[Any, Any]:
    """Let another region be home from `start` on; return the source and the routing of the old home."""
    old, routing = broker.source, broker.routing
    new = type(old)()
    new.epoch = Epoch(2)
    new.decided_table = old.decided_table = ((Epoch(1), Offset(0)), (Epoch(2), Offset(start)))
    new.entries = [entry for entry in old.entries if entry.base_offset < start]
    new.next_offset = new.high_watermark = Offset(start)
    old.is_home = False
    broker.source, broker.routing = new, broker.new_routing(new)
    return old, routing


async def until(condition: Any, *routings: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            for routing in routings:
                routing.sweep()
            await asyncio.sleep(0.01)


async def test_the_old_home_makes_what_is_left_and_the_new_one_goes_on_behind_it(broker: Any) -> None:
    await broker.bind("one", "audit")
    await broker.publish("a")
    broker.targets.errors = [Unavailable("no leader")] * 2
    waiting = broker.publish("b")
    await broker.settle()
    assert broker.targets.values("audit") == ["a"]
    _, old = await moved(broker, 2)
    old.sweep()
    await broker.look()
    after = broker.publish("c")
    await until(lambda: waiting.done() and after.done(), old, broker.routing)
    assert waiting.result().base_offset == 1, "its copy was made, and the publisher is told so"
    assert broker.targets.values("audit") == ["a", "b", "c"]
    await old.close()


async def test_the_old_home_copies_nothing_that_the_mesh_has_not_kept(broker: Any) -> None:
    await broker.bind("one", "audit")
    await broker.publish("a")
    broker.targets.errors = [Unavailable("no leader")]
    kept, lost = broker.publish("kept"), broker.publish("lost")
    await broker.settle()
    _, old = await moved(broker, 2)
    await broker.look()
    after = broker.publish("new")
    await until(lambda: kept.done() and lost.done() and after.done(), old, broker.routing)
    assert kept.result().base_offset == 1
    assert isinstance(lost.exception(), OutcomeUnknown)
    assert broker.targets.values("audit") == ["a", "kept", "new"]
    await old.close()


async def test_records_that_take_the_offsets_of_lost_ones_are_copied(broker: Any) -> None:
    await broker.bind("one", "audit")
    await broker.publish("kept")
    await broker.publish("lost")
    await broker.settle()
    _, old = await moved(broker, 1)
    await old.close()
    await broker.look()
    async with asyncio.timeout(5):
        await broker.publish("new")
    assert broker.targets.values("audit") == ["kept", "lost", "new"]


async def test_a_lost_home_that_copied_more_than_it_saved_is_not_taken_for_the_new_one(broker: Any) -> None:
    await broker.bind("one", "audit")
    await broker.publish("kept")
    await broker.settle()
    log = broker.coordinators.logs[broker.coordinators.partition_of("one")]
    log.hold()
    broker.publish("lost")
    await broker.settle()
    assert broker.targets.values("audit") == ["kept", "lost"]
    _, old = await moved(broker, 1)
    await old.close()
    log.depose()
    log._held = False
    log.elect()
    await broker.look()
    async with asyncio.timeout(5):
        await broker.publish("new")
    assert broker.targets.values("audit") == ["kept", "lost", "new"]


async def test_who_published_what_the_new_home_does_not_have_is_not_told_that_it_is_copied(broker: Any) -> None:
    await broker.bind("one", "audit")
    await broker.publish("a")
    broker.targets.errors = [Unavailable("no leader")]
    answer = broker.publish("lost")
    await broker.settle()
    _, old = await moved(broker, 1)
    await until(answer.done, old)
    with pytest.raises(OutcomeUnknown):
        answer.result()
    await old.close()


async def test_copies_wait_for_the_epoch_to_begin_in_the_log_of_the_new_home(broker: Any) -> None:
    await broker.bind("one", "audit")
    await broker.publish("a")
    await broker.settle()
    _, old = await moved(broker, 1)
    await until(lambda: not old._copies, old)
    broker.source.epoch = Epoch(1)
    broker.routing.sweep()
    await broker.settle()
    assert not broker.routing._copies[broker.source.key].copiers
    broker.source.epoch = Epoch(2)
    await broker.look()
    async with asyncio.timeout(5):
        await broker.publish("b")
    assert broker.targets.values("audit") == ["a", "b"]


async def test_a_stream_that_stays_where_it_is_in_a_new_epoch_is_copied_on(broker: Any) -> None:
    await broker.bind("one", "audit")
    await broker.publish("a")
    await broker.settle()
    source = broker.source
    source.epoch, source.decided_table = Epoch(3), ((Epoch(1), Offset(0)), (Epoch(3), Offset(1)))
    answer = broker.publish("b")
    await until(answer.done, broker.routing)
    assert broker.targets.values("audit") == ["a", "b"]


async def test_positions_are_asked_of_the_region_that_was_the_first_home(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[RegionNumber | None] = set()
    plain = broker.coordinators.call

    async def call(*arguments: Any, origin: RegionNumber | None = None, **more: Any) -> Any:
        asked.add(origin)
        return await plain(*arguments, **more)

    monkeypatch.setattr(broker.coordinators, "call", call)
    broker.targets.region_number = RegionNumber(2)
    await broker.bind("one", "audit")
    await broker.publish("a")
    assert asked == {RegionNumber(1)}


def test_a_home_that_was_replaced_saves_nothing_and_takes_nothing_back() -> None:
    book = CopyBook()
    book.restore([{"binding": "one", "index": 1, "stream": "s", **row(7, sequence=6).to_json()}])
    book.apply(TakeCopies(key=KEY, row=row(5, producer=2, epoch=3)))
    assert book.find(KEY) == row(5, producer=2, epoch=3)
    book.apply(SaveCopies(key=KEY, row=row(9)))
    book.apply(TakeCopies(key=KEY, row=row(0, producer=4, epoch=3)))
    book.apply(TakeCopies(key=KEY, row=row(0, producer=4, epoch=2)))
    assert book.find(KEY) == row(5, producer=2, epoch=3)
    book.apply(TakeCopies(key=KEY, row=row(90, producer=5, epoch=4)))
    assert book.find(KEY) == row(5, producer=5, epoch=4), "never beyond what was copied"


async def test_a_binding_that_is_removed_is_forgotten_wherever_its_streams_began(broker: Any) -> None:
    asked: list[int] = []

    class Elsewhere:
        async def call(self, part: Any, key: str, operation: str, body: Any, *, origin: int) -> dict[str, Any]:
            asked.append(origin)
            if origin == 1:
                raise Unavailable("region 1 is silent")
            return {}

    async def change(_wish: Any) -> None:
        broker.bindings.clear()

    views = [broker.targets.topic("orders"), broker.targets.topic("audit")]
    cluster: Any = SimpleNamespace(region_number=RegionNumber(2), topics=lambda: views, topic=broker.targets.topic)
    coordinators: Any = Elsewhere()
    admin = BindingAdmin(
        cluster=cluster, coordinators=coordinators, change=change, bindings=lambda: list(broker.bindings)
    )
    await broker.bind("one", "audit")
    await admin.remove("one")
    assert asked == [1, 2], "what a silent region remembers does no harm"
