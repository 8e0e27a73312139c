"""What consumers of a queue see, over an in-memory coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.errors import (
    BadRequest,
    Busy,
    NotLeader,
    QueueExists,
    Unavailable,
    UnknownQueue,
    UnknownTopic,
)
from georelay.ids import is_brokers_own


async def test_records_are_leased_to_one_consumer_and_not_to_another(scene: Any, texts: Any) -> None:
    await scene.make()
    await scene.publish("a", "b")
    assert texts(await scene.receive("one")) == ["a", "b"]
    assert await scene.receive("two") == []


async def test_an_acknowledged_record_never_comes_back(scene: Any) -> None:
    await scene.make(visibility_timeout_ms=1000)
    await scene.publish("a")
    rows = await scene.receive()
    assert await scene.codes("acknowledge", rows) == ["OK"]
    await scene.pass_s(5)
    assert await scene.receive() == []
    await scene.fail_over()
    assert await scene.receive() == []


async def test_a_lease_that_runs_out_is_given_to_another_with_a_higher_count(scene: Any) -> None:
    await scene.make(visibility_timeout_ms=1000)
    await scene.publish("a")
    first = await scene.receive("one")
    await scene.pass_s(0.9)
    assert await scene.receive("two") == []
    await scene.pass_s(0.2)
    second = await scene.receive("two")
    assert [row["deliveries"] for row in first + second] == [1, 2]


async def test_an_acknowledge_of_a_lease_that_is_over_is_refused(scene: Any) -> None:
    await scene.make(visibility_timeout_ms=1000)
    await scene.publish("a")
    old = await scene.receive("one")
    await scene.pass_s(1.5)
    new = await scene.receive("two")
    assert await scene.codes("acknowledge", old) == ["LEASE_EXPIRED"]
    assert await scene.codes("acknowledge", new) == ["OK"]
    assert await scene.codes("acknowledge", new) == ["LEASE_EXPIRED"]


async def test_an_extended_lease_lasts_as_asked(scene: Any) -> None:
    await scene.make(visibility_timeout_ms=1000)
    await scene.publish("a")
    rows = await scene.receive("one")
    await scene.pass_s(0.9)
    assert await scene.codes("extend", rows, visibility_timeout_ms=3000) == ["OK"]
    await scene.pass_s(2.5)
    assert await scene.receive("two") == []
    assert await scene.codes("acknowledge", rows) == ["OK"]


async def test_a_rejected_record_comes_back_at_once_or_after_its_delay(scene: Any, texts: Any) -> None:
    await scene.make()
    await scene.publish("now", "later")
    now, later = await scene.receive()
    await scene.codes("reject", [now])
    await scene.codes("reject", [later], delay_ms=2000)
    assert texts(await scene.receive()) == ["now"]
    await scene.pass_s(1.9)
    assert await scene.receive() == []
    await scene.pass_s(0.2)
    assert texts(await scene.receive()) == ["later"]


async def test_poison_goes_to_the_dead_letter_topic_after_its_last_delivery(scene: Any) -> None:
    await scene.make(max_deliveries=2)
    await scene.publish("bad", keys=["k"])
    for _ in range(2):
        await scene.codes("reject", await scene.receive())
    assert await scene.receive() == []
    (letter,) = scene.cluster.records("q-dead-letters")
    assert (letter.key, letter.value) == (b"k", b"bad")
    assert dict(letter.headers) == {
        "georelay-queue": b"q",
        "georelay-topic": b"orders",
        "georelay-partition": b"0",
        "georelay-offset": b"0",
        "georelay-deliveries": b"2",
        "georelay-reason": b"max_deliveries",
    }
    assert (await scene.call("describe"))["dead_lettered"] == 1


async def test_a_record_can_be_rejected_for_good_with_a_reason(scene: Any) -> None:
    await scene.make()
    await scene.publish("bad")
    await scene.codes("reject", await scene.receive(), then="dead_letter", reason="no such customer")
    (letter,) = scene.cluster.records("q-dead-letters")
    assert dict(letter.headers)["georelay-reason"] == b"rejected: no such customer"


async def test_a_letter_that_was_stored_before_the_leader_changed_is_not_stored_twice(scene: Any, settled: Any) -> None:
    await scene.make(max_deliveries=1)
    await scene.publish("bad")
    rows = await scene.receive()
    await scene.codes("reject", rows)
    assert len(scene.cluster.records("q-dead-letters")) == 1
    del scene.log.commands[-1]  # the change of the leader came before the letter was noted as done
    await scene.fail_over()
    assert len(scene.cluster.records("q-dead-letters")) == 1
    assert (await scene.call("describe"))["dead_lettered"] == 1


async def test_letters_are_published_under_a_producer_id_that_clients_may_not_use(
    scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.make(max_deliveries=1)
    with monkeypatch.context() as before:
        before.setattr("region.queues.dead_letters.brokers_own", lambda producer_id: producer_id)
        await scene.publish("a")
        await scene.codes("reject", await scene.receive())
    await scene.fail_over()  # to a broker that keeps its ids to itself
    await scene.publish("b")
    await scene.codes("reject", await scene.receive())
    assert [row.value for row in scene.cluster.records("q-dead-letters")] == [b"a", b"b"]
    assert [is_brokers_own(producer) for producer in scene.cluster.logs["q-dead-letters", 0].sequences] == [False, True]


async def test_a_letter_that_is_published_again_later_is_the_same_batch(scene: Any) -> None:
    await scene.make(max_deliveries=1)
    await scene.publish("bad")
    await scene.codes("reject", await scene.receive())
    del scene.log.commands[-1]  # it was not noted as done
    await scene.pass_s(60)
    await scene.fail_over()
    assert len(scene.cluster.records("q-dead-letters")) == 1


async def test_letters_are_published_again_until_the_topic_takes_them(scene: Any, settled: Any) -> None:
    await scene.make(max_deliveries=1)
    scene.cluster.publish_errors = [Unavailable("no leader")] * 5
    await scene.publish("a", "b")
    await scene.codes("reject", await scene.receive())
    assert (await scene.call("describe"))["dead_lettering"] == 2
    for _ in range(6):
        await scene.pass_s(2)
    assert sorted(row.value for row in scene.cluster.records("q-dead-letters")) == [b"a", b"b"]


async def test_a_topic_that_forgot_the_producer_gets_letters_of_a_new_one(scene: Any) -> None:
    await scene.make(max_deliveries=1)
    await scene.publish("a")
    await scene.codes("reject", await scene.receive())
    scene.cluster.logs["q-dead-letters", 0].sequences.clear()
    await scene.publish("b")
    await scene.codes("reject", await scene.receive())
    assert [row.value for row in scene.cluster.records("q-dead-letters")] == [b"a", b"b"]


async def test_records_are_delayed_by_the_queue_or_by_their_header(scene: Any, texts: Any) -> None:
    await scene.make(delay_ms=1000)
    await scene.publish("usual")
    await scene.publish("longer", headers={"georelay-delay-ms": "3000"})
    await scene.publish("at once", headers={"georelay-delay-ms": "0"})
    assert texts(await scene.receive()) == ["at once"]
    await scene.pass_s(1.1)
    assert texts(await scene.receive()) == ["usual"]
    await scene.pass_s(2)
    assert texts(await scene.receive()) == ["longer"]


async def test_an_expired_record_is_a_dead_letter_or_gone(scene: Any) -> None:
    await scene.make(ttl_ms=1000)
    await scene.publish("late")
    await scene.pass_s(1.1)
    assert await scene.receive() == []
    (letter,) = scene.cluster.records("q-dead-letters")
    assert dict(letter.headers)["georelay-reason"] == b"expired"


async def test_without_a_dead_letter_topic_expired_records_are_dropped_and_counted(scene: Any) -> None:
    await scene.make(max_deliveries=0, dead_letter_topic="")
    await scene.publish("late", headers={"georelay-ttl-ms": "500"})
    await scene.pass_s(1)
    assert await scene.receive() == []
    described = await scene.call("describe")
    assert (described["expired"], described["partitions"][0]["cursor"]) == (1, 1)


async def test_a_leased_record_does_not_expire_but_is_not_delivered_again(scene: Any) -> None:
    await scene.make(ttl_ms=1000, visibility_timeout_ms=5000)
    await scene.publish("slow")
    rows = await scene.receive()
    await scene.pass_s(2)
    assert await scene.codes("reject", rows) == ["OK"]
    await scene.pass_s(0.1)
    assert await scene.receive() == []
    assert len(scene.cluster.records("q-dead-letters")) == 1


async def test_a_receive_waits_for_a_record(scene: Any, texts: Any, settled: Any) -> None:
    await scene.make()
    waiting = scene.receiving(wait_ms=20_000)
    await settled()
    await scene.pass_s(5)
    assert not waiting.done()
    await scene.publish("a")
    assert texts(await waiting) == ["a"]


async def test_a_receive_answers_nothing_when_its_time_is_over(scene: Any, settled: Any) -> None:
    await scene.make()
    waiting = scene.receiving(wait_ms=1000)
    await settled()
    await scene.pass_s(1.1)
    assert await waiting == []


async def test_round_robin_gives_waiting_consumers_records_in_turn(scene: Any, texts: Any, settled: Any) -> None:
    await scene.make()
    one, two = scene.receiving("one"), scene.receiving("two")
    await settled()
    await scene.publish("a", "b", "c", "d")
    assert texts(await one) == ["a", "c"]
    assert texts(await two) == ["b", "d"]


async def test_least_outstanding_serves_who_holds_fewest(scene: Any, texts: Any, settled: Any) -> None:
    await scene.make(dispatch="least_outstanding")
    await scene.publish("a", "b", "c")
    await scene.receive("busy")
    waiting = scene.receiving("busy"), scene.receiving("idle")
    await settled()
    await scene.publish("d", "e")
    assert texts(await waiting[1]) == ["d", "e"]
    assert not waiting[0].done()
    waiting[0].cancel()


async def test_with_order_key_the_next_record_of_a_key_waits_for_the_one_before(scene: Any, texts: Any) -> None:
    await scene.make(order="key")
    await scene.publish("a1", "b1", "a2", "b2", keys=["a", "b", "a", "b"])
    first = await scene.receive("one")
    assert texts(first) == ["a1", "b1"]
    assert await scene.receive("two") == []
    await scene.codes("acknowledge", first[:1])
    assert texts(await scene.receive("two")) == ["a2"]


async def test_with_order_key_a_rejected_record_comes_before_younger_ones_of_its_key(scene: Any, texts: Any) -> None:
    await scene.make(order="key")
    await scene.publish("a1", "a2", keys=["a", "a"])
    await scene.codes("reject", await scene.receive("one"), delay_ms=1000)
    assert await scene.receive("two") == []
    await scene.pass_s(1.1)
    assert texts(await scene.receive("two")) == ["a1"]


async def test_order_key_holds_across_a_change_of_the_leader(scene: Any, texts: Any) -> None:
    await scene.make(order="key")
    await scene.publish("a1", "a2", "b1", keys=["a", "a", "b"])
    held = await scene.receive("one", count=1)
    await scene.fail_over()
    assert texts(await scene.receive("two")) == ["b1"]
    assert await scene.codes("acknowledge", held) == ["OK"]
    assert texts(await scene.receive("two")) == ["a2"]


async def test_delivery_counts_and_leases_survive_a_change_of_the_leader(scene: Any) -> None:
    await scene.make(visibility_timeout_ms=1000)
    await scene.publish("a")
    rows = await scene.receive("one")
    await scene.fail_over()
    assert await scene.receive("two") == []
    await scene.pass_s(1.1)
    again = await scene.receive("two")
    assert again[0]["deliveries"] == 2
    assert await scene.codes("acknowledge", rows) == ["LEASE_EXPIRED"]


async def test_a_snapshot_has_everything_that_the_log_has(scene: Any) -> None:
    await scene.make(partitions=2, max_deliveries=3)
    await scene.publish("a", "b", "c")
    await scene.publish("d", partition=1)
    rows = await scene.receive()
    await scene.codes("acknowledge", rows[1:2])
    await scene.codes("reject", rows[2:3], delay_ms=5000)
    restored = scene.new_part()
    restored.restore(scene.part.snapshot())
    assert restored.snapshot() == scene.part.snapshot()
    await scene.fail_over(restored)


async def test_a_silent_consumer_loses_its_leases_before_they_run_out(scene: Any, texts: Any) -> None:
    await scene.make(visibility_timeout_ms=60_000)
    await scene.publish("a")
    await scene.receive("gone", session_timeout_ms=1000)
    await scene.pass_s(1.1)
    assert texts(await scene.receive("alive")) == ["a"]


async def test_a_consumer_that_extends_is_not_silent(scene: Any) -> None:
    await scene.make(visibility_timeout_ms=60_000)
    await scene.publish("a")
    rows = await scene.receive("slow", session_timeout_ms=1000)
    for _ in range(4):
        await scene.pass_s(0.5)
        assert await scene.codes("extend", rows, consumer="slow") == ["OK"]
    assert await scene.receive("other") == []


async def test_a_consumer_that_leaves_gives_everything_back(scene: Any, texts: Any) -> None:
    await scene.make()
    await scene.publish("a", "b")
    await scene.receive("one")
    assert await scene.call("release", consumer="one") == {"released": 2}
    assert texts(await scene.receive("two")) == ["a", "b"]


async def test_records_of_a_caller_that_went_away_are_given_to_the_next(scene: Any, texts: Any, settled: Any) -> None:
    await scene.make()
    await scene.publish("a")
    scene.log.hold()
    waiting = scene.receiving("one")
    await settled()
    waiting.cancel()
    await settled()
    scene.log.release()
    await settled()
    assert texts(await scene.receive("two")) == ["a"]


async def test_an_unknown_leader_change_does_not_lose_records(scene: Any, texts: Any, settled: Any) -> None:
    await scene.make()
    await scene.publish("a")
    scene.log.hold()
    waiting = scene.receiving("one")
    await settled()
    scene.log.depose()
    await settled()
    with pytest.raises(NotLeader):
        await waiting
    scene.log.release()
    await scene.fail_over()
    assert texts(await scene.receive("two")) == ["a"]


async def test_purging_ends_leases_too(scene: Any) -> None:
    await scene.make()
    await scene.publish("a", "b", "c")
    rows = await scene.receive(count=1)
    assert await scene.call("purge") == {"purged": 3}
    assert await scene.codes("acknowledge", rows) == ["LEASE_EXPIRED"]
    await scene.publish("d")
    assert [row["offset"] for row in await scene.receive()] == [3]


async def test_what_retention_deleted_is_skipped_and_counted(scene: Any, texts: Any) -> None:
    scene.cluster.make("orders")
    await scene.publish("a")
    await scene.publish("b")
    await scene.call("create", topic="orders")
    scene.cluster.logs["orders", 0].start = 1
    del scene.cluster.logs["orders", 0].entries[0]
    await scene.fail_over()
    await scene.pass_s(0.2)
    assert texts(await scene.receive()) == ["b"]
    described = await scene.call("describe")
    assert (described["skipped"], described["partitions"][0]["cursor"]) == (1, 1)


async def test_a_queue_that_starts_latest_has_no_older_records(scene: Any, texts: Any) -> None:
    scene.cluster.make("orders")
    await scene.publish("old")
    await scene.make(start="latest")
    await scene.publish("new")
    assert texts(await scene.receive()) == ["new"]


async def test_partitions_take_turns(scene: Any, texts: Any) -> None:
    await scene.make(partitions=2)
    await scene.publish("a", "b", "c")
    await scene.publish("x", "y", "z", partition=1)
    assert texts(await scene.receive(count=4)) in (["a", "x", "b", "y"], ["x", "a", "y", "b"])


async def test_partitions_that_are_added_are_consumed(scene: Any, texts: Any) -> None:
    await scene.make()
    scene.cluster.make("orders", 2)
    await scene.publish("a", partition=1)
    await scene.pass_s(2.1)
    assert texts(await scene.receive()) == ["a"]


async def test_creating_the_same_queue_twice_is_one_queue_and_another_one_is_refused(scene: Any) -> None:
    made = await scene.make()
    assert await scene.call("create", topic="orders") == made
    with pytest.raises(QueueExists):
        await scene.call("create", topic="orders", ttl_ms=5)


async def test_a_queue_made_again_does_not_take_leases_of_the_old_one(scene: Any) -> None:
    await scene.make()
    await scene.publish("a")
    old = await scene.receive()
    await scene.call("delete")
    await scene.pass_s(1)
    await scene.call("create", topic="orders")
    await scene.publish("b")
    await scene.receive()
    assert await scene.codes("acknowledge", old) == ["LEASE_EXPIRED"]


async def test_waiting_receives_of_a_deleted_queue_are_told_so(scene: Any, settled: Any) -> None:
    await scene.make()
    waiting = scene.receiving()
    await settled()
    await scene.call("delete")
    with pytest.raises(UnknownQueue):
        await waiting
    with pytest.raises(UnknownQueue):
        await scene.receive()


async def test_a_command_that_cannot_be_proposed_is_tried_again(scene: Any, texts: Any, monkeypatch: Any) -> None:
    await scene.make(visibility_timeout_ms=1000)
    await scene.publish("a")
    await scene.receive("one")
    propose = scene.log.propose
    monkeypatch.setattr(scene.log, "propose", _busy)
    await scene.pass_s(1.1)
    monkeypatch.setattr(scene.log, "propose", propose)
    await scene.pass_s(0.3)
    assert texts(await scene.receive("two")) == ["a"]


def _busy(*_: Any, **__: Any) -> Any:
    raise Busy("too much waits")


async def test_altered_settings_count_from_then_on(scene: Any) -> None:
    await scene.make(visibility_timeout_ms=60_000)
    changed = await scene.call("alter", settings={"visibility_timeout_ms": 500})
    assert changed["visibility_timeout_ms"] == 500
    await scene.publish("a")
    await scene.receive("one")
    await scene.pass_s(0.6)
    assert len(await scene.receive("two")) == 1


@pytest.mark.parametrize(
    "body",
    [
        {"topic": "orders", "visibility_timeout_ms": 1},
        {"topic": "orders", "unknown": 1},
        {"topic": "orders", "dead_letter_topic": "orders"},
        {"topic": "orders", "dead_letter_topic": ""},
        {"topic": "orders", "order": "sideways"},
        {},
    ],
)
async def test_wrong_definitions_are_refused(scene: Any, body: dict[str, Any]) -> None:
    scene.cluster.make("orders")
    with pytest.raises(BadRequest):
        await scene.call("create", **body)


async def test_a_queue_of_an_unknown_topic_is_refused(scene: Any) -> None:
    with pytest.raises(UnknownTopic):
        await scene.call("create", topic="nothing")


async def test_a_receive_from_a_queue_whose_topic_was_deleted_says_so(scene: Any) -> None:
    await scene.make()
    del scene.cluster.views["orders"]
    with pytest.raises(UnknownTopic, match="was deleted"):
        await scene.receive()


async def test_the_list_has_all_queues_and_their_counts(scene: Any) -> None:
    await scene.make()
    await scene.publish("a", "b", "c")
    await scene.receive(count=1)
    (row,) = (await scene.call("list"))["queues"]
    assert (row["name"], row["ready"], row["leased"]) == ("q", 2, 1)


async def test_offsets_without_a_record_do_not_hold_the_cursor(scene: Any) -> None:
    await scene.make()
    await scene.publish("a")
    scene.cluster.logs["orders", 0].end += 2  # a marker, and a batch of an aborted transaction
    await scene.publish("b")
    await scene.codes("acknowledge", await scene.receive())
    described = await scene.call("describe")
    assert (described["partitions"][0]["cursor"], described["skipped"]) == (4, 0)


async def test_a_batch_of_many_records_is_read_again_for_those_that_come_back(scene: Any, texts: Any) -> None:
    await scene.make(visibility_timeout_ms=1000)
    await scene.publish(*(f"r{number}" for number in range(30)))
    first = await scene.receive()
    await scene.codes("acknowledge", first[::2])
    await scene.pass_s(1.1)
    assert texts(await scene.receive()) == [f"r{number}" for number in range(1, 30, 2)]


async def test_what_cannot_be_read_again_is_an_error_and_stays(scene: Any, texts: Any) -> None:
    await scene.make(visibility_timeout_ms=1000)
    await scene.publish("a")
    await scene.receive("one")
    await scene.pass_s(1.1)
    scene.cluster.read_error = Unavailable("no replica can be reached")
    with pytest.raises(Unavailable):
        await scene.receive("two")
    scene.cluster.read_error = None
    assert texts(await scene.receive("two")) == ["a"]


@pytest.mark.parametrize("place", ["0.0.0", "0.8000000000000000.1", "ffffffff.0.1", "0.0.1.2", "0.0.1.1.1.1"])
async def test_leases_that_were_never_given_are_refused_and_change_nothing(scene: Any, texts: Any, place: str) -> None:
    await scene.make()
    await scene.publish("a")
    made = scene.part.live("q").state.made_us
    before = scene.part.snapshot()
    for operation, more in (("acknowledge", {}), ("reject", {"then": "dead_letter"}), ("extend", {})):
        with pytest.raises(BadRequest, match="lease"):
            await scene.call(operation, leases=[f"{made:x}.{place}"], **more)
    assert scene.part.snapshot() == before
    assert texts(await scene.receive()) == ["a"]
