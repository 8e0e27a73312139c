"""Retention on real segments: sealed by age, deleted by a committed START entry, at a mirror after its home."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from georelay.errors import NotHome, NotLeader, OffsetOutOfRange, Unavailable, UnknownProducer
from georelay.ids import GroupId, Offset, RaftIndex, RegionNumber
from georelay.wire.batch import RecordDraft, build_batch, validate
from mesh.replication.publish import Publish
from mesh.replication.stream_header import EntryType
from region.log.errors import LogCorrupt
from region.log.filesystem import OsFileSystem
from region.log.group_log import GroupLog
from region.topics.committed_tail import TailBudget
from region.topics.hosted_stream import HostedStream
from region.topics.retention import Retention
from region.topics.retention_core import RetentionLimits

SEGMENT_BYTES = 1_000
HOUR_NS = 3_600_000_000_000


class Kept:
    """One replica on a real disk, with small segments."""

    def __init__(self, bench: Any, path: Path, executor: ThreadPoolExecutor, *, home: int = 1) -> None:
        self.clock = bench.clock
        self.level = 2
        self.limits = RetentionLimits()
        self.mirrors: list[Offset] = []
        self.disk = GroupLog.open(path / "1", OsFileSystem(), segment_bytes_max=SEGMENT_BYTES)
        self.stream = HostedStream(
            key=bench.stream.key,
            topic="orders",
            group_id=GroupId(1),
            home=RegionNumber(home),
            region=RegionNumber(1),
            clock=bench.clock,
            budget=TailBudget(),
            executor=executor,
            feature_level=lambda: self.level,
        )
        self.log = type(bench.log)(self.stream)
        self.stream.attach(self.log, self.disk)
        self.retention = Retention(
            streams=lambda: [self.stream],
            limits_of=lambda _stream: self.limits,
            positions_of=lambda _stream: self.mirrors,
            clock=self.clock,
        )

    def publish(self, *, timestamp_ms: int = 1, count: int = 1, producer: int = -1, sequence: int = -1) -> None:
        raw = bytearray(
            build_batch(
                [RecordDraft(b"v" * 100)] * count,
                timestamps_ms=timestamp_ms,
                producer_id=producer,
                producer_epoch=0 if producer >= 0 else -1,
                base_sequence=sequence,
            )
        )
        header = validate(raw, from_client=True)
        self.checksum = header.crc
        self.stream.publish(Publish(header, raw, 1, 1))
        self.store()

    def store(self) -> None:
        self.disk.append(self.log.entries[self.disk.last_index :])
        self.disk.sync()
        self.log.commit()

    async def look(self) -> None:
        """One look, with whatever it proposes committed."""
        await self.during(self.retention.tick())

    async def during(self, work: Any) -> Any:
        """Run `work` and commit what it proposes."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.sleep(0.001)
            self.store()
        return await task

    @property
    def sealed(self) -> int:
        return len(self.disk.sealed_segments())


@pytest.fixture
async def make_kept(make_bench: Any, tmp_path: Path) -> AsyncIterator[Any]:
    executor = ThreadPoolExecutor(1)
    made: list[Kept] = []

    def make(*, leads: bool = True, **settings: Any) -> Kept:
        kept = Kept(make_bench(), tmp_path / str(len(made)), executor, **settings)
        made.append(kept)
        if leads:
            kept.log.lead()
            kept.store()
        return kept

    yield make
    for kept in made:
        kept.disk.close()
    executor.shutdown()


@pytest.fixture
async def kept(make_kept: Any) -> Kept:
    one: Kept = make_kept()
    return one


async def test_segments_over_the_size_go_and_the_log_start_is_the_first_record_that_is_left(kept: Kept) -> None:
    for _ in range(40):
        kept.publish()
    kept.limits = RetentionLimits(retention_bytes=2 * SEGMENT_BYTES)
    await kept.look()
    first_index = kept.stream.start.first_index
    assert kept.stream.log_start > 0
    assert kept.log.started_at == [first_index]
    assert first_index - 1 in {info.last_index for info in kept.disk.sealed_segments()}
    entry = kept.log.entries[first_index - 1]
    assert (entry.base_offset, kept.log.entries[first_index - 2].next_offset) == (kept.stream.log_start,) * 2
    assert await kept.stream.digest_before(kept.stream.log_start) == kept.log.entries[first_index - 2].header().digest


