"""The log start moves forward only, by committed START entries, and takes with it what is known about older records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from georelay.errors import NotLeader, Unavailable
from georelay.ids import Epoch, Offset, RaftIndex
from mesh.replication.stream_header import EntryType
from region.log.entry import EntryDraft, control_header
from region.multiraft.machine import InvariantBroken
from region.topics.log_start_core import LogStart, decode_start, encode_start
from region.topics.newest_timestamp_core import NewestTimestamp

START = LogStart(first_index=RaftIndex(3), offset=Offset(7), boundary=Offset(5), digest=b"d" * 16)


def start(offset: int, *, boundary: int | None = None, first_index: int = 3) -> LogStart:
    return LogStart(
        first_index=RaftIndex(first_index),
        offset=Offset(offset),
        boundary=Offset(offset if boundary is None else boundary),
        digest=bytes([offset]) * 16,
    )


def test_a_start_never_goes_back_but_its_first_index_may_still_rise() -> None:
    assert START.moved_to(start(6, first_index=9)) == replace(START, first_index=RaftIndex(9))
    assert START.moved_to(start(8, first_index=2)) == replace(start(8), first_index=RaftIndex(3))


def test_a_start_inside_the_same_batch_keeps_its_boundary_and_digest() -> None:
    moved = START.moved_to(start(8, boundary=5))
    assert (moved.offset, moved.boundary, moved.digest) == (8, 5, START.digest)


@pytest.mark.parametrize(
    "raw",
    [b"", encode_start(START)[:-1], encode_start(START) + b"\0", b"\2" + encode_start(START)[1:],
     encode_start(START)[:17] + (8).to_bytes(8, "big") + START.digest],
    ids=["empty", "short", "long", "another version", "a boundary above the start"],
)  # fmt: skip
def test_a_payload_that_is_no_start_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"START|start"):
        decode_start(raw)


async def test_a_start_counts_once_it_is_committed_and_the_host_is_told(make_bench: Any) -> None:
    bench = make_bench().ready()
    for _ in range(9):
        bench.publish()
    bench.log.commit()
    woken: list[int] = []
    bench.stream.add_waiter(lambda: woken.append(bench.stream.log_start))
    moved = bench.stream.propose_start(start(4))
    assert (bench.stream.log_start, moved.done(), bench.log.started_at) == (0, False, [])
    bench.log.commit()
    assert (bench.stream.log_start, moved.done(), bench.log.started_at, woken) == (4, True, [3], [4])
    assert bench.stream.tail.first.base_offset == 4


async def test_a_truncated_start_never_counts(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.publish()
    bench.log.commit()
    bench.stream.propose_start(start(1))
    bench.log.truncate(len(bench.log.entries))
    bench.publish()
    bench.log.commit()
    assert bench.stream.log_start == 0


async def test_a_start_that_an_epoch_overtook_moves_nothing(make_bench: Any) -> None:
    bench = make_bench().ready()
    digest = bench.stream.end.digest
    bench.publish()
    bench.publish()
    bench.log.commit()
    bench.stream.open_epoch(Epoch(2), start=Offset(0), digest=digest, control_index=1)
    bench.stream.propose_start(start(2))
    bench.log.commit()
    assert bench.stream.log_start == 0


async def test_no_start_is_proposed_before_every_broker_understands_it_nor_by_a_follower(make_bench: Any) -> None:
    bench = make_bench(level=1).ready()
    with pytest.raises(Unavailable):
        bench.stream.propose_start(start(0))
    bench.level = 2
    bench.log.step_down()
    with pytest.raises(NotLeader):
        bench.stream.propose_start(start(0))


async def test_a_start_entry_that_makes_no_sense_stops_the_group(make_bench: Any) -> None:
    bench = make_bench().ready()
    header = bench.stream.control_header(EntryType.START, b"garbage")
    with pytest.raises(InvariantBroken):
        bench.log.append(EntryDraft(header=header, payload=b"garbage"))


async def test_the_newest_timestamp_is_not_known_any_more_when_its_batch_is_deleted(
    make_bench: Any, stamped: Any
) -> None:
    bench = make_bench().ready()
    for stamp in (900, 500, 600):
        stamped(bench, stamp)
    bench.log.commit()
    assert bench.stream.bounds.newest == NewestTimestamp(timestamp_ms=900, offset=Offset(0))
    bench.stream.propose_start(start(1))
    stamped(bench, 550)
    bench.log.commit()
    assert bench.stream.bounds.newest == NewestTimestamp(timestamp_ms=550, offset=Offset(3), unseen_below=Offset(3))
    bench.stream.propose_start(start(3))
    bench.log.commit()
    assert bench.stream.bounds.newest == NewestTimestamp(timestamp_ms=550, offset=Offset(3))


async def test_a_timestamp_behind_an_epoch_counts_although_a_larger_one_became_an_orphan(
    make_bench: Any, stamped: Any
) -> None:
    bench = make_bench().ready()
    digest = bench.stream.end.digest
    stamped(bench, 900)
    bench.stream.open_epoch(Epoch(2), start=Offset(0), digest=digest, control_index=1)
    stamped(bench, 600)
    bench.log.commit()
    assert bench.stream.bounds.newest.timestamp_ms == 600


async def test_the_answer_to_a_publish_names_the_log_start(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.publish()
    bench.log.commit()
    bench.stream.propose_start(start(1))
    bench.log.commit()
    answer = bench.publish()
    bench.log.commit()
    assert answer.result().log_start == 1


async def test_a_committed_skip_that_gives_up_what_is_held_stops_the_group(make_bench: Any) -> None:
    bench = make_bench().ready()
    bench.publish()
    payload = b"\x01\x00\x00\x00\x00\x00\x00"
    header = control_header(
        EntryType.SKIP, next_offset=Offset(1), epoch=Epoch(1), append_us=0, digest=bytes(16), payload=payload
    )
    bench.log.append(EntryDraft(header=header, payload=payload))
    with pytest.raises(InvariantBroken):
        bench.log.commit()


def test_an_epoch_below_the_boundary_moves_the_boundary_and_takes_its_digest() -> None:
    assert START.cut(Offset(9), b"n" * 16) == START
    assert START.cut(Offset(6), b"n" * 16) == replace(START, offset=Offset(6))
    assert START.cut(Offset(4), b"n" * 16) == replace(START, offset=Offset(4), boundary=Offset(4), digest=b"n" * 16)
