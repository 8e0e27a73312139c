"""The coordinator of transactions: owners, decisions, who is told, and what a failover leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import (
    BadRequest,
    ConcurrentTransactions,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    NotLeader,
    OutcomeUnknown,
    ProducerFenced,
    TooLarge,
    Unavailable,
    UnknownTransactionalId,
)
from georelay.ids import brokers_own
from region.transactions.settings import TransactionSettings
from region.transactions.transaction_core import PARTITIONS_PER_TRANSACTION_MAX, State


async def test_a_new_id_gets_a_producer_id_and_each_owner_a_new_epoch(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    assert await coordinator.init() == (1000, 0)
    assert await coordinator.init() == (1000, 1)
    assert await coordinator.init("other") == (1001, 0)


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
async def test_a_timeout_that_is_not_allowed_is_refused(make_coordinator: Any, timeout_ms: int) -> None:
    with pytest.raises(InvalidTransactionTimeout):
        await make_coordinator().init(timeout_ms=timeout_ms)


async def test_a_commit_is_answered_when_it_is_decided_and_everybody_is_told_then(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init()
    assert await coordinator.add(producer, ("a", 0), ("b", 3)) == {}
    await coordinator.ask("add_offsets", producer_id=1000, producer_epoch=0, group_id="g")
    await coordinator.end(producer, is_commit=True)
    assert coordinator.row().state is State.PREPARE_COMMIT
    await coordinator.until(State.COMPLETE_COMMIT)
    assert sorted(who for who, _ in coordinator.participants.told) == ["a/0", "b/3", "g"]
    assert {(end.producer_epoch, end.is_commit, end.number) for _, end in coordinator.participants.told} == {
        (0, True, 1)
    }
    assert coordinator.row().partitions == coordinator.row().groups == frozenset()


async def test_nobody_is_told_before_the_decision_is_replicated(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init()
    await coordinator.add(producer, ("a", 0))
    coordinator.log.hold()
    ending = asyncio.ensure_future(coordinator.end(producer, is_commit=True))
    await coordinator.settled()
    assert (coordinator.participants.told, ending.done()) == ([], False)
    coordinator.log.release()
    await ending
    await coordinator.until(State.COMPLETE_COMMIT)


async def test_a_decision_that_was_never_replicated_is_none(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init()
    await coordinator.add(producer, ("a", 0))
    coordinator.log.hold()
    ending = asyncio.ensure_future(coordinator.end(producer, is_commit=True))
    await coordinator.settled()
    coordinator.log._held = False
    coordinator.restart()
    with pytest.raises(OutcomeUnknown):
        await ending
    assert coordinator.row().state is State.ONGOING
    await coordinator.end(producer, is_commit=False)
    await coordinator.until(State.COMPLETE_ABORT)


async def test_after_a_failover_everybody_is_told_again(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init()
    await coordinator.add(producer, ("a", 0), ("a", 1))
    coordinator.participants.errors["a/1"] = Unavailable("no leader")
    await coordinator.end(producer, is_commit=True)
    await coordinator.settled()
    assert [who for who, _ in coordinator.participants.told] == ["a/0"]
    coordinator.restart()
    coordinator.participants.errors.clear()
    await coordinator.until(State.COMPLETE_COMMIT)
    assert sorted(who for who, _ in coordinator.participants.told) == ["a/0", "a/0", "a/1"]


async def test_who_may_have_begun_what_a_lost_region_took_with_it_is_fenced_until_it_initializes(
    make_coordinator: Any,
) -> None:
    """Of its next transaction nothing came here: "committed" would be said of the one before."""
    coordinator = make_coordinator()
    producer = await coordinator.init()
    await coordinator.add(producer, ("a", 0))
    await coordinator.end(producer, is_commit=True)
    await coordinator.until(State.COMPLETE_COMMIT)
    coordinator.log.depose()
    coordinator.part.fence(append_us=1, epoch=2)
    coordinator.log.elect()
    for request in (
        coordinator.end(producer, is_commit=True),
        coordinator.add(producer, ("a", 0)),
        coordinator.verify(producer),
    ):
        with pytest.raises(ProducerFenced, match="start the producer again"):
            await request
    again = await coordinator.init()
    assert again == (producer[0], 1)
    await coordinator.add(again, ("a", 0))
    await coordinator.end(again, is_commit=True)


async def test_who_was_let_go_on_by_another_replica_is_not_fenced_when_that_is_read_again(
    make_coordinator: Any,
) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init()
    coordinator.log.depose()
    coordinator.part.fence(append_us=1, epoch=2)
    coordinator.log.elect()
    coordinator.part._unheard, unheard = {}, coordinator.part._unheard
    coordinator.log.hold()
    adding = asyncio.ensure_future(coordinator.add(producer, ("a", 0)))
    await coordinator.settled()
    coordinator.part._unheard = unheard
    coordinator.log.release()
    await adding
    await coordinator.end(producer, is_commit=True)


async def test_a_planned_move_of_the_coordinator_fences_no_producer(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init()
    await coordinator.add(producer, ("a", 0))
    coordinator.log.depose()
    coordinator.part.fence(append_us=1, epoch=2, is_whole=True)
    coordinator.log.elect()
    await coordinator.end(producer, is_commit=True)
    await coordinator.until(State.COMPLETE_COMMIT)


async def test_a_partition_that_cannot_be_reached_is_told_later(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init()
    await coordinator.add(producer, ("a", 0))
    coordinator.participants.errors["a/0"] = Unavailable("no leader")
    await coordinator.end(producer, is_commit=False)
    await coordinator.settled()
    with pytest.raises(ConcurrentTransactions):
        await coordinator.add(producer, ("a", 0))
    with pytest.raises(ConcurrentTransactions):
        await coordinator.init()
    coordinator.participants.errors.clear()
    await coordinator.until(State.COMPLETE_ABORT)
    assert await coordinator.add(producer, ("a", 0)) == {}
    assert coordinator.row().number == 2


async def test_a_deleted_topic_keeps_no_transaction_from_ending(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init()
    await coordinator.add(producer, ("a", 0), ("b", 0))
    coordinator.participants.errors["b/0"] = Unavailable("no leader")
    coordinator.participants.gone.add(coordinator.participants.resolve("b", 0))
    await coordinator.end(producer, is_commit=True)
    await coordinator.until(State.COMPLETE_COMMIT)


async def test_a_new_owner_aborts_what_the_one_before_left_open_and_fences_it(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    old = await coordinator.init()
    await coordinator.add(old, ("a", 0))
    with pytest.raises(ConcurrentTransactions):
        await coordinator.init()
    await coordinator.until(State.COMPLETE_ABORT)
    assert [(end.producer_epoch, end.is_commit) for _, end in coordinator.participants.told] == [(1, False)]
    assert await coordinator.init() == (1000, 2)
    for attempt in (coordinator.end(old, is_commit=True), coordinator.add(old, ("a", 0))):
        with pytest.raises(ProducerFenced):
            await attempt


async def test_an_owner_that_is_fenced_may_not_take_the_id_back(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    old = await coordinator.init()
    await coordinator.init()
    with pytest.raises(ProducerFenced):
        await coordinator.init(producer_id=old[0], producer_epoch=old[1])


async def test_an_owner_may_raise_its_own_epoch_and_ask_again_when_the_answer_was_lost(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer_id, _ = await coordinator.init()
    assert await coordinator.init(producer_id=producer_id, producer_epoch=0) == (producer_id, 1)
    assert await coordinator.init(producer_id=producer_id, producer_epoch=0) == (producer_id, 1)
    assert await coordinator.init(producer_id=producer_id, producer_epoch=1) == (producer_id, 2)


async def test_an_open_transaction_is_aborted_at_its_timeout_and_its_producer_fenced(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init(timeout_ms=5_000)
    await coordinator.add(producer, ("a", 0))
    coordinator.log.clock.advance(4)
    await coordinator.settled()
    assert coordinator.row().state is State.ONGOING
    coordinator.log.clock.advance(2)
    await coordinator.until(State.COMPLETE_ABORT)
    assert [end.producer_epoch for _, end in coordinator.participants.told] == [1]
    with pytest.raises(ProducerFenced):
        await coordinator.end(producer, is_commit=True)
    with pytest.raises(ProducerFenced):
        await coordinator.init(producer_id=producer[0], producer_epoch=producer[1])


async def test_the_timeout_counts_from_the_beginning_also_after_a_failover(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init(timeout_ms=5_000)
    await coordinator.add(producer, ("a", 0))
    coordinator.log.clock.advance(3)
    await coordinator.add(producer, ("a", 1))
    coordinator.restart()
    coordinator.log.clock.advance(3)
    await coordinator.until(State.COMPLETE_ABORT)


async def test_an_idle_id_is_forgotten_and_an_open_transaction_never(make_coordinator: Any) -> None:
    coordinator = make_coordinator(TransactionSettings(expiry_ms=10_000, timeout_ms_max=10**8))
    await coordinator.init("idle")
    producer = await coordinator.init("open", timeout_ms=10**8)
    await coordinator.add(producer, ("a", 0), name="open")
    coordinator.log.clock.advance(12)
    await coordinator.settled()
    assert coordinator.part.book.get("idle") is None
    assert coordinator.row("open").state is State.ONGOING


async def test_ending_twice_the_same_way_is_fine_and_the_other_way_is_refused(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init()
    with pytest.raises(InvalidTransactionState):
        await coordinator.end(producer, is_commit=True)  # nothing was begun
    await coordinator.add(producer, ("a", 0))
    await coordinator.end(producer, is_commit=True)
    with pytest.raises(ConcurrentTransactions):
        await coordinator.end(producer, is_commit=True)
    await coordinator.until(State.COMPLETE_COMMIT)
    await coordinator.end(producer, is_commit=True)
    with pytest.raises(InvalidTransactionState):
        await coordinator.end(producer, is_commit=False)


async def test_one_partition_that_is_refused_keeps_all_of_a_request_out(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init()
    errors = await coordinator.add(producer, ("a", 0), ("elsewhere", 0), ("none", 7))
    assert errors == {"elsewhere/0": "POLICY_VIOLATION", "none/7": "UNKNOWN_TOPIC"}
    assert coordinator.row().state is State.EMPTY


async def test_a_partition_is_confirmed_while_its_transaction_is_open_and_only_then(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    with pytest.raises(UnknownTransactionalId):
        await coordinator.verify((1000, 0))
    producer = await coordinator.init()
    with pytest.raises(InvalidTransactionState):
        await coordinator.verify(producer)
    await coordinator.add(producer, ("a", 0))
    assert await coordinator.verify(producer) == 1
    with pytest.raises(InvalidTransactionState):
        await coordinator.verify(producer, "a", 1)
    with pytest.raises(ProducerFenced):
        await coordinator.verify((1000, 7))
    with pytest.raises(UnknownTransactionalId):
        await coordinator.verify((999, 0))
    await coordinator.end(producer, is_commit=True)
    with pytest.raises(InvalidTransactionState):
        await coordinator.verify(producer)


async def test_a_producer_id_of_the_brokers_owns_no_transaction(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init()
    await coordinator.add(producer, ("a", 0))
    own = (brokers_own(producer[0]), producer[1])
    for refused in (
        coordinator.add(own, ("a", 1)),
        coordinator.end(own, is_commit=True),
        coordinator.verify(own),
        coordinator.init(producer_id=own[0], producer_epoch=own[1]),
    ):
        with pytest.raises((UnknownTransactionalId, ProducerFenced)):
            await refused
    assert coordinator.row().state is State.ONGOING
    assert (await coordinator.init("new", producer_id=own[0], producer_epoch=own[1]))[0] != own[0]


async def test_a_request_while_another_one_is_carried_out_is_told_to_come_again(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init()
    coordinator.log.hold()
    adding = asyncio.ensure_future(coordinator.add(producer, ("a", 0)))
    await coordinator.settled()
    with pytest.raises(ConcurrentTransactions):
        await coordinator.add(producer, ("a", 1))
    coordinator.log.release()
    await adding


async def test_too_many_partitions_in_one_transaction_are_refused(
    make_coordinator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init()
    monkeypatch.setattr("region.transactions.transaction_core.PARTITIONS_PER_TRANSACTION_MAX", 1)
    assert PARTITIONS_PER_TRANSACTION_MAX > 1
    with pytest.raises(TooLarge):
        await coordinator.add(producer, ("a", 0), ("a", 1))


async def test_descriptions_and_lists_say_what_is_open(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init()
    await coordinator.add(producer, ("a", 2), ("a", 1))
    found = await coordinator.ask("describe")
    assert (found["state"], found["partitions"], found["timeout_ms"]) == ("ongoing", [["a", [1, 2]]], 60_000)
    assert found["started_ms"] == coordinator.log.clock.wall_ns() // 1_000_000
    listed = await coordinator.part.call("list", {"states": ["ongoing"]}, principal="")
    assert listed == {"transactions": [["t", 1000, "ongoing"]]}
    assert await coordinator.part.call("list", {"producer_ids": [5]}, principal="") == {"transactions": []}


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("dance", {}),
        ("end", {"transactional_id": "t"}),
        ("end", {"transactional_id": "t", "producer_id": 1000, "producer_epoch": 0, "is_commit": 1}),
        ("init", {"transactional_id": "", "timeout_ms": 1}),
        ("init", {"transactional_id": "t", "timeout_ms": 1, "more": 1}),
        ("add_partitions", {"transactional_id": "t", "producer_id": 1000, "producer_epoch": 0, "partitions": [["a"]]}),
    ],
)
async def test_what_is_no_request_is_refused(make_coordinator: Any, operation: str, body: dict[str, Any]) -> None:
    coordinator = make_coordinator()
    await coordinator.init()
    with pytest.raises(BadRequest):
        await coordinator.part.call(operation, body, principal="")


async def test_a_coordinator_that_was_deposed_answers_nothing(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    await coordinator.init()
    coordinator.log.depose()
    with pytest.raises(NotLeader):
        await coordinator.init()


async def test_replicas_hold_equal_bytes_from_commands_and_from_snapshots(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    for name in ("t", "u", "v"):
        producer = await coordinator.init(name)
        await coordinator.add(producer, ("a", 0), ("b", 1), name=name)
        await coordinator.end(producer, is_commit=name != "u", name=name)
    await coordinator.until(State.COMPLETE_ABORT, "u")
    follower = coordinator.make(coordinator.log)
    coordinator.log.replay(follower)
    restored = coordinator.make(coordinator.log)
    restored.restore(coordinator.part.snapshot())
    assert follower.snapshot() == restored.snapshot() == coordinator.part.snapshot()


async def test_a_commit_that_lost_to_an_abort_whose_asker_went_away_is_not_acknowledged(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    old = await coordinator.init()
    await coordinator.add(old, ("a", 0))
    coordinator.log.hold()
    starting = asyncio.ensure_future(coordinator.init())  # the next owner aborts what is open
    await coordinator.settled()
    starting.cancel()  # and its connection ends before that is committed
    await coordinator.settled()
    ending = asyncio.ensure_future(coordinator.end(old, is_commit=True))
    await coordinator.settled()
    coordinator.log.release()
    with pytest.raises((ConcurrentTransactions, ProducerFenced)):
        await ending
    await coordinator.until(State.COMPLETE_ABORT)


async def test_an_id_is_free_again_after_a_request_whose_asker_went_away(make_coordinator: Any) -> None:
    coordinator = make_coordinator()
    producer = await coordinator.init()
    coordinator.log.hold()
    adding = asyncio.ensure_future(coordinator.add(producer, ("a", 0)))
    await coordinator.settled()
    adding.cancel()
    await coordinator.settled()
    coordinator.log.release()
    await coordinator.settled()
    await coordinator.end(producer, is_commit=True)
    await coordinator.until(State.COMPLETE_COMMIT)


async def test_a_group_that_no_coordinator_can_keep_is_refused_before_it_is_in_a_transaction(
    make_coordinator: Any,
) -> None:
    coordinator = make_coordinator()
    await coordinator.init()
    with pytest.raises(BadRequest):
        await coordinator.ask("add_offsets", producer_id=1000, producer_epoch=0, group_id="g" * 256)
    await coordinator.ask("add_offsets", producer_id=1000, producer_epoch=0, group_id="g" * 255)