async def test_a_quiet_stream_is_sealed_by_age_and_its_old_records_go(kept: Kept) -> None:
    kept.publish()
    kept.limits = RetentionLimits(retention_ms=4 * 3_600_000)
    await kept.look()
    assert kept.log.seals == 0
    kept.clock.now_ns += 2 * HOUR_NS
    await kept.look()
    assert kept.log.seals == 1
    kept.disk.seal()
    kept.disk.sync()
    await kept.look()
    assert (kept.log.seals, kept.stream.log_start) == (1, 0)  # sealed once; not old enough to go
    kept.clock.now_ns += 3 * HOUR_NS
    await kept.look()
    assert kept.stream.log_start == 1
    assert await kept.stream.max_timestamp() is None


async def test_a_region_with_older_brokers_deletes_nothing(kept: Kept) -> None:
    for _ in range(40):
        kept.publish()
    kept.level = 1
    kept.limits = RetentionLimits(retention_bytes=0)
    await kept.look()
    assert kept.stream.log_start == 0
    with pytest.raises(Unavailable):
        await kept.stream.delete_records(Offset(1))


async def test_a_follower_proposes_nothing_but_finishes_what_was_decided(kept: Kept) -> None:
    for _ in range(40):
        kept.publish()
    kept.limits = RetentionLimits(retention_bytes=SEGMENT_BYTES)
    await kept.look()
    kept.log.step_down()
    kept.log.started_at.clear()
    entries = len(kept.log.entries)
    await kept.look()
    assert (len(kept.log.entries), kept.log.started_at) == (entries, [kept.stream.start.first_index])


async def test_mirrors_that_are_behind_hold_it_back(kept: Kept) -> None:
    for _ in range(40):
        kept.publish()
    kept.limits = RetentionLimits(retention_bytes=0)
    kept.mirrors = [Offset(0)]
    await kept.look()
    assert kept.stream.log_start == 0
    kept.mirrors = [Offset(40)]
    await kept.look()
    assert kept.stream.log_start > 30


async def test_a_mirror_follows_its_homes_log_start_at_its_own_segment_boundaries(make_kept: Any) -> None:
    home, mirror = make_kept(), make_kept(home=2)
    for _ in range(40):
        home.publish()
    for entry in home.log.entries:
        if entry.record_count:
            mirror.stream.append_batch(entry.header(), bytes(entry.payload))
    mirror.store()
    mirror.stream.home_start_moved(Offset(17))
    await mirror.look()
    assert mirror.stream.log_start == 17
    starts = [entry.type for entry in mirror.log.entries].count(EntryType.START)
    last = mirror.log.entries[mirror.stream.start.first_index - 2]
    assert last.next_offset <= 17
    assert mirror.stream.start.first_index > 1
    await mirror.look()
    assert [entry.type for entry in mirror.log.entries].count(EntryType.START) == starts == 1


async def test_records_are_deleted_up_to_an_offset_inside_a_batch(kept: Kept) -> None:
    for _ in range(5):
        kept.publish(count=3)
    assert await kept.during(kept.stream.delete_records(Offset(7))) == 7
    start = kept.stream.start
    assert (start.offset, start.boundary) == (7, 6)
    assert start.digest == kept.log.entries[3].header().digest
    with pytest.raises(OffsetOutOfRange):
        kept.stream.read(Offset(5), 1)
    found = kept.stream.read(Offset(7), 1)
    assert found is not None
    assert found[0].base_offset == 6
    assert [await kept.stream.digest_before(Offset(at)) for at in (3, 6)] == [None, start.digest]


