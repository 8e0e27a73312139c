"""A queue whose home moves, and a queue over a topic whose home moves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from georelay.ids import RegionNumber
from georelay.wire.batch import build_batch
from region.api.queue_metrics import QueueMetrics
from region.coordination.in_memory import InMemoryCoordinatorLog
from region.queues.commands_core import Drop
from region.queues.counters import QueueCounters
from region.queues.part import QueuesPart
from region.queues.queue_core import Claim, RecordState

REASON = "before the queue's home moved"


# --- the queue's own home ---------------------------------------------------------------------------


async def test_after_a_move_nothing_acknowledged_is_delivered_and_everything_else_is(scene: Any, texts: Any) -> None:
    await scene.make()
    await scene.publish("done", "leased", "waiting", "untouched")
    done, *_ = await scene.receive(count=1)
    assert await scene.codes("acknowledge", [done]) == ["OK"]
    _, waiting = await scene.receive(count=2)
    assert await scene.codes("reject", [waiting]) == ["OK"]
    await scene.move(2)
    rows = await scene.receive()
    assert texts(rows) == ["leased", "waiting", "untouched"]
    assert [row["deliveries"] for row in rows] == [2, 2, 1]


async def test_a_lease_of_before_the_move_is_refused_with_its_reason(scene: Any) -> None:
    await scene.make()
    await scene.publish("a")
    (old,) = await scene.receive("one")
    await scene.move(2)
    for operation in ("acknowledge", "extend", "reject", "release"):
        answer = await scene.call(operation, leases=[old["lease"]])
        (result,) = answer["results"]
        assert result["code"] == "LEASE_EXPIRED" and REASON in result["reason"]
    (new,) = await scene.receive("two")
    assert await scene.codes("acknowledge", [old, new]) == ["LEASE_EXPIRED", "OK"]


async def test_a_lease_that_the_new_home_never_heard_of_is_not_taken_for_one_of_its_own(scene: Any) -> None:
    await scene.make()
    await scene.publish("a")
    mirror = scene.new_part()
    scene.log.replay(mirror)
    (old,) = await scene.receive("one")  # this delivery is lost with the old home
    await scene.move(2, mirror)
    (new,) = await scene.receive("two")
    assert new["deliveries"] == old["deliveries"] == 1
    assert await scene.codes("acknowledge", [old]) == ["LEASE_EXPIRED"]
    assert await scene.receive("three") == []
    assert await scene.codes("acknowledge", [new]) == ["OK"]


async def test_an_acknowledge_that_did_not_reach_the_new_home_is_delivered_again(scene: Any, texts: Any) -> None:
    await scene.make()
    await scene.publish("known", "unheard")
    first, second = await scene.receive()
    assert await scene.codes("acknowledge", [first]) == ["OK"]
    mirror = scene.new_part()
    scene.log.replay(mirror)
    assert await scene.codes("acknowledge", [second]) == ["OK"]
    await scene.move(2, mirror)
    assert texts(await scene.receive()) == ["unheard"]


async def test_a_record_that_had_its_last_delivery_goes_to_the_dead_letters_when_the_home_moves(scene: Any) -> None:
    await scene.make(max_deliveries=1)
    await scene.publish("a")
    await scene.receive()
    await scene.move(2)
    await scene.pass_s(1)
    assert await scene.receive() == []
    assert len(scene.cluster.records("q-dead-letters")) == 1


async def test_dead_letters_of_the_new_home_are_not_taken_for_those_that_the_old_one_published(
    scene: Any, texts: Any
) -> None:
    await scene.make(max_deliveries=1)
    await scene.publish("a", "b")
    mirror = scene.new_part()
    scene.log.replay(mirror)
    a, b = await scene.receive()
    assert await scene.codes("reject", [a]) == ["OK"]  # letter 0 of the old home, which the new one never heard of
    await scene.pass_s(1)
    producer = scene.part._state.find("q").producer_id
    mirror._state.find("q").producer_id = producer  # it heard that much
    await scene.move(2, mirror)
    rows = await scene.receive()
    await scene.codes("reject", [row for row in rows if row["offset"] == b["offset"]])
    await scene.pass_s(1)
    stored = [record.value for record in scene.cluster.records("q-dead-letters")]
    assert stored == [b"a", b"b"]


async def test_delays_and_what_is_left_of_a_time_to_live_go_on_at_the_new_home(scene: Any, texts: Any) -> None:
    await scene.make(delay_ms=10_000, ttl_ms=20_000, max_deliveries=0)
    await scene.publish("a")
    await scene.pass_s(4)
    await scene.move(2)
    assert await scene.receive() == []
    await scene.pass_s(6)
    assert texts(await scene.receive()) == ["a"]


async def test_replicas_of_all_regions_have_the_same_state_after_the_fence(scene: Any) -> None:
    await scene.make(max_deliveries=1)
    await scene.publish("a", "b", "c")
    await scene.receive()
    other = scene.new_part()
    scene.log.replay(other)
    restored = scene.new_part()
    restored.restore(scene.part.snapshot())
    for part, append_us in ((scene.part, 1), (other, 2), (restored, 3)):
        part.fence(append_us=append_us, epoch=7)
    assert scene.part.snapshot() == other.snapshot() == restored.snapshot()
    again = scene.new_part()
    again.restore(scene.part.snapshot())
    assert again.snapshot() == scene.part.snapshot()


async def test_a_queue_of_a_topic_that_every_region_is_home_of_goes_on_with_its_own_stream(
    scene: Any, texts: Any
) -> None:
    scene.cluster.make_everywhere("clicks", "us", "eu")
    await scene.call("create", topic="clicks", max_deliveries=0)
    scene.cluster.append("us.clicks", 0, build_batch([(b"of us", None, ())], timestamps_ms=1), 1)
    scene.cluster.logs["clicks", 0] = scene.cluster.logs["eu.clicks", 0]  # the plain name, as eu understands it
    scene.cluster.append("eu.clicks", 0, build_batch([(b"of eu", None, ())], timestamps_ms=1), 1)
    await scene.move(2, region=2)
    assert texts(await scene.receive()) == ["of us"]


async def test_a_dead_letter_whose_record_has_not_come_to_the_new_home_waits_for_it(scene: Any, texts: Any) -> None:
    await scene.make(max_deliveries=1)
    await scene.publish("a", "b")
    await scene.receive()
    log = scene.cluster.logs["orders", 0]
    entries, end, log.entries, log.end = (
        log.entries,
        log.end,
        [],
        0,
    )  # the mirror of the topic is behind that of the queue
    await scene.move(2)
    await scene.pass_s(5)
    assert scene.cluster.records("q-dead-letters") == []
    log.entries, log.end = entries, end
    await scene.pass_s(10)
    assert [record.value for record in scene.cluster.records("q-dead-letters")] == [b"a", b"b"]


# --- the topic's home -------------------------------------------------------------------------------


async def test_records_that_take_the_offsets_of_lost_ones_are_delivered(scene: Any, texts: Any) -> None:
    await scene.make()
    await scene.publish("kept")
    await scene.publish("lost and done", "lost and leased")
    kept, done, leased = await scene.receive()
    assert await scene.codes("acknowledge", [kept, done]) == ["OK", "OK"]
    scene.cluster.decide("orders", 2, 1)
    scene.cluster.begin("orders")
    await scene.publish("new 1", "new 2")
    await scene.pass_s(1)
    rows = await scene.receive("other")
    assert texts(rows) == ["new 1", "new 2"]
    answer = await scene.call("acknowledge", leases=[leased["lease"]])
    assert "lost with the home of the topic" in answer["results"][0]["reason"]
    assert await scene.codes("acknowledge", rows) == ["OK", "OK"]
    await scene.fail_over()
    assert await scene.receive() == []


async def test_an_epoch_is_followed_while_nothing_comes_to_be_read(scene: Any) -> None:
    await scene.make()
    await scene.publish("kept")
    await scene.publish("lost")
    assert await scene.codes("acknowledge", await scene.receive()) == ["OK", "OK"]
    scene.cluster.decide("orders", 2, 1)
    await scene.pass_s(2.5)
    assert (await scene.call("describe"))["partitions"][0]["cursor"] == 1


async def test_leases_outlive_a_move_of_the_topic_that_lost_nothing(scene: Any, texts: Any) -> None:
    await scene.make()
    await scene.publish("a", "b")
    a, b = await scene.receive()
    scene.cluster.decide("orders", 2, 2)
    scene.cluster.begin("orders")
    await scene.publish("c")
    await scene.pass_s(1)
    assert texts(await scene.receive("other")) == ["c"]
    assert await scene.codes("acknowledge", [a, b]) == ["OK", "OK"]


async def test_a_branch_that_will_be_cut_off_is_not_handed_out_once_control_has_decided(scene: Any, texts: Any) -> None:
    await scene.make()
    await scene.publish("kept")
    assert len(await scene.receive()) == 1
    scene.cluster.decide("orders", 2, 1)
    await scene.publish("of a branch")  # the log here has not heard that its home is elsewhere
    await scene.pass_s(2)
    assert await scene.receive() == []
    scene.cluster.begin("orders")
    await scene.publish("new")
    await scene.pass_s(2)
    assert texts(await scene.receive()) == ["new"]


async def test_records_of_an_epoch_that_this_broker_has_not_heard_of_wait_for_it(scene: Any, texts: Any) -> None:
    await scene.make()
    scene.cluster.logs["orders", 0].epoch = 2  # the log is ahead of control's word
    await scene.publish("a")
    await scene.pass_s(2)
    assert await scene.receive() == []
    scene.cluster.decide("orders", 2, 0)
    await scene.pass_s(2)
    assert texts(await scene.receive()) == ["a"]


async def test_a_queue_that_is_made_after_a_move_keeps_where_it_begins(scene: Any, texts: Any) -> None:
    scene.cluster.make("orders")
    scene.cluster.append("orders", 0, build_batch([(b"old", None, ())] * 3, timestamps_ms=1), 3)
    scene.cluster.decide("orders", 2, 1)
    scene.cluster.begin("orders")
    scene.cluster.logs["orders", 0].end = 3
    await scene.call("create", topic="orders", start="latest")
    await scene.publish("new")
    await scene.pass_s(1)
    assert texts(await scene.receive()) == ["new"]
    described = await scene.call("describe")
    assert described["partitions"][0]["cursor"] == 3


async def test_a_purge_takes_nothing_of_the_epoch_that_comes(scene: Any, texts: Any) -> None:
    await scene.make()
    await scene.publish("kept")
    await scene.publish("lost 1", "lost 2")
    scene.cluster.decide("orders", 2, 1)
    assert (await scene.call("purge"))["purged"] == 1
    scene.cluster.begin("orders")
    await scene.publish("new")
    await scene.pass_s(1)
    assert texts(await scene.receive()) == ["new"]


async def test_a_leader_that_has_not_heard_of_an_epoch_which_was_followed_reads_nothing(scene: Any, texts: Any) -> None:
    await scene.make()
    await scene.publish("a")
    await scene.publish("b")
    scene.cluster.decide("orders", 2, 1)
    scene.cluster.begin("orders")
    await scene.pass_s(20)
    table = scene.cluster.tables.pop(("orders", 0))
    await scene.fail_over()
    await scene.publish("of nobody knows which epoch")
    await scene.pass_s(2)
    assert await scene.receive() == []
    scene.cluster.tables["orders", 0] = table
    await scene.pass_s(10)
    assert texts(await scene.receive()) == ["a", "of nobody knows which epoch"]


async def test_order_by_key_goes_on_behind_a_cut(scene: Any, texts: Any) -> None:
    await scene.make(order="key")
    await scene.publish("1", keys=["k"])
    await scene.publish("2", "3", keys=["k", "k"])
    (first,) = await scene.receive()
    scene.cluster.decide("orders", 2, 1)
    scene.cluster.begin("orders")
    await scene.publish("4", "other", "5", keys=["k", "o", "k"])
    await scene.pass_s(1)
    assert texts(await scene.receive()) == ["other"]
    assert await scene.codes("acknowledge", [first]) == ["OK"]
    (second,) = await scene.receive()
    assert texts([second]) == ["4"]
    assert await scene.codes("acknowledge", [second]) == ["OK"]
    assert texts(await scene.receive()) == ["5"], "it does not wait for the record that has the offset of a lost one"


async def test_a_record_that_is_lost_while_it_is_read_again_is_not_leased_under_the_offset_of_another(
    scene: Any, texts: Any, settled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.make()
    await scene.publish("kept")
    await scene.publish("lost")
    assert await scene.codes("acknowledge", (await scene.receive())[:1]) == ["OK"]
    plain, read, go_on = scene.cluster.read_records, asyncio.Event(), asyncio.Event()

    async def slow(name: str, partition: int, offset: int, max_bytes: int, wait_ms: int, **more: Any) -> Any:
        answer = await plain(name, partition, offset, max_bytes, wait_ms, **more)
        if max_bytes == 1:
            read.set()
            await go_on.wait()
        return answer

    monkeypatch.setattr(scene.cluster, "read_records", slow)
    await scene.call("release", consumer="c")
    receiving = scene.receiving("late")
    await read.wait()
    scene.cluster.decide("orders", 2, 1)
    scene.cluster.begin("orders")
    await scene.publish("new")
    await scene.pass_s(1)
    go_on.set()
    await settled()
    rows = [*(await receiving), *(await scene.receive("other"))]
    assert texts(rows) == ["new"]
    assert await scene.codes("acknowledge", rows) == ["OK"]


async def test_what_was_decided_about_a_record_that_is_gone_is_not_done_to_the_one_that_has_its_offset(
    scene: Any,
) -> None:
    await scene.make(max_deliveries=0)
    await scene.publish("a")
    live = scene.part.live("q")
    gone = Claim(0, 7, 0)  # expired before it was delivered, and cut off before that was written
    await live.end([gone], lambda claims: Drop(queue="q", claims=claims))
    assert live.state.state_of(gone.place) is RecordState.UNTOUCHED


async def test_a_dead_letter_that_is_cut_off_while_it_is_published_is_not_taken_for_the_next_one(
    scene: Any, texts: Any, settled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.make(max_deliveries=1)
    await scene.publish("kept")
    await scene.publish("lost")
    plain = scene.cluster.publish
    held: list[tuple[asyncio.Future[Any], asyncio.Future[Any]]] = []

    def publish(*arguments: Any, **more: Any) -> Any:
        done = plain(*arguments, **more)
        if held:
            return done
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        held.append((answer, done))
        return answer

    monkeypatch.setattr(scene.cluster, "publish", publish)
    _, lost = await scene.receive()
    await scene.codes("reject", [lost])
    await settled()
    scene.cluster.decide("orders", 2, 1)
    scene.cluster.begin("orders")
    await scene.publish("new")
    await scene.pass_s(1)
    (new,) = await scene.receive()
    assert texts([new]) == ["new"]
    await scene.codes("reject", [new])
    answer, done = held[0]
    answer.set_result(done.result())
    await scene.pass_s(1)
    await scene.pass_s(10)
    assert [record.value for record in scene.cluster.records("q-dead-letters")] == [b"lost", b"new"]


async def test_offsets_without_a_record_in_a_branch_are_not_passed_over(scene: Any, texts: Any) -> None:
    await scene.make()
    await scene.publish("kept")
    scene.cluster.decide("orders", 2, 1)
    log = scene.cluster.logs["orders", 0]
    log.end = 3  # an aborted transaction that the mesh has not kept
    log.moved.set()
    await scene.pass_s(2)
    scene.cluster.begin("orders")
    await scene.publish("new 1", "new 2")
    await scene.pass_s(2)
    assert texts(await scene.receive()) == ["kept", "new 1", "new 2"]


async def test_offsets_without_a_record_are_passed_over_in_the_newest_epoch(scene: Any, texts: Any) -> None:
    await scene.make()
    await scene.publish("kept")
    scene.cluster.decide("orders", 2, 1)
    scene.cluster.begin("orders")
    scene.cluster.logs["orders", 0].end = 3
    scene.cluster.logs["orders", 0].moved.set()
    await scene.pass_s(2)
    rows = await scene.receive()
    assert await scene.codes("acknowledge", rows) == ["OK"]
    assert (await scene.call("describe"))["partitions"][0]["cursor"] == 3


async def test_the_time_to_live_of_a_lost_record_does_not_end_the_one_that_has_its_offset(
    scene: Any, texts: Any
) -> None:
    await scene.make(max_deliveries=0)
    await scene.publish("lost", headers={"georelay-ttl-ms": "5000"})
    await scene.publish("late", headers={"georelay-delay-ms": "3000"})
    await scene.pass_s(1)
    scene.cluster.decide("orders", 2, 0)
    scene.cluster.begin("orders")
    await scene.publish("new")
    await scene.publish("newer")
    await scene.pass_s(10)
    assert texts(await scene.receive()) == ["new", "newer"]


async def test_a_record_is_not_held_back_because_the_clock_of_its_home_is_ahead(scene: Any, texts: Any) -> None:
    await scene.make()
    log = scene.cluster.logs["orders", 0]
    await scene.publish("a")
    assert texts(await scene.receive()) == ["a"]
    scene.clock._start_us += 60_000_000  # the topic's home is elsewhere, and a minute ahead
    scene.cluster.append("orders", 0, build_batch([(b"b", None, ())], timestamps_ms=1), 1)
    scene.clock._start_us -= 60_000_000
    await scene.pass_s(0.1)
    assert log.entries[-1].append_us > scene.log.now_us()
    assert texts(await scene.receive()) == ["b"]


# --- seen from outside ------------------------------------------------------------------------------


async def test_queues_of_one_name_that_two_regions_began_are_one_series_where_both_are_served(scene: Any) -> None:
    await scene.make()
    await scene.publish("a", "b")
    log = InMemoryCoordinatorLog(clock=scene.clock, origin=RegionNumber(2))
    other = QueuesPart(log, cluster=scene.cluster)
    log.add(other)
    log.elect()
    await other.call("create", {"queue": "q", "topic": "orders"}, principal="")
    await scene.pass_s(0.1)
    coordinators: Any = SimpleNamespace(parts_here=lambda part: [scene.part, other])
    families = {family.name: family for family in QueueMetrics(coordinators, QueueCounters()).collect()}
    assert families["georelay_queues"].samples[0].value == 2
    rows = [sample for sample in families["georelay_queue_records"].samples if sample.labels["state"] == "ready"]
    assert [(row.labels["queue"], row.value) for row in rows] == [("q", 4)]
    other.close()
