"""A planned move with copies that are not made yet, and copies that have not begun: none is there twice or missing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from georelay.errors import OutcomeUnknown, Unavailable
from georelay.ids import Epoch, Offset
from mesh.replication.publish import Publish
from region.kafka.ports import Published
from region.routing import copier
from region.routing.copies_core import (
    CopyBook,
    CopyKey,
    CopyRow,
    HandCopies,
    RenewCopies,
    SaveCopies,
    TakeCopies,
    decode_copy_command,
    encode_copy_command,
)

KEY = CopyKey("one", 1, "s")
BACKLOG = 60


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
            await asyncio.sleep(0.005)


def slow_down(broker: Any, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the target answer late."""
    plain = broker.targets.publish

    def publish(name: str, partition: int, batch: Publish) -> asyncio.Future[Published]:
        async def late() -> Published:
            await asyncio.sleep(seconds)
            stored: Published = await plain(name, partition, batch)
            return stored

        return asyncio.ensure_future(late())

    monkeypatch.setattr(broker.targets, "publish", publish)


# --- a planned move ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.002, 0.02, 0.3], ids=["quick", "slow", "slower than the new home waits"])
async def test_a_planned_move_copies_nothing_twice_however_much_is_left(
    broker: Any, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(copier, "DRAIN_S", 0.1)
    monkeypatch.setattr(copier, "DRAIN_LOOK_S", 0.01)
    await broker.bind("one", "audit")
    await broker.publish("first")
    slow_down(broker, monkeypatch, seconds)
    count = BACKLOG if seconds < 0.1 else 6
    waiting = [broker.publish(f"r{number}") for number in range(count)]
    await broker.settle()
    _, routing = await moved(broker, count + 1)
    await until(lambda: routing._copies == {} or broker.routing._copies != {}, routing, broker.routing)
    await until(lambda: all(answer.done() for answer in waiting), routing, broker.routing)
    assert [answer.result().base_offset for answer in waiting] == list(range(1, count + 1))
    after = broker.publish("after")
    await until(after.done, routing, broker.routing)
    wanted = ["first", *(f"r{number}" for number in range(count)), "after"]
    assert broker.targets.values("audit") == wanted
    await routing.close()


async def test_an_old_home_that_copied_a_branch_does_not_hand_its_producer_over(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "DRAIN_S", 0.1)
    await broker.bind("one", "audit")
    await broker.publish("kept")
    await broker.publish("lost")
    log = broker.coordinators.logs[broker.coordinators.partition_of("one")]
    await broker.settle()
    _, routing = await moved(broker, 1)
    await until(lambda: routing._copies == {} and broker.routing._copies, routing, broker.routing)
    await until(lambda: all(row.is_recorded for row in next(iter(broker.routing._copies.values())).copiers.values()))
    async with asyncio.timeout(5):
        await broker.publish("new")
    assert broker.targets.values("audit") == ["kept", "lost", "new"], "not taken for the copy of the lost one"
    assert not any(b'"op":"hand"' in command for *_, command in log.commands)


async def test_a_home_that_hands_over_while_it_reads_copies_nothing_of_what_it_reads_of_a_branch(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.bind("one", "audit")
    await broker.publish("kept")
    await broker.settle()
    plain, has_read = broker.source.read_cold, asyncio.Event()

    async def slow(offset: Offset, max_bytes: int) -> Any:
        found = await plain(offset, max_bytes)
        await has_read.wait()
        return found

    monkeypatch.setattr(broker.source, "read_cold", slow)
    for value in ("lost 1", "lost 2"):
        broker.publish(value)
    await broker.settle()
    log = broker.coordinators.logs[broker.coordinators.partition_of("one")]
    _, routing = await moved(broker, 1)
    await until(lambda: any(b'"op":"hand"' in command for *_, command in log.commands), routing)
    has_read.set()
    await broker.settle()
    await broker.look()
    answers = [broker.publish(value) for value in ("new 1", "new 2")]
    await until(lambda: all(answer.done() for answer in answers), routing, broker.routing)
    assert broker.targets.values("audit") == ["kept", "new 1", "new 2"]
    await routing.close()


async def test_an_old_home_whose_last_copies_come_too_late_leaves_the_producer_of_the_new_one_alone(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.bind("one", "audit")
    await broker.publish("first")
    await broker.settle()
    publish, call = broker.targets.publish, broker.coordinators.call
    old_lanes = [row for copies in broker.routing._copies.values() for row in copies.copiers.values()]
    may_arrive, may_save, is_third = asyncio.Event(), asyncio.Event(), asyncio.Event()
    saves = 0

    def slow(name: str, partition: int, batch: Publish) -> asyncio.Future[Published]:
        async def late() -> Published:
            if batch.lane in old_lanes:
                await may_arrive.wait()
            stored: Published = await publish(name, partition, batch)
            return stored

        return asyncio.ensure_future(late())

    async def held(part: Any, key: str, operation: str, body: Any, **more: Any) -> Any:
        nonlocal saves
        if operation == "copy_save" and body.get("epoch") == 2:
            saves += 1
            if saves == 3:
                is_third.set()
                await may_save.wait()
        return await call(part, key, operation, body, **more)

    monkeypatch.setattr(broker.targets, "publish", slow)
    waiting = [broker.publish(f"r{number}") for number in range(14)]
    await broker.settle()
    _, routing = await moved(broker, 15)
    monkeypatch.setattr(broker.coordinators, "call", held)
    await until(is_third.is_set, routing, broker.routing)
    may_arrive.set()  # the target does not know copies any more that are so old
    await broker.settle(400)
    may_save.set()
    await until(lambda: all(answer.done() for answer in waiting), routing, broker.routing)
    assert broker.targets.values("audit") == ["first", *(f"r{number}" for number in range(14))]
    assert broker.targets.allocated == 1, "nobody needed another producer"
    await routing.close()


async def test_a_leader_that_was_cut_off_does_not_hand_over_what_another_one_may_have_gone_on_with(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.bind("one", "audit")
    await broker.publish("first")
    slow_down(broker, monkeypatch, 0.3)
    broker.publish("left")
    await broker.settle()
    old, routing = await moved(broker, 2)
    old.has_quorum = False
    routing.sweep()
    await asyncio.sleep(0.05)
    log = broker.coordinators.logs[broker.coordinators.partition_of("one")]
    assert not any(b'"op":"hand"' in command for *_, command in log.commands)
    old.has_quorum = True
    await until(lambda: any(b'"op":"hand"' in command for *_, command in log.commands), routing)
    await routing.close()


async def test_an_old_home_that_was_silent_for_too_long_makes_no_more_copies(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "DRAIN_S", 0.05)
    monkeypatch.setattr(copier, "DRAIN_LOOK_S", 0.01)
    await broker.bind("one", "audit")
    await broker.publish("first")
    slow_down(broker, monkeypatch, 0.02)
    waiting = [broker.publish(f"r{number}") for number in range(BACKLOG)]
    _, routing = await moved(broker, BACKLOG + 1)
    plain = broker.coordinators.call

    async def silent(part: Any, key: str, operation: str, *more: Any, **named: Any) -> Any:
        if operation in ("copy_save", "copy_hand"):  # the old home does not reach the coordinator
            raise Unavailable("the link is cut")
        return await plain(part, key, operation, *more, **named)

    with monkeypatch.context() as cut:
        cut.setattr(broker.coordinators, "call", silent)
        await until(
            lambda: any(b'"op":"take"' in command for log in broker.coordinators.logs for *_, command in log.commands),
            broker.routing,
        )
    await until(lambda: all(answer.done() for answer in waiting), routing, broker.routing)
    values = broker.targets.values("audit")
    assert set(values) == {"first", *(f"r{number}" for number in range(BACKLOG))}
    assert len(values) - len(set(values)) <= 2 * copier.GROUP_COPIES, "what was under way, and not the whole backlog"
    await routing.close()


async def led_anew(broker: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """Move a home by force whose leader is new, and does not know what of its log was copied before; return that."""
    monkeypatch.setattr(copier, "DRAIN_S", 0.1)
    monkeypatch.setattr(copier, "DRAIN_LOOK_S", 0.01)
    await broker.bind("one", "audit")
    await broker.publish("first")
    slow_down(broker, monkeypatch, 0.02)
    for number in range(BACKLOG):
        broker.publish(f"r{number}")
    await broker.settle()
    await broker.replace_leader()
    _, routing = await moved(broker, BACKLOG - 5)
    return routing, ["first", *(f"r{number}" for number in range(BACKLOG - 6))]


async def test_the_new_home_waits_for_an_old_one_that_may_have_copied_a_branch_while_it_goes_on(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    routing, kept = await led_anew(broker, monkeypatch)
    await until(lambda: len(broker.targets.values("audit")) >= len(kept), routing, broker.routing)
    await broker.look()
    answer = broker.publish("after")
    await until(answer.done, routing, broker.routing)
    assert broker.targets.values("audit") == [*kept, "after"]
    await routing.close()


async def test_an_old_home_that_was_taken_for_lost_hears_of_it_when_it_saves(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    routing, kept = await led_anew(broker, monkeypatch)
    plain = broker.coordinators.call

    async def silent(part: Any, key: str, operation: str, *more: Any, **named: Any) -> Any:
        if operation == "copy_save":
            raise Unavailable("the link is cut")
        return await plain(part, key, operation, *more, **named)

    with monkeypatch.context() as cut:
        cut.setattr(broker.coordinators, "call", silent)
        await until(
            lambda: any(b'"op":"take"' in command for log in broker.coordinators.logs for *_, command in log.commands),
            broker.routing,
        )
    await until(lambda: set(broker.targets.values("audit")) == set(kept), routing, broker.routing)
    await asyncio.sleep(0.2)
    assert len(broker.targets.values("audit")) - len(kept) <= 2 * copier.GROUP_COPIES
    await routing.close()


async def test_publishes_go_on_while_a_stream_that_stays_where_it_is_begins_another_epoch(broker: Any) -> None:
    await broker.bind("one", "audit")
    await broker.publish("a")
    source = broker.source
    source.epoch, source.decided_table = Epoch(3), ((Epoch(1), Offset(0)), (Epoch(3), Offset(1)))
    for number in range(40):
        broker.routing.sweep()
        broker.publish(f"r{number}")
        await asyncio.sleep(0)
    await until(lambda: len(broker.targets.values("audit")) >= 41, broker.routing)
    assert broker.targets.values("audit") == ["a", *(f"r{number}" for number in range(40))]


async def test_no_more_copies_are_made_while_the_last_ones_cannot_be_saved(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.bind("one", "audit")
    await broker.publish("first")
    await broker.settle()
    plain = broker.coordinators.call

    async def broken(part: Any, key: str, operation: str, *more: Any, **named: Any) -> Any:
        if operation == "copy_save":
            raise Unavailable("no quorum")
        return await plain(part, key, operation, *more, **named)

    with monkeypatch.context() as cut:
        cut.setattr(broker.coordinators, "call", broken)
        for number in range(12):
            broker.publish(f"r{number}")
        await asyncio.sleep(0.4)
        assert len(broker.targets.values("audit")) <= 1 + copier.GROUP_COPIES
    await broker.replace_leader()
    await until(lambda: len(broker.targets.values("audit")) >= 13, broker.routing)
    assert broker.targets.values("audit") == ["first", *(f"r{number}" for number in range(12))]


# --- the row ----------------------------------------------------------------------------------------


def row(cursor: int, *, producer: int = 1, epoch: int = 1, sequence: int = 0) -> CopyRow:
    return CopyRow(producer_id=producer, cursor=cursor, sequence=sequence, partitions=1, epoch=epoch)


def test_a_row_is_handed_over_as_it_is_by_the_home_whose_epoch_it_names() -> None:
    book = CopyBook()
    book.restore([{"binding": "one", "index": 1, "stream": "s", **row(7, sequence=6).to_json()}])
    for ended, producer in ((2, 1), (1, 9)):
        book.apply(HandCopies(key=KEY, producer_id=producer, ended=ended, epoch=3))
        assert book.find(KEY) == row(7, sequence=6)
    hand = HandCopies(key=KEY, producer_id=1, ended=1, epoch=3)
    assert decode_copy_command(encode_copy_command(hand, 0)) == (hand, 0)
    book.apply(hand)
    assert book.find(KEY) == row(7, sequence=6, epoch=3)
    book.apply(SaveCopies(key=KEY, row=row(11, sequence=10)))
    assert book.find(KEY) == row(7, sequence=6, epoch=3), "it is made again, and stored once"
    book.apply(SaveCopies(key=KEY, row=row(9, sequence=8, epoch=3)))
    assert book.find(KEY) == row(9, sequence=8, epoch=3)
    book.apply(TakeCopies(key=KEY, row=row(8, producer=2, epoch=4)))
    book.apply(HandCopies(key=KEY, producer_id=1, ended=3, epoch=5))
    assert book.find(KEY) == row(8, producer=2, epoch=4)


def test_a_producer_is_replaced_by_the_home_whose_epoch_the_row_is_of() -> None:
    book = CopyBook()
    book.restore([{"binding": "one", "index": 1, "stream": "s", **row(7, sequence=6, epoch=2).to_json()}])
    for epoch in (1, 3):
        book.apply(RenewCopies(key=KEY, row=row(5, producer=9, epoch=epoch), instead_of=1))
        assert book.find(KEY) == row(7, sequence=6, epoch=2)
    book.apply(RenewCopies(key=KEY, row=row(5, producer=9, epoch=2), instead_of=1))
    assert book.find(KEY) == row(7, producer=9, epoch=2)


# --- copies that have not begun ---------------------------------------------------------------------


async def test_nothing_is_stored_before_it_is_recorded_where_the_copies_begin(broker: Any) -> None:
    log = broker.coordinators.logs[broker.coordinators.partition_of("one")]
    log.hold()
    broker.define("one", "audit")
    with pytest.raises(Unavailable, match="not begun"):
        broker.publish("early")
    await broker.settle()
    with pytest.raises(Unavailable, match="not begun"):
        broker.publish("early")
    assert int(broker.source.next_offset) == 0
    log.release()
    await broker.settle()
    await broker.publish("a")
    assert broker.targets.values("audit") == ["a"]


async def test_a_record_that_was_stored_under_a_binding_is_copied_by_the_next_leader_though_its_leader_died_at_once(
    broker: Any,
) -> None:
    broker.define("one", "audit")
    log = broker.coordinators.logs[broker.coordinators.partition_of("one")]
    log.hold()
    stored: list[str] = []
    for value in ("a", "b"):
        try:
            broker.publish(value)
            stored.append(value)
        except Unavailable:
            await broker.settle()
    log.depose()
    log._held = False
    log.elect()
    await broker.replace_leader()
    answer = broker.publish("c")
    await until(answer.done, broker.routing)
    assert broker.targets.values("audit") == [*stored, "c"]


async def test_a_new_leader_takes_publishes_once_it_knows_where_the_copies_are(broker: Any) -> None:
    await broker.bind("one", "audit")
    await broker.publish("a")
    await broker.replace_leader()
    await broker.publish("b")
    assert broker.targets.values("audit") == ["a", "b"]


async def test_who_waits_at_the_old_home_for_what_is_not_in_the_mesh_is_not_told_that_it_is_copied(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "DRAIN_S", 0.1)
    await broker.bind("one", "audit")
    broker.targets.errors = [Unavailable("no leader")] * 3
    kept, lost = broker.publish("kept"), broker.publish("lost")
    await broker.settle()
    _, routing = await moved(broker, 1)
    await broker.look()
    for value in ("new 1", "new 2", "new 3"):
        broker.publish(value)
    await until(lambda: kept.done() and lost.done(), routing, broker.routing)
    assert kept.result().base_offset == 0
    assert isinstance(lost.exception(), OutcomeUnknown)


# --- whatever happens -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
async def test_planned_moves_whatever_fails_meanwhile_leave_each_copy_once_and_in_order(
    broker: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(copier, "DRAIN_S", 0.1)
    monkeypatch.setattr(copier, "DRAIN_LOOK_S", 0.005)
    monkeypatch.setattr(copier, "RETRY_S_MAX", 0.05)
    await broker.bind("one", "audit")
    slow_down(broker, monkeypatch, 0.03)
    routings = [broker.routing]
    published: list[str] = []
    epochs = [(Epoch(1), Offset(0))]
    for _ in range(60):
        what = rng.random()
        if what < 0.75:
            try:
                broker.publish(f"r{len(published)}")
                published.append(f"r{len(published)}")
            except Unavailable:
                await asyncio.sleep(0.01)
        elif what < 0.82:
            broker.targets.errors.append(Unavailable("no leader"))
        elif what < 0.89:
            broker.targets.lost_answers.append(OutcomeUnknown("lost"))
        elif what < 0.94 and len(epochs) < 5:
            old, epoch = broker.source, len(epochs) + 1
            epochs.append((Epoch(epoch), old.next_offset))
            await moved(broker, int(old.next_offset))
            broker.source.epoch = Epoch(epoch)
            broker.source.decided_table = old.decided_table = tuple(epochs)
            routings.append(broker.routing)
        for routing in routings:
            routing.sweep()
        await asyncio.sleep(rng.choice((0, 0, 0.002, 0.02)))
    await until(lambda: len(broker.targets.values("audit")) >= len(published), *routings)
    await asyncio.sleep(0.05)
    assert broker.targets.values("audit") == published
    for routing in routings[:-1]:
        await routing.close()


async def test_who_begins_copies_that_an_older_home_began_meanwhile_takes_a_producer_of_its_own(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, routing = broker.source, broker.routing
    new = type(old)()
    new.epoch = Epoch(2)
    new.decided_table = ((Epoch(1), Offset(0)), (Epoch(2), Offset(0)))  # the old home has not heard of it
    broker.define("one", "audit")
    gate, call = asyncio.Event(), broker.coordinators.call

    async def late(part: Any, key: Any, operation: str, body: Any, *rest: Any, **named: Any) -> Any:
        if operation == "copy_begin" and body.get("epoch", 1) == 2:
            await gate.wait()
        return await call(part, key, operation, body, *rest, **named)

    monkeypatch.setattr(broker.coordinators, "call", late)
    second = broker.new_routing(new)
    second.sweep()
    await broker.settle()
    routing.sweep()
    await broker.settle()
    gate.set()
    await broker.settle()
    broker.publish("lost")
    await broker.settle()
    broker.source, broker.routing = new, second
    second.sweep()
    await broker.settle()
    kept = broker.publish("kept")
    for _ in range(5):
        await broker.settle()
    assert kept.done() and "kept" in broker.targets.values("audit")
    await routing.close()
    await second.close()