async def test_deleting_up_to_the_high_watermark_leaves_an_empty_log_that_goes_on(kept: Kept) -> None:
    for _ in range(5):
        kept.publish(count=3)
    assert await kept.during(kept.stream.delete_records(Offset(-1))) == 15
    assert kept.stream.read(Offset(15), 1) == []
    assert await kept.stream.offset_for_timestamp(0) is None
    kept.publish(timestamp_ms=5)
    assert await kept.stream.offset_for_timestamp(0) == (15, 5)
    assert await kept.stream.max_timestamp() == (15, 5)
    assert await kept.during(kept.stream.delete_records(Offset(3))) == 15  # deleted already


async def test_the_files_of_deleted_records_go_at_the_next_look_without_any_limit(kept: Kept) -> None:
    for _ in range(40):
        kept.publish()
    await kept.during(kept.stream.delete_records(Offset(30)))
    assert kept.stream.start.first_index == 1
    await kept.look()
    assert kept.stream.start.first_index > 20
    assert kept.stream.log_start == 30


@pytest.mark.parametrize("before", [41, -2])
async def test_an_offset_that_is_not_committed_is_refused(kept: Kept, before: int) -> None:
    for _ in range(40):
        kept.publish()
    with pytest.raises(OffsetOutOfRange):
        await kept.stream.delete_records(Offset(before))


async def test_only_the_leader_of_the_home_deletes(make_kept: Any) -> None:
    home, mirror = make_kept(), make_kept(home=2)
    home.log.step_down()
    with pytest.raises(NotLeader):
        await home.stream.delete_records(Offset(0))
    with pytest.raises(NotHome):
        await mirror.stream.delete_records(Offset(0))


async def test_lookups_by_time_never_name_a_deleted_record(kept: Kept) -> None:
    for stamp in (900, 100, 300, 200, 400):
        kept.publish(timestamp_ms=stamp, count=2)
    await kept.during(kept.stream.delete_records(Offset(5)))
    found = [await kept.stream.offset_for_timestamp(stamp) for stamp in (50, 250, 301, 401)]
    assert found == [(5, 300), (5, 300), (8, 400), None]
    assert await kept.stream.max_timestamp() == (8, 400)


