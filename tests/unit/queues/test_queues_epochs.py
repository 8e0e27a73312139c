"""What a queue does with records, leases and commands of one home epoch of its topic when another one has begun."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from georelay.errors import Unavailable
from georelay.wire.batch import build_batch
from region.queues import commands_core, index_core, partition_reader
from region.queues.commands_core import Drop, PassOver
from region.queues.index_core import Phase
from region.queues.queue_core import Claim, Passed, Place, RecordState

LOST = "lost with the home of the topic"


async def begin(scene: Any, epoch: int, start: int, *values: str) -> None:
    """Let an epoch begin in the mesh and in the log here, with some records."""
    scene.cluster.decide("orders", epoch, start)
    scene.cluster.begin("orders")
    if values:
        await scene.publish(*values)
    await scene.pass_s(2.5)


def branch(scene: Any, *values: str, end: int) -> tuple[list[Any], int, int]:
    """Let another replica answer, which has a branch of epoch 1 from offset 1 on; return what the first one had."""
    log = scene.cluster.logs["orders", 0]
    before = (log.entries, log.end, log.epoch)
    log.entries, log.end, log.epoch = [entry for entry in log.entries if entry.base_offset < 1], 1, 1
    for value in values:
        scene.cluster.append("orders", 0, build_batch([(value.encode(), None, ())], timestamps_ms=1), 1)
    log.end = end
    return before


def put_back(scene: Any, before: tuple[list[Any], int, int]) -> None:
    log = scene.cluster.logs["orders", 0]
    log.entries, log.end, log.epoch = before
    log.moved.set()


# --- records that are read again --------------------------------------------------------------------


async def test_a_record_of_a_branch_is_not_delivered_again_under_the_offset_of_another(scene: Any, texts: Any) -> None:
    await scene.make()
    await scene.publish("kept")
    await begin(scene, 2, 1, "agreed")
    assert texts(await scene.receive()) == ["kept", "agreed"]
    await scene.call("release", consumer="c")
    before = branch(scene, "of a branch", end=2)
    with pytest.raises(Unavailable, match="not in this region's log"):
        await scene.receive("other")
    put_back(scene, before)
    assert texts(await scene.receive("other")) == ["kept", "agreed"]


async def test_a_record_whose_offset_holds_none_in_a_branch_is_not_taken_for_deleted(scene: Any, texts: Any) -> None:
    await scene.make()
    await scene.publish("kept")
    await begin(scene, 2, 1, "agreed")
    kept, agreed = await scene.receive()
    await scene.codes("acknowledge", [kept])
    await scene.codes("release", [agreed])
    before = branch(scene, end=2)  # an aborted transaction that the mesh has not kept
    with pytest.raises(Unavailable):
        await scene.receive("other")
    put_back(scene, before)
    assert texts(await scene.receive("other")) == ["agreed"]
    assert (await scene.call("describe"))["skipped"] == 0


async def test_a_record_that_was_taken_in_another_epoch_is_not_delivered_in_its_place(
    scene: Any, texts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.make()
    await scene.publish("kept")
    await scene.publish("taken")
    await scene.receive()
    await scene.call("release", consumer="c")
    live = scene.part.live("q")
    with monkeypatch.context() as late:
        late.setattr(live, "begun", lambda partition: None)  # the queue has not looked yet
        scene.cluster.decide("orders", 2, 1)
        scene.cluster.begin("orders")
        scene.cluster.append("orders", 0, build_batch([(b"new", None, ())], timestamps_ms=1), 1)
        with pytest.raises(Unavailable, match="was of epoch 1, here it is of epoch 2"):
            await scene.receive("other")
    await scene.pass_s(3)
    assert texts(await scene.receive("other")) == ["kept", "new"]


async def test_a_dead_letter_is_the_record_of_the_agreed_history(scene: Any) -> None:
    await scene.make(max_deliveries=1)
    await scene.publish("kept")
    await begin(scene, 2, 1, "agreed")
    rows = await scene.receive()
    before = branch(scene, "of a branch", end=2)
    await scene.codes("reject", rows[1:])
    await scene.pass_s(1)
    assert scene.cluster.records("q-dead-letters") == []
    put_back(scene, before)
    await scene.pass_s(10)
    assert [record.value for record in scene.cluster.records("q-dead-letters")] == [b"agreed"]


async def test_a_dead_letter_that_is_about_to_be_cut_off_waits_for_that(scene: Any) -> None:
    await scene.make(max_deliveries=1)
    await scene.publish("kept")
    await scene.publish("lost")
    live = scene.part.live("q")
    assert [live.epoch_of(Place(0, offset)) for offset in (0, 1)] == [1, 1]
    scene.cluster.decide("orders", 2, 1)
    assert live.epoch_of(Place(0, 0)) == 1
    with pytest.raises(Unavailable, match="lost with the home"):
        live.epoch_of(Place(0, 1))


# --- ends of logs -----------------------------------------------------------------------------------


async def test_a_purge_believes_no_branch_of_a_log_that_is_elsewhere(
    scene: Any, texts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.make()
    await scene.publish("kept")
    await scene.publish("lost 1", "lost 2")
    monkeypatch.setattr(scene.cluster, "stream", lambda name, partition: None)
    scene.cluster.decide("orders", 2, 1)
    assert (await scene.call("purge"))["purged"] == 1
    await begin(scene, 3, 1, "new 1", "new 2", "new 3")
    assert texts(await scene.receive()) == ["new 1", "new 2", "new 3"]
    await scene.publish("more")
    assert (await scene.call("purge"))["purged"] == 4, "what is in the newest epoch is purged, wherever its log is"


async def test_a_queue_that_holds_the_latest_records_does_not_begin_in_a_branch_of_a_log_that_is_elsewhere(
    scene: Any, texts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.cluster.make("orders")
    await scene.publish("kept")
    await scene.publish("lost 1", "lost 2", "lost 3")
    monkeypatch.setattr(scene.cluster, "stream", lambda name, partition: None)
    scene.cluster.decide("orders", 2, 1)
    await scene.call("create", topic="orders", start="latest")
    scene.cluster.begin("orders")
    await scene.publish("new 1", "new 2")
    await scene.call("create", queue="later", topic="orders", start="latest")
    await scene.publish("newest")
    await scene.pass_s(3)
    assert texts(await scene.receive()) == ["new 1", "new 2", "newest"]
    assert texts(await scene.receive(queue="later")) == ["newest"]


async def test_a_purge_begins_again_when_an_epoch_has_begun_meanwhile(
    scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.make()
    await scene.publish("kept")
    await scene.publish("lost")
    operations, live = scene.part._operations, scene.part.live("q")
    plain = operations._end

    async def late(topic: str, partition: int) -> tuple[int, int]:
        answer: tuple[int, int] = await plain(topic, partition)
        if answer[1] == 1:
            scene.cluster.decide("orders", 2, 1)
            scene.cluster.begin("orders")
            scene.cluster.append("orders", 0, build_batch([(b"new", None, ())] * 3, timestamps_ms=1), 3)
            await live.begin_epoch(0, 2, 1)
        return answer

    monkeypatch.setattr(operations, "_end", late)
    assert (await scene.call("purge"))["purged"] == 4
    await scene.publish("after")
    await scene.pass_s(3)
    assert [row["offset"] for row in await scene.receive()] == [4]


# --- leases -----------------------------------------------------------------------------------------


async def test_leases_of_records_below_a_cut_are_as_good_as_before(scene: Any, texts: Any) -> None:
    await scene.make()
    await scene.publish("kept 1", "kept 2", "kept 3")
    await scene.publish("lost")
    first, second, third, lost = await scene.receive()
    await begin(scene, 2, 3, "new")
    answer = await scene.call("acknowledge", leases=[row["lease"] for row in (first, lost)])
    assert [row["code"] for row in answer["results"]] == ["OK", "LEASE_EXPIRED"]
    assert LOST in answer["results"][1]["reason"]
    assert await scene.codes("extend", [second]) == ["OK"]
    assert texts(await scene.receive("other")) == ["new"], "and their records are not delivered again"
    await scene.fail_over()
    assert await scene.codes("acknowledge", [second, third]) == ["OK", "OK"]


async def test_a_lease_of_a_later_epoch_outlives_a_cut_above_it_and_none_at_it(scene: Any) -> None:
    await scene.make()
    await scene.publish("a")
    await begin(scene, 2, 1, "b", "c")  # nothing is lost
    rows = await scene.receive()
    await begin(scene, 3, 2, "d")
    assert await scene.codes("acknowledge", rows) == ["OK", "OK", "LEASE_EXPIRED"]


async def test_leases_need_no_word_of_control_where_nothing_was_lost(scene: Any) -> None:
    await scene.make()
    await scene.publish("a")
    rows = await scene.receive()
    await begin(scene, 2, 1, "b")
    rows += await scene.receive()
    scene.cluster.tables.pop(("orders", 0))
    await scene.fail_over()
    assert await scene.codes("acknowledge", rows) == ["OK", "OK"]


async def test_leases_wait_for_a_leader_that_has_heard_of_the_epoch_which_was_followed(scene: Any) -> None:
    await scene.make()
    await scene.publish("kept")
    await scene.publish("lost")
    rows = await scene.receive()
    await begin(scene, 2, 1)
    table = scene.cluster.tables.pop(("orders", 0))
    await scene.fail_over()
    with pytest.raises(Unavailable, match="not known here yet"):
        await scene.codes("acknowledge", rows)
    scene.cluster.tables["orders", 0] = table
    assert await scene.codes("acknowledge", rows) == ["OK", "LEASE_EXPIRED"]


# --- commands that were on their way ----------------------------------------------------------------


async def test_the_rest_of_what_was_passed_over_in_one_epoch_says_nothing_about_the_next(
    scene: Any, texts: Any, settled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.make()
    await scene.publish("kept")
    monkeypatch.setattr(commands_core, "ROWS_PER_COMMAND_MAX", 1)
    live = scene.part.live("q")
    scene.log.hold()
    passing = asyncio.ensure_future(live.pass_over(0, [(1, 2), (3, 4)], Passed.NO_RECORD, epoch=1))
    await settled()
    beginning = asyncio.ensure_future(live.begin_epoch(0, 2, 1))
    await settled()
    scene.log.release()
    await passing
    await beginning
    await settled()
    assert [live.state.state_of(Place(0, offset)) for offset in (1, 3)] == [RecordState.UNTOUCHED] * 2


async def test_a_command_about_one_epoch_that_comes_behind_the_next_changes_nothing(scene: Any) -> None:
    await scene.make(max_deliveries=0)
    await scene.publish("kept")
    live = scene.part.live("q")
    await live.begin_epoch(0, 2, 1)
    late = [
        PassOver(queue="q", partition=0, ranges=((1, 2),), why=Passed.PURGE, epoch=1),
        Drop(queue="q", claims=(Claim(0, 2, 0),), epoch=1),
        commands_core.Condemn(queue="q", reason="expired", claims=(Claim(0, 3, 0),), epoch=1),
    ]
    assert [(await live.propose(command)).result for command in late] == [0, [False], [False]]
    assert {live.state.state_of(Place(0, offset)) for offset in (1, 2, 3)} == {RecordState.UNTOUCHED}
    now = Drop(queue="q", claims=(Claim(0, 2, 0), Claim(1, 0, 0)), epoch=2)
    assert (await live.propose(now)).result == [True, False], "each partition is asked for its own epoch"


async def test_what_expired_in_one_epoch_does_not_end_what_has_its_offset_in_the_next(
    scene: Any, settled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.make(max_deliveries=0)
    await scene.publish("kept")
    await scene.publish("lost", "lost")
    scene.cluster.tables["orders", 0] = [(1, 0)]  # control knows of a move: commands name epochs
    monkeypatch.setattr(commands_core, "ROWS_PER_COMMAND_MAX", 1)
    live = scene.part.live("q")
    claims = [Claim(0, offset, 0) for offset in range(3)]
    plain, first = live.propose, asyncio.Event()

    async def slow(command: Any, **more: Any) -> Any:
        if isinstance(command, Drop) and command.claims[0].offset == 0:
            await first.wait()
        return await plain(command, **more)

    monkeypatch.setattr(live, "propose", slow)
    ending = asyncio.ensure_future(live.end(claims, lambda chunk, epoch: Drop(queue="q", claims=chunk, epoch=epoch)))
    await settled()
    await begin(scene, 2, 1, "new", "new")
    first.set()
    await ending
    await settled()
    assert [live.state.state_of(claim.place) for claim in claims[1:]] == [RecordState.UNTOUCHED] * 2
    assert live.index.count(Phase.READY) == 3, "the kept one too: what was said of it is said again if it is so still"


async def test_the_leases_of_a_lost_consumer_are_not_taken_from_whoever_has_their_offsets_in_the_next_epoch(
    scene: Any, settled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.make()
    await scene.publish("kept")
    await scene.publish("lost")
    await scene.receive("gone")
    monkeypatch.setattr(commands_core, "ROWS_PER_COMMAND_MAX", 1)
    live = scene.part.live("q")
    plain, go_on = live.propose, asyncio.Event()

    async def slow(command: Any, **more: Any) -> Any:
        if isinstance(command, commands_core.GiveBack) and command.claims[0].offset == 0:
            await go_on.wait()
        return await plain(command, **more)

    monkeypatch.setattr(live, "propose", slow)
    giving = asyncio.ensure_future(live.give_back(live.claims_of("gone"), due_us=0))
    await settled()
    await begin(scene, 2, 1, "new")
    (new,) = await scene.receive("other")
    assert new["deliveries"] == 1
    go_on.set()
    await giving
    assert await scene.codes("acknowledge", [new]) == ["OK"]


async def test_a_cursor_passes_markers_though_another_epoch_is_decided_while_one_is_followed(
    scene: Any, texts: Any, settled: Any
) -> None:
    await scene.make()
    await scene.publish("a")
    assert await scene.codes("acknowledge", await scene.receive()) == ["OK"]
    scene.log.hold()
    await begin(scene, 2, 1)  # the reader follows it: its command is on its way
    log = scene.cluster.logs["orders", 0]
    log.end += 1  # a marker
    scene.cluster.append("orders", 0, build_batch([(b"b", None, ())], timestamps_ms=1), 1)
    scene.cluster.decide("orders", 3, 3)
    scene.cluster.begin("orders")
    scene.log.release()
    await settled()
    rows = await scene.receive()
    assert texts(rows) == ["b"]
    assert await scene.codes("acknowledge", rows) == ["OK"]
    assert (await scene.call("describe"))["partitions"][0]["cursor"] == 3


async def test_markers_that_were_passed_over_in_vain_are_passed_over_again(
    scene: Any, settled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.make()
    live, log = scene.part.live("q"), scene.cluster.logs["orders", 0]
    plain, may_pass = live.propose, asyncio.Event()

    async def slow(command: Any, **more: Any) -> Any:
        if isinstance(command, PassOver):
            await may_pass.wait()
        return await plain(command, **more)

    with monkeypatch.context() as late:
        late.setattr(live, "propose", slow)
        log.end = 2  # markers
        log.moved.set()
        await settled()
        scene.cluster.decide("orders", 2, 2)
        scene.cluster.begin("orders")
        await live.begin_epoch(0, 2, 2)  # a purge does, before the reader looks
        may_pass.set()
        await settled()
    assert live.state.cursor(0) == 2


async def test_what_retention_deleted_is_skipped_again_when_an_epoch_began_meanwhile(
    scene: Any, settled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.make()
    live, log = scene.part.live("q"), scene.cluster.logs["orders", 0]
    plain = live.propose
    scene.cluster.append("orders", 0, build_batch([(b"gone", None, ())] * 2, timestamps_ms=1), 2)
    log.start, log.entries = 2, []
    scene.cluster.decide("orders", 2, 2)
    scene.cluster.begin("orders")
    monkeypatch.setattr(live, "begun", lambda partition: None)  # the reader has not looked yet

    async def late(command: Any, **more: Any) -> Any:
        monkeypatch.undo()
        await live.begin_epoch(0, 2, 2)
        return await plain(command, **more)

    monkeypatch.setattr(live, "propose", late)
    await settled()
    assert live.state.cursor(0) == 2


async def test_a_queue_without_room_follows_epochs_and_the_dead_letters_behind_a_lost_one_are_published(
    scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_core, "OPEN_PER_QUEUE_MAX", 5)
    monkeypatch.setattr(partition_reader, "ROOM_S", 0)
    await scene.make(partitions=2, max_deliveries=1)
    await scene.publish("kept", "lost")
    await scene.publish("other", partition=1)
    rows = await scene.receive()
    scene.cluster.publish_errors = [Unavailable("no leader")] * 3
    await scene.codes("release", rows)
    await scene.publish("fill", "fill", "fill", partition=1)  # and nobody wants them
    scene.cluster.decide("orders", 2, 1)
    scene.cluster.begin("orders")
    for _ in range(5):
        await scene.pass_s(6)
    assert scene.part.live("q").state.epoch(0) == 2
    assert [record.value for record in scene.cluster.records("q-dead-letters")] == [b"kept", b"other"]


async def test_dead_letters_before_one_of_which_nothing_is_known_are_published(scene: Any) -> None:
    await scene.make(partitions=2)
    await scene.publish("unknown")
    await scene.publish("known", partition=1)
    await begin(scene, 2, 1)
    rows = sorted(await scene.receive(), key=lambda row: -row["partition"])
    table = scene.cluster.tables.pop(("orders", 0))  # another broker leads, which has not heard of that epoch
    assert await scene.codes("reject", rows, then="dead_letter") == ["OK", "OK"]
    assert [record.value for record in scene.cluster.records("q-dead-letters")] == [b"known"]
    scene.cluster.tables["orders", 0] = table
    await scene.pass_s(10)
    assert [record.value for record in scene.cluster.records("q-dead-letters")] == [b"known", b"unknown"]


# --- regions of older brokers -----------------------------------------------------------------------


async def test_no_command_names_the_epoch_of_a_partition_whose_home_never_moved(scene: Any) -> None:
    """Mirrors in regions of older brokers apply them too, and do not know the field."""
    await scene.make(partitions=2, max_deliveries=0, ttl_ms=1000)
    await scene.publish("expires")
    log = scene.cluster.logs["orders", 0]
    log.end += 2  # markers
    log.moved.set()
    await scene.pass_s(2)
    await scene.publish("purged", partition=1)
    await scene.call("purge")
    assert [row["cursor"] for row in (await scene.call("describe"))["partitions"]] == [3, 1]
    operations = b"".join(command for *_, command in scene.log.commands)
    assert b'"drop"' in operations and b'"pass_over"' in operations and b'"epoch' not in operations
    scene.cluster.decide("orders", 2, 3)  # it moves, also to where no broker is older
    await scene.part.live("q").pass_over(0, [(3, 4)], Passed.NO_RECORD, epoch=1)
    assert b'"epoch":1' in scene.log.commands[-1][-1]
    await scene.part.live("q").pass_over(1, [(1, 2)], Passed.NO_RECORD, epoch=1)
    assert b'"epoch"' not in scene.log.commands[-1][-1]
    del scene.cluster.views["orders"]
    await scene.part.live("q").pass_over(1, [(2, 3)], Passed.NO_RECORD, epoch=1)
    assert b'"epoch"' not in scene.log.commands[-1][-1]


async def test_no_command_names_an_epoch_before_every_broker_of_the_region_understands_it(
    scene: Any, texts: Any
) -> None:
    scene.log.feature_level = 3
    await scene.make()
    await scene.publish("kept")
    log = scene.cluster.logs["orders", 0]
    log.end += 1  # a marker
    log.moved.set()
    await scene.pass_s(0.1)
    assert await scene.codes("acknowledge", await scene.receive()) == ["OK"]
    assert (await scene.call("describe"))["partitions"][0]["cursor"] == 2, "markers are passed over as ever"
    await scene.publish("lost")
    scene.cluster.decide("orders", 2, 2)
    await scene.pass_s(3)
    assert all(b'"epoch' not in command for *_, command in scene.log.commands)
    scene.cluster.make("others")
    scene.cluster.decide("others", 2, 0)
    scene.cluster.begin("others")
    with pytest.raises(Unavailable, match="feature level 4, this region is at 3"):
        await scene.call("create", queue="of-a-moved-topic", topic="others")
    row = {"binding": "b", "index": 1, "stream": "s", "producer_id": 1, "cursor": 0, "sequence": 0, "partitions": 1}
    hand = {"binding": "b", "index": 1, "stream": "s", "producer_id": 1, "ended": 1, "epoch": 2}
    for operation, body in (("copy_take", row | {"epoch": 2}), ("copy_begin", row | {"epoch": 2}), ("copy_hand", hand)):
        with pytest.raises(Unavailable, match="upgrade all its brokers"):
            await scene.part.call(operation, body, principal="")
    scene.log.feature_level = 4
    scene.cluster.begin("orders")
    await scene.publish("new")
    await scene.pass_s(10)
    assert texts(await scene.receive()) == ["new"]
    assert any(b'"op":"begin_epoch"' in command for *_, command in scene.log.commands)
