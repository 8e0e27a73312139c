"""A coordinator's stream on a log in memory: what the parts see, when, and what becomes of proposals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from georelay.errors import (
    Busy,
    DiskFull,
    NotLeader,
    OutcomeUnknown,
    PolicyViolation,
    TooLarge,
    Unavailable,
)
from georelay.ids import Offset, RaftIndex
from georelay.wire.batch import RecordDraft, build_batch, iterate_records
from mesh.replication.publish import Publish
from mesh.replication.stream_header import EntryType
from region.coordination import coordinator_stream, proposals
from region.coordination.limits import COMMAND_BYTES_MAX
from region.coordination.part import Part
from region.coordination.stream_container import StreamContainer
from region.multiraft.machine import InvariantBroken
from region.topics.stream_state import StreamState

Bench = Callable[..., Any]


async def turn() -> None:
    await asyncio.sleep(0)


async def leading(make_bench: Bench, **arguments: Any) -> Any:
    bench = make_bench(**arguments)
    bench.log.lead()
    return bench


async def test_commands_of_one_turn_travel_in_one_batch_and_are_answered_in_order(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    before = len(bench.log.entries)
    answered: list[str] = []
    futures = bench.propose("a", "b") + bench.propose("q", part=Part.QUEUES) + bench.propose("c")
    for name, future in zip("abqc", futures, strict=True):
        future.add_done_callback(lambda _, name=name: answered.append(name))
    await turn()
    entries = bench.log.entries[before:]
    assert [entry.type for entry in entries] == [EntryType.DATA]
    assert [(record.key, record.value) for record in iterate_records(entries[0].payload)] == [
        (b"\x01", b"a"),
        (b"\x01", b"b"),
        (b"\x03", b"q"),
        (b"\x01", b"c"),
    ]
    assert not bench.notes.commands and not any(future.done() for future in futures)
    bench.log.commit()
    assert (bench.notes.commands, bench.queues.commands) == (["a", "b", "c"], ["q"])
    assert [future.result() for future in futures] == [entries[0].index] * 4
    assert bench.notes.indexes == [entries[0].index] * 3
    await turn()
    assert answered == list("abqc")


async def test_commands_of_a_later_turn_travel_in_another_batch(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    first = bench.propose("a")
    await turn()
    second = bench.propose("b")
    await turn()
    bench.log.commit()
    assert second[0].result() == first[0].result() + 1


async def test_large_turns_are_cut_into_batches_that_fit(make_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "BATCH_BYTES_MAX", 10)
    bench = await leading(make_bench)
    before = len(bench.log.entries)
    futures = bench.propose("aaaa", "bbbb", "cccc", "d" * 30, "e")
    await turn()
    assert [entry.record_count for entry in bench.log.entries[before:]] == [2, 1, 1, 1]
    bench.log.commit()
    assert bench.notes.commands == ["aaaa", "bbbb", "cccc", "d" * 30, "e"]
    assert [future.result() - before for future in futures] == [1, 1, 2, 3, 4]


async def test_elected_comes_after_everything_that_was_committed_before(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    assert bench.notes.story == ["elected after 0"]
    bench.propose("a", "b")
    await turn()
    bench.log.step_down()
    bench.log.lead()
    assert bench.notes.story == ["elected after 0", "deposed", "elected after 2"]


async def test_a_deposed_leader_knows_nothing_of_what_it_had_appended(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    appended = bench.propose("a")
    await turn()
    waiting = bench.propose("b")
    bench.log.step_down(leader=1003)
    with pytest.raises(OutcomeUnknown):
        appended[0].result()
    with pytest.raises(NotLeader) as refused:
        waiting[0].result()
    assert refused.value.leader == 1003
    with pytest.raises(NotLeader):
        bench.propose("c")
    bench.log.commit()
    assert bench.notes.commands == ["a"]  # it was committed after all
    await turn()
    assert bench.stream._proposals.pending_bytes == 0


async def test_what_is_truncated_is_never_applied(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    future = bench.propose("lost")[0]
    await turn()
    bench.log.step_down()
    bench.log.truncate(len(bench.log.entries))
    with pytest.raises(OutcomeUnknown):
        future.result()
    bench.log.lead()
    again = bench.propose("kept")[0]
    await turn()
    bench.log.commit()
    assert again.result() == len(bench.log.entries)
    assert bench.notes.commands == ["kept"]


async def test_a_refused_append_is_told_to_everyone_of_its_batch(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    futures = bench.propose("a", "b")
    bench.log.refusal = Busy("full")
    await turn()
    for future in futures:
        with pytest.raises(Busy):
            future.result()
    assert bench.stream._proposals.pending_bytes == 0


async def test_proposals_are_refused_at_once_where_they_cannot_be_stored(
    make_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await leading(make_bench)
    with pytest.raises(TooLarge):
        bench.stream.propose(Part.GROUPS, bytes(COMMAND_BYTES_MAX + 1))
    bench.level = 2
    with pytest.raises(Unavailable):
        bench.propose("a")
    bench.level = 3
    bench.disk_writable = False
    with pytest.raises(DiskFull):
        bench.propose("a")
    bench.disk_writable = True
    monkeypatch.setattr(coordinator_stream, "PENDING_BYTES_MAX", 3)
    bench.propose("aaa")
    with pytest.raises(Busy):
        bench.propose("b")
    await turn()
    bench.log.commit()
    bench.propose("b")


async def test_the_largest_command_is_stored(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    future = bench.stream.propose(Part.GROUPS, b"x" * COMMAND_BYTES_MAX)
    await turn()
    bench.log.commit()
    assert future.done() and len(bench.notes.commands[0]) == COMMAND_BYTES_MAX


async def test_state_that_is_too_large_may_only_shrink(make_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_stream, "PART_SNAPSHOT_BYTES_MAX", 50)
    bench = await leading(make_bench)
    bench.propose("x" * 60)
    await turn()
    bench.log.commit()
    bench.stream.snapshot()
    with pytest.raises(Busy, match="groups"):
        bench.propose("more")
    bench.propose("other", part=Part.QUEUES)
    bench.stream.propose(Part.GROUPS, b"less", shrinks=True)
    bench.notes.commands = []
    bench.stream.snapshot()
    bench.propose("more")


async def test_state_that_has_shrunk_may_grow_again_without_waiting_for_the_next_manifest(
    make_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_stream, "PART_SNAPSHOT_BYTES_MAX", 50)
    bench = await leading(make_bench)
    bench.propose("x" * 60)
    await turn()
    bench.log.commit()
    bench.stream.snapshot()
    bench.notes.commands = []
    with pytest.raises(Busy, match="groups"):
        bench.propose("more")
    bench.clock.wall += coordinator_stream.MEASURE_AGAIN_NS
    bench.propose("more")


async def test_parts_that_are_too_large_together_may_only_shrink(
    make_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_stream, "SNAPSHOTS_BYTES_MAX", 50)
    bench = await leading(make_bench)
    bench.propose("x" * 30)
    bench.propose("x" * 30, part=Part.QUEUES)
    await turn()
    bench.log.commit()
    bench.stream.snapshot()
    for part in (Part.GROUPS, Part.QUEUES):
        with pytest.raises(Busy):
            bench.propose("more", part=part)


async def test_nobody_else_writes_here(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    raw = bytearray(build_batch([RecordDraft(b"v")], timestamps_ms=1))
    with pytest.raises(PolicyViolation):
        bench.stream.publish(Publish.built(raw, received_ns=1, entry_region=1))
    with pytest.raises(PolicyViolation):
        bench.stream.write_marker(producer_id=1, producer_epoch=0, is_commit=True, number=1)
    with pytest.raises(PolicyViolation):
        await bench.stream.delete_records(Offset(0))


async def test_time_never_goes_back_behind_the_log(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    bench.propose("a")
    await turn()
    bench.log.commit()
    at = bench.notes.times[0]
    assert at == bench.clock.wall // 1000
    bench.clock.wall -= 5_000_000
    assert bench.stream.now_us() == at
    bench.propose("b")
    await turn()
    bench.log.commit()
    assert bench.notes.times == [at, at]
    bench.clock.wall += 50_000_000
    assert bench.stream.now_us() == bench.clock.wall // 1000


# --- manifests ---------------------------------------------------------------------------------------


async def test_a_manifest_and_the_entries_above_it_give_the_same_as_all_entries(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    for command in ("a", "b", "c"):
        bench.propose(command)
        bench.propose(f"q{command}", part=Part.QUEUES)
        await turn()
        bench.log.commit()
        if command == "b":
            manifest = SimpleNamespace(index=RaftIndex(len(bench.log.entries)), state=bench.stream.snapshot())
    other = make_bench()
    other.stream.restore(manifest)
    assert other.notes.commands == ["a", "b"]
    above = bench.log.entries[manifest.index :]
    for entry in above:
        other.stream.recovered(entry)
    assert other.notes.commands == ["a", "b"]  # found on disk is not committed
    other.stream.applied(above)
    assert (other.notes.commands, other.queues.commands) == (bench.notes.commands, bench.queues.commands)
    assert other.stream.snapshot() == bench.stream.snapshot()
    assert other.stream.end == bench.stream.end


async def test_a_snapshot_is_of_what_is_applied_not_of_what_is_appended(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    before = bench.stream.snapshot()
    bench.propose("a")
    await turn()
    assert bench.stream.snapshot() == before


async def test_restore_takes_everything_away_that_is_not_in_the_manifest(make_bench: Bench) -> None:
    empty = make_bench().stream.snapshot()
    bench = await leading(make_bench)
    bench.propose("a")
    await turn()
    bench.log.commit()
    bench.stream.restore(SimpleNamespace(index=RaftIndex(1), state=empty))
    assert bench.notes.commands == []


@pytest.mark.parametrize("kind", ["part unknown here", "unreadable part", "future version", "not a state"])
async def test_a_state_that_this_version_does_not_know_stops_the_replica(make_bench: Bench, kind: str) -> None:
    bench = make_bench()
    plain = StreamContainer.decode(bench.stream.snapshot()).stream
    states = {
        "part unknown here": StreamContainer(stream=plain, parts={Part.TRANSACTIONS: b"x"}).encode(),
        "unreadable part": StreamContainer(stream=plain, parts={Part.GROUPS: b"nonsense"}).encode(),
        "future version": b"\x82" + bytes(20),
        "not a state": b"\x01",
    }
    with pytest.raises(InvariantBroken):
        bench.stream.restore(SimpleNamespace(index=RaftIndex(5), state=states[kind]))


async def test_plain_state_of_an_older_version_is_taken_while_there_were_no_records(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    plain = StreamContainer.decode(bench.stream.snapshot()).stream
    make_bench().stream.restore(SimpleNamespace(index=RaftIndex(2), state=plain))
    bench.propose("a")
    await turn()
    bench.log.commit()
    plain = StreamContainer.decode(bench.stream.snapshot()).stream
    with pytest.raises(InvariantBroken, match="not applied"):
        make_bench().stream.restore(SimpleNamespace(index=RaftIndex(3), state=plain))


async def test_the_whole_log_above_the_manifest_is_kept(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    assert bench.stream.keeps_whole_log
    with pytest.raises(InvariantBroken):
        bench.stream.applied_until(bench.log.entries[-1])


@pytest.mark.parametrize("record", [(b"impossible", b"\x01"), (b"v", b"\x02"), (b"v", b"\x09"), (b"v", None)])
async def test_a_command_that_cannot_be_stops_the_replica(make_bench: Bench, record: Any) -> None:
    bench = await leading(make_bench)
    raw = build_batch([RecordDraft(*record)], timestamps_ms=1)
    super(type(bench.stream), bench.stream).publish(Publish.built(raw, received_ns=1, entry_region=1))
    with pytest.raises(InvariantBroken):
        bench.log.commit()


# --- the end -----------------------------------------------------------------------------------------


async def test_closing_deposes_and_closes_the_parts_once(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    appended = bench.propose("a")
    await turn()
    waiting = bench.propose("b")
    bench.stream.close()
    bench.stream.close()
    bench.stream.led(leader=1001, is_leader=True)  # the group is still open for a moment
    bench.log.commit()
    assert bench.notes.story == ["elected after 0", "deposed", "closed"]
    assert bench.notes.commands == ["a"]  # a manifest that is made now holds all that is applied
    with pytest.raises(OutcomeUnknown):
        appended[0].result()
    with pytest.raises(NotLeader):
        waiting[0].result()


async def test_timers_are_the_event_loops(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    fired = asyncio.Event()
    bench.stream.call_later(60, fired.set).cancel()
    bench.stream.call_later(0, fired.set)
    async with asyncio.timeout(5):
        await fired.wait()


async def test_a_manifest_without_commands_can_be_read_by_what_does_not_know_parts(make_bench: Bench) -> None:
    bench = await leading(make_bench)
    raw = bench.stream.snapshot()
    assert StreamState.decode(raw).epochs
    other = make_bench()
    other.stream.restore(SimpleNamespace(index=RaftIndex(2), state=raw))
    assert other.stream.snapshot() == raw


async def test_a_level_is_understood_when_no_region_is_below_it(make_bench: Bench) -> None:
    bench = await leading(make_bench, level=7)
    older: list[str] = ["eu"]
    bench.stream.older_regions = lambda level: older if level > 6 else []
    assert [bench.stream.is_understood(level) for level in (6, 7, 8)] == [True, False, False]
    older.clear()
    assert [bench.stream.is_understood(level) for level in (6, 7, 8)] == [True, True, False]