async def test_a_reader_of_old_records_leaves_the_hot_tail_as_it_is(make_kept: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("region.topics.committed_tail.TAIL_BYTES_MAX", 2_000)
    kept = make_kept()
    for _ in range(40):
        kept.publish()
    first, newest = kept.stream.tail.first, kept.stream.tail.newest
    assert first.base_offset > 0
    assert kept.stream.read(Offset(0), 1 << 20) is None
    cold = await kept.stream.read_cold(Offset(0), 1 << 20)
    assert [entry.base_offset for entry in cold] == list(range(40))
    assert (kept.stream.tail.first, kept.stream.tail.newest) == (first, newest)
    hot = kept.stream.read(first.base_offset, 1 << 20)
    assert [entry.frame for entry in hot] == [entry.frame for entry in cold[first.base_offset :]]


async def test_damage_found_by_a_reader_starts_a_repair_and_is_retriable(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.publish()
    damage = LogCorrupt(Path("1.log"), 7, "a checksum is wrong")

    def damaged(*_args: Any, **_more: Any) -> Any:
        raise damage

    monkeypatch.setattr(kept.disk, "read_from_offset", damaged)
    with pytest.raises(Unavailable, match="damaged"):
        await kept.stream.read_cold(Offset(0), 1)
    assert kept.log.corrupt == [damage]


async def test_a_stream_that_fails_does_not_keep_the_others_from_their_look(
    make_kept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, fine = make_kept(), make_kept()
    for one in (failing, fine):
        for _ in range(40):
            one.publish()
        one.limits = RetentionLimits(retention_bytes=0)
    monkeypatch.setattr(failing.stream, "move_start", _unavailable)
    fine.stream.group_id = GroupId(2)
    retention = Retention(
        streams=lambda: [failing.stream, fine.stream],
        limits_of=lambda _stream: fine.limits,
        positions_of=lambda _stream: [],
        clock=fine.clock,
    )
    await fine.during(retention.tick())
    assert (failing.stream.log_start, fine.stream.log_start > 0) == (0, True)


async def _unavailable(*_args: Any, **_more: Any) -> None:
    raise Unavailable("not now")


async def test_a_mirror_behind_its_home_skips_and_tells_duplicates_as_the_home_does(make_kept: Any) -> None:
    home, mirror = make_kept(), make_kept(home=2)
    for sequence in range(12):
        home.publish(producer=7, sequence=sequence)
    home.publish(producer=8, sequence=0)
    await home.during(home.stream.delete_records(Offset(9)))
    await mirror.during(mirror.stream.append_skip(home.stream.skip_point()))
    stream = mirror.stream
    assert (stream.log_start, stream.high_watermark, stream.next_offset, stream.skipped_records) == (9, 9, 9, 9)
    assert stream.end_digest == home.stream.start.digest
    for entry in await home.stream.read_cold(Offset(9), 1 << 20):
        stream.append_batch(entry.header(), bytes(entry.payload))
    mirror.store()
    assert (stream.end_digest, stream.high_watermark) == (home.stream.end_digest, 13)

    def batches(one: HostedStream) -> list[tuple[int, list[tuple[int, int]]]]:
        rows = one.producers.rows_at(one.commit_index, one.applied_end.append_us)
        return [(key, [(row.base_sequence, row.base_offset) for row in state.batches]) for key, state in rows]

    assert batches(stream) == batches(home.stream)
    assert [entry.base_offset for entry in await stream.read_cold(Offset(9), 1 << 20)] == [9, 10, 11, 12]
    with pytest.raises(OffsetOutOfRange):
        await stream.read_cold(Offset(8), 1)


@pytest.mark.parametrize(("sends", "level", "is_told"), [(True, 7, True), (True, 6, False), (False, 7, False)])
async def test_a_mirror_that_skipped_tells_another_batch_from_one_it_skipped_where_all_know_checksums(
    make_kept: Any, sends: bool, level: int, is_told: bool
) -> None:
    home, mirror = make_kept(), make_kept(home=2)
    mirror.level = level
    for sequence in range(3):
        home.publish(producer=7, sequence=sequence)
    await home.during(home.stream.delete_records(Offset(3)))
    await mirror.during(mirror.stream.append_skip(home.stream.skip_point(checksums=sends)))
    stored = home.stream.producers.check(
        producer_id=7, epoch=0, base_sequence=2, record_count=1, checksum=home.checksum, append_us=1
    )
    ask = partial(mirror.stream.producers.check, producer_id=7, epoch=0, base_sequence=2, record_count=1, append_us=1)
    assert ask(checksum=home.checksum).base_offset == stored.base_offset == 2
    if is_told:
        with pytest.raises(UnknownProducer, match="another batch"):
            ask(checksum=home.checksum ^ 1)
    else:  # the numbers alone decide, as brokers of before have it
        assert ask(checksum=home.checksum ^ 1).base_offset == 2


async def test_a_mirror_in_a_region_with_older_brokers_waits_with_its_skip(make_kept: Any) -> None:
    home, mirror = make_kept(), make_kept(home=2)
    home.publish()
    await home.during(home.stream.delete_records(Offset(1)))
    mirror.level = 1
    with pytest.raises(Unavailable):
        await mirror.stream.append_skip(home.stream.skip_point())
    assert mirror.stream.next_offset == 0


async def test_a_restarted_replica_knows_the_log_start_from_its_state_and_its_log(make_kept: Any) -> None:
    kept = make_kept()
    for _ in range(5):
        kept.publish(count=3)
    await kept.during(kept.stream.delete_records(Offset(7)))
    other = make_kept(leads=False)
    for entry in kept.log.entries:
        other.stream.recovered(entry)
    other.stream.applied_until(kept.log.entries[-1])
    assert other.stream.start == kept.stream.start
    assert other.stream.snapshot() == kept.stream.snapshot()
    assert RaftIndex(1) == other.stream.start.first_index
