"""A coordinator's home moves: the mirror knows what the home knew, members are fenced, and one region serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import Busy, Fenced, NotLeader, OutcomeUnknown
from georelay.ids import Epoch, Offset, RegionNumber
from mesh.home.home_row import HomeRow
from mesh.replication.ports import SkipPoint
from mesh.replication.stream_header import EntryType
from region.coordination.part import Part
from region.log.entry import EntryDraft
from region.topics.skip_core import encode_shipped_producers

US, EU = RegionNumber(1), RegionNumber(2)
MESH_LEVEL = 4

Make = Callable[..., Any]


def settled() -> Any:
    """Let everything that is due run."""
    return asyncio.sleep(0.02)


async def said(bench: Any, *commands: str) -> None:
    """Have a serving coordinator apply commands."""
    futures = bench.propose(*commands)
    await asyncio.sleep(0)
    bench.log.commit()
    await asyncio.gather(*futures)


def mirrored(home: Any, mirror: Any) -> None:
    """Bring a mirror what its home has committed: the same entries, in its own log."""
    for entry in home.log.entries[: home.log.applied]:
        header = entry.header()
        if header.type is EntryType.EPOCH and header.epoch > mirror.stream.epochs.newest():
            mirror.log.append(EntryDraft(header=header, payload=bytes(entry.payload)))
        elif entry.record_count and header.base_offset == mirror.stream.end.next_offset:
            mirror.stream.append_mirrored(header, bytes(entry.payload))
    mirror.log.commit()


def row_for(stream: Any, home: RegionNumber, *, epoch: int, start: int, index: int, digest: bytes) -> HomeRow:
    first = HomeRow.first(
        stream.key.topic_id,
        stream.key.partition,
        home=US,
        regions=(US, EU),
        digest=bytes(16),
        origin=stream.key.origin,
    )
    return replace(
        first,
        home=home,
        epoch=Epoch(epoch),
        start=Offset(start),
        digest=digest,
        table=(*first.table, (Epoch(epoch), Offset(start))),
        homes=(*first.homes, (Epoch(epoch), home)),
        last_epoch=Epoch(epoch),
        index=index,
    )


@pytest.fixture
async def pair(make_bench: Make) -> tuple[Any, Any]:
    """A coordinator at home in us that was told two commands nobody else has, and its mirror in eu."""
    home, mirror = make_bench(level=MESH_LEVEL), make_bench(level=MESH_LEVEL, region=EU)
    home.log.lead()
    mirror.log.lead()
    return home, mirror


async def test_a_mirror_applies_what_its_home_applied_and_serves_nobody(pair: tuple[Any, Any]) -> None:
    home, mirror = pair
    await said(home, "one", "two")
    mirrored(home, mirror)
    assert mirror.notes.commands == ["one", "two"]
    assert mirror.notes.story == [] and not mirror.stream.is_elected
    with pytest.raises(NotLeader):
        mirror.propose("three")


async def moved_to_eu(home: Any, mirror: Any) -> HomeRow:
    end = mirror.stream.end
    row = row_for(home.stream, EU, epoch=2, start=end.next_offset, index=7, digest=end.digest)
    mirror.stream.follow_home(row)
    await settled()
    mirror.log.commit()  # EPOCH
    mirror.log.commit()  # the checkpoint
    await settled()
    return row


async def test_the_new_home_serves_after_its_checkpoint_is_committed(pair: tuple[Any, Any]) -> None:
    home, mirror = pair
    await said(home, "one")
    mirrored(home, mirror)
    end = mirror.stream.end
    mirror.stream.follow_home(row_for(home.stream, EU, epoch=2, start=1, index=7, digest=end.digest))
    await settled()
    assert not mirror.stream.is_elected
    mirror.log.commit(len(mirror.log.entries))  # EPOCH begins, and the checkpoint is appended behind it
    assert mirror.stream.epoch == 2 and not mirror.stream.is_elected
    mirror.log.commit()
    assert mirror.stream.is_elected and mirror.stream.checkpoint_epoch == 2
    assert mirror.notes.was_whole is False  # nobody sealed the epoch before
    assert mirror.notes.commands == ["one", "fenced"] and mirror.notes.story == ["elected after 2"]
    await said(mirror, "two")
    assert mirror.notes.commands == ["one", "fenced", "two"]


async def test_all_parts_are_served_by_the_new_home(pair: tuple[Any, Any]) -> None:
    home, mirror = pair
    await said(home, "one")
    mirrored(home, mirror)
    await moved_to_eu(home, mirror)
    assert mirror.stream.serves(Part.GROUPS) and mirror.stream.serves(Part.QUEUES)
    assert mirror.queues.story == ["elected after 1"]
    assert mirror.stream.origin == US


async def test_the_old_home_is_deposed_and_takes_what_the_new_one_knows_in_place_of_its_orphans(
    pair: tuple[Any, Any],
) -> None:
    home, mirror = pair
    await said(home, "one")
    mirrored(home, mirror)
    await said(home, "alone")  # acknowledged by us alone
    waiting = home.propose("unheard")
    row = await moved_to_eu(home, mirror)
    await said(mirror, "two")

    home.stream.cut_at = nothing_else_is_known
    home.stream.follow_home(row)
    await settled()
    assert not home.stream.is_elected and home.notes.story[-1] == "deposed"
    with pytest.raises(OutcomeUnknown):
        await waiting[0]
    assert home.notes.commands == ["one", "alone"]

    home.log.commit()  # what was on its way, and EPOCH, which its leader appended
    assert home.notes.commands == ["one", "alone", "unheard", "fenced"] and not home.stream.is_exact
    mirrored(mirror, home)
    assert home.stream.is_exact
    assert home.notes.commands == mirror.notes.commands == ["one", "fenced", "two"]
    assert home.stream.snapshot()[0] == 130


async def nothing_else_is_known(_start: Offset) -> None:
    """Say nothing of producers: coordinators have none."""


async def sealed(home: Any) -> Any:
    task = asyncio.ensure_future(home.stream.seal(epoch=Epoch(1), new_epoch=Epoch(2), move_id="m1"))
    while not task.done():
        home.log.commit()
        await asyncio.sleep(0.001)
    return task.result()


async def test_a_region_that_never_knew_the_first_commands_learns_them_before_it_becomes_home(
    pair: tuple[Any, Any],
) -> None:
    """It joined when they were deleted already: it was told to skip them."""
    home, mirror = pair
    await said(home, "one", "two")
    digest = home.stream.end.digest
    point = SkipPoint(
        last=Offset(1), digest=digest, table=((Epoch(1), Offset(0)),), producers=encode_shipped_producers([])
    )
    skip = asyncio.ensure_future(mirror.stream.append_skip(point))
    while not skip.done():
        await asyncio.sleep(0)
        mirror.log.commit()
    await skip
    assert not mirror.stream.is_exact and mirror.notes.commands == []
    await said(home, "three")
    await sealed(home)
    mirrored(home, mirror)
    assert mirror.stream.is_exact
    await moved_to_eu(home, mirror)
    assert mirror.stream.is_elected
    assert mirror.notes.commands == ["one", "two", "three", "fenced"]
    assert mirror.notes.was_whole


async def test_what_was_proposed_before_an_epoch_is_sealed_is_in_it_and_nothing_is_proposed_meanwhile(
    pair: tuple[Any, Any],
) -> None:
    home, mirror = pair
    (future,) = home.propose("one")
    task = asyncio.ensure_future(home.stream.seal(epoch=Epoch(1), new_epoch=Epoch(2), move_id="m1"))
    await settled()
    with pytest.raises(NotLeader):
        home.propose("two")
    while not task.done():
        home.log.commit()
        await asyncio.sleep(0.001)
    await future
    mirrored(home, mirror)
    assert mirror.notes.commands == ["one"]
    assert task.result().offset == mirror.stream.end.next_offset
    again = await home.stream.seal(epoch=Epoch(1), new_epoch=Epoch(2), move_id="m1")
    assert again == task.result()  # no other checkpoint


async def test_a_state_that_is_too_large_to_be_brought_along_is_sealed_without(
    pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("region.coordination.coordinator_stream.SEALED_BYTES_MAX", 20)
    home, mirror = pair
    await said(home, "one")
    await sealed(home)
    mirrored(home, mirror)
    await moved_to_eu(home, mirror)
    assert mirror.notes.commands == ["one", "fenced"] and mirror.notes.was_whole is False


async def test_a_seal_that_is_refused_leaves_no_checkpoint(pair: tuple[Any, Any]) -> None:
    home, _ = pair
    await said(home, "one")
    end = home.stream.end.next_offset
    for epoch, new_epoch, error in ((2, 3, Busy), (1, 1, Fenced)):
        with pytest.raises(error):
            await home.stream.seal(epoch=Epoch(epoch), new_epoch=Epoch(new_epoch), move_id="m1")
    assert home.stream.end.next_offset == end
    await said(home, "two")


async def test_pieces_of_an_older_epoch_are_not_written_in_the_next_one(
    pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, mirror = pair
    await said(home, "one")
    mirrored(home, mirror)
    end = mirror.stream.end
    append = mirror.stream._append_records

    def busy(_: Any) -> Any:
        raise Busy("no room")

    monkeypatch.setattr(mirror.stream, "_append_records", busy)
    second = row_for(home.stream, EU, epoch=2, start=1, index=7, digest=end.digest)
    mirror.stream.follow_home(second)
    await settled()
    mirror.log.commit()
    assert mirror.stream.epoch == 2 and not mirror.stream.is_elected
    third = replace(
        second,
        epoch=Epoch(3),
        table=(*second.table, (Epoch(3), Offset(1))),
        homes=(*second.homes, (Epoch(3), EU)),
        last_epoch=Epoch(3),
        index=8,
    )
    mirror.stream.follow_home(third)
    await settled()
    mirror.log.commit()
    monkeypatch.setattr(mirror.stream, "_append_records", append)
    await asyncio.sleep(0.3)
    mirror.log.commit()
    assert mirror.stream.is_elected and mirror.stream.checkpoint_epoch == 3


async def test_an_epoch_is_sealed_too_when_there_is_no_room_for_a_checkpoint(pair: tuple[Any, Any]) -> None:
    home, mirror = pair
    await said(home, "one")
    home.disk_writable = False
    await sealed(home)
    mirrored(home, mirror)
    await moved_to_eu(home, mirror)
    assert mirror.notes.commands == ["one", "fenced"] and mirror.notes.was_whole is False


async def test_a_checkpoint_that_is_larger_than_what_may_be_in_flight_is_written_in_steps(
    pair: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("region.coordination.checkpoint_core.PIECE_BYTES_MAX", 4)
    monkeypatch.setattr("region.coordination.coordinator_stream.CHECKPOINT_AGAIN_S", 0.0)
    home, mirror = pair
    await said(home, "one", "two")
    mirrored(home, mirror)
    end = mirror.stream.end
    append, left = mirror.stream._append_records, [3]

    def limited(drafts: Any) -> Any:
        if not left[0]:
            raise Busy("the limit is reached")
        left[0] -= 1
        return append(drafts)

    monkeypatch.setattr(mirror.stream, "_append_records", limited)
    mirror.stream.follow_home(row_for(home.stream, EU, epoch=2, start=2, index=7, digest=end.digest))
    for _ in range(10):
        await settled()
        mirror.log.commit()
        left[0] = 3
    assert mirror.stream.is_elected and mirror.stream.checkpoint_epoch == 2
    assert mirror.stream.end.next_offset == 2 + 9  # of 23 and of 10 bytes: no piece is there twice


async def test_two_requests_to_seal_at_once_leave_one_checkpoint(pair: tuple[Any, Any]) -> None:
    home, mirror = pair
    home.propose("one")
    words = {"epoch": Epoch(1), "new_epoch": Epoch(2), "move_id": "m1"}
    tasks = [asyncio.ensure_future(home.stream.seal(**words)) for _ in range(2)]
    while not all(task.done() for task in tasks):
        home.log.commit()
        await asyncio.sleep(0.001)
    assert tasks[0].result() == tasks[1].result()
    mirrored(home, mirror)
    assert home.stream.end.next_offset == 1 + 2  # the command, and a piece of each part


async def test_an_epoch_whose_commands_do_not_come_to_an_end_is_not_sealed_and_goes_on(pair: tuple[Any, Any]) -> None:
    home, _ = pair
    (future,) = home.propose("one")
    seal = asyncio.ensure_future(home.stream.seal(epoch=Epoch(1), new_epoch=Epoch(2), move_id="m1"))
    await asyncio.sleep(0)
    home.clock.wall += 3_000_000_000
    with pytest.raises(Busy):
        await seal
    home.log.commit()
    await future
    await said(home, "two")
    assert home.notes.commands == ["one", "two"]


async def test_a_leader_that_comes_after_the_checkpoint_writes_no_other(pair: tuple[Any, Any]) -> None:
    home, mirror = pair
    await said(home, "one")
    mirrored(home, mirror)
    await moved_to_eu(home, mirror)
    records = mirror.stream.end.next_offset
    mirror.log.step_down()
    mirror.log.lead()
    assert mirror.stream.is_elected and mirror.stream.end.next_offset == records


async def test_a_replica_restored_in_the_middle_of_a_checkpoint_reads_its_end(
    pair: tuple[Any, Any], make_bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("region.coordination.checkpoint_core.PIECE_BYTES_MAX", 4)
    home, mirror = pair
    await said(home, "one")
    mirrored(home, mirror)
    end = mirror.stream.end
    mirror.stream.follow_home(row_for(home.stream, EU, epoch=2, start=1, index=7, digest=end.digest))
    await settled()
    mirror.log.commit(len(mirror.log.entries))
    middle = mirror.log.applied + 2
    mirror.log.commit(middle)
    manifest = type("At", (), {"index": middle, "state": mirror.stream.snapshot()})()
    mirror.log.commit()

    other = make_bench(level=MESH_LEVEL, region=EU)
    other.stream.restore(manifest)
    assert other.stream.checkpoint_epoch == 0
    for entry in mirror.log.entries[middle:]:
        other.stream.appended(entry)
        other.stream.applied([entry])
    assert other.stream.checkpoint_epoch == 2
    assert other.stream.snapshot() == mirror.stream.snapshot()


async def test_a_mirror_of_before_that_knew_no_commands_waits_for_a_checkpoint(
    pair: tuple[Any, Any], make_bench: Make
) -> None:
    home, mirror = pair
    mirror.level = MESH_LEVEL - 1  # its region could not read another state
    await said(home, "one")
    mirrored(home, mirror)
    manifest = type("At", (), {"index": mirror.log.applied, "state": mirror.stream.snapshot()})()
    assert manifest.state[0] < 128
    other = make_bench(level=MESH_LEVEL, region=EU)
    other.stream.restore(manifest)
    assert not other.stream.is_exact and other.notes.commands == []


async def test_without_a_lease_nobody_is_told_that_a_command_is_there(make_bench: Make) -> None:
    bench = make_bench(level=MESH_LEVEL)
    bench.log.lead()
    futures = bench.propose("one")
    await asyncio.sleep(0)
    bench.stream.lease = lambda: False
    bench.log.commit()
    with pytest.raises(Exception, match="lease"):
        await futures[0]
    again = bench.propose("two")
    await asyncio.sleep(0)
    with pytest.raises(Exception, match="lease"):
        await again[0]
