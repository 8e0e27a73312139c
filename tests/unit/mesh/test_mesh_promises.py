"""A mirror that promised an epoch hears no home of a lower one; a session and a forward lane follow the home."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from georelay.errors import NotHome, OutcomeUnknown
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from georelay.wire.crc import crc32c
from mesh.replication.publish import Publish
from mesh.replication.receiver_core import (
    ApplyViolation,
    MirrorEnd,
    Verdict,
    is_fenced,
    judge,
    judge_skip,
    recheck_at_apply,
)
from mesh.replication.sender_core import Refusal, refuse_hello
from mesh.replication.stream_header import EntryType, StreamHeader, first_digest, next_digest

KEY = StreamKey(bytes(range(16)), RegionNumber(0), 0)
OLD = ((Epoch(1), Offset(0)),)
NEW = ((Epoch(1), Offset(0)), (Epoch(3), Offset(5)))


def header(first: int, *, count: int = 1, epoch: int = 1) -> tuple[StreamHeader, bytes]:
    payload = b"batch" * 20
    last = Offset(first + count - 1)
    digest = next_digest(first_digest(KEY), epoch=Epoch(epoch), first=Offset(first), last=last, batch=payload)
    return (
        StreamHeader(
            type=EntryType.DATA,
            entry_region=1,
            record_count=count,
            epoch=Epoch(epoch),
            base_offset=Offset(first),
            append_us=0,
            received_ns=0,
            max_timestamp_ms=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            payload_crc=crc32c(payload),
            digest=digest,
        ),
        payload,
    )


def end(promised: int) -> MirrorEnd:
    return MirrorEnd(epoch=Epoch(1), next_offset=Offset(0), digest=first_digest(KEY), promised=Epoch(promised))


@pytest.mark.parametrize(
    ("promised", "table", "verdict"),
    [
        (0, OLD, Verdict.ACCEPT),
        (2, OLD, Verdict.FENCED),  # the home that the promise was made against
        (3, NEW, Verdict.ACCEPT),  # the decision is proved: records of the older epoch are what the mesh agreed on
        (4, NEW, Verdict.FENCED),  # an attempt that the promise made void
    ],
)
def test_a_batch_is_taken_only_from_a_home_that_proves_what_became_of_the_promise(
    promised: int, table: Any, verdict: Verdict
) -> None:
    part, payload = header(0)
    found = judge(end(promised), session_epoch=Epoch(1), table=table, header=part, payload=payload)
    assert found is verdict


def test_nothing_is_skipped_for_a_home_of_a_lower_epoch() -> None:
    assert judge_skip(end(2), session_epoch=Epoch(1), table=OLD, last=Offset(9)) is Verdict.FENCED
    assert judge_skip(end(0), session_epoch=Epoch(1), table=OLD, last=Offset(9)) is Verdict.ACCEPT


def test_an_empty_table_proves_nothing() -> None:
    assert is_fenced((), Epoch(1))
    assert not is_fenced((), Epoch(0))


def test_a_record_behind_a_seal_is_a_violation_until_an_epoch_begins() -> None:
    common: dict[str, Any] = {
        "kind": EntryType.DATA,
        "base_offset": Offset(5),
        "committed_next": Offset(5),
        "epoch_table": NEW,
    }
    with pytest.raises(ApplyViolation, match="sealed"):
        recheck_at_apply(**common, epoch=Epoch(1), committed_epoch=Epoch(1), seal=Epoch(3))
    recheck_at_apply(**common, epoch=Epoch(3), committed_epoch=Epoch(3), seal=Epoch(3))


def test_a_mirror_in_an_epoch_of_which_the_mesh_kept_nothing_is_told_the_following_one() -> None:
    assert refuse_hello(epoch=Epoch(2), next_offset=Offset(9), table=NEW, high_watermark=Offset(5)) is None
    refused = refuse_hello(epoch=Epoch(4), next_offset=Offset(5), table=NEW, high_watermark=Offset(5))
    assert refused is not None
    assert refused[0] is Refusal.FENCED


async def test_a_session_with_a_home_below_the_promise_takes_nothing(
    two_regions: Any, memory_log: Any, until: Any
) -> None:
    home, mirror = memory_log(), memory_log(promised=Epoch(2))
    two_regions.home.logs[KEY] = home
    home.sequence(b"batch 1" * 10)
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: bool(two_regions.home.links.snapshot()) or mirror.waiters)
    for _ in range(40):
        await asyncio.sleep(0.005)
    assert mirror.next_offset == 0


async def test_a_session_ends_when_the_mirror_promises_a_newer_epoch(
    two_regions: Any, memory_log: Any, until: Any
) -> None:
    home, mirror = memory_log(), memory_log()
    two_regions.home.logs[KEY] = home
    home.sequence(b"batch 1" * 10)
    two_regions.mirror.links.mirror_started(mirror)
    await until(lambda: mirror.high_watermark == 1)
    mirror.promised = Epoch(2)
    mirror.wake()
    home.sequence(b"batch 2" * 10)
    for _ in range(40):
        await asyncio.sleep(0.005)
    assert mirror.next_offset == 1
    home.begin_epoch(Epoch(2), Offset(1))
    await until(lambda: mirror.epoch == 2)
    assert mirror.proven == 2


async def test_a_mirror_that_promised_skips_for_the_home_that_control_decided(
    two_regions: Any, memory_log: Any, until: Any
) -> None:
    home = memory_log(first=Offset(5), first_digest=b"d" * 16, log_start=Offset(5), table=[(Epoch(1), Offset(0))])
    mirror = memory_log(promised=Epoch(2))
    two_regions.home.logs[KEY] = home
    two_regions.mirror.links.mirror_started(mirror)
    for _ in range(80):
        await asyncio.sleep(0.005)
    assert not mirror.skipped
    mirror.decided = Epoch(2)
    await until(lambda: bool(mirror.skipped))


async def test_a_mirror_follows_its_home_to_another_region(start_broker: Any, memory_log: Any, until: Any) -> None:
    old, new, there = await start_broker(1001), await start_broker(2001), await start_broker(3001)
    first, second, mirror = memory_log(), memory_log(home=RegionNumber(2)), memory_log()
    old.logs[KEY], new.logs[KEY] = first, second
    first.sequence(b"one" * 20)
    there.links.mirror_started(mirror)
    await until(lambda: mirror.high_watermark == 1)
    second.append_batch(StreamHeader.decode(first.entries[0].stream_part), first.entries[0].payload)
    second.begin_epoch(Epoch(2), Offset(1))
    second.sequence(b"two" * 20)
    mirror.home = RegionNumber(2)
    mirror.wake()
    await until(lambda: (mirror.epoch, mirror.high_watermark) == (2, 2))
    assert mirror.payloads() == [b"one" * 20, b"two" * 20]


def unparsed(batch: bytes) -> Publish:
    return Publish(cast("Any", None), batch, 1, 3, lane="lane")


async def forwarded(broker: Any, region: int, batches: list[bytes]) -> list[Any]:
    futures = [broker.links.forward(KEY, unparsed(batch), region=RegionNumber(region)) for batch in batches]
    await asyncio.wait(futures, timeout=5)
    return futures


async def test_what_the_old_home_refused_goes_to_the_new_one_in_order(start_broker: Any, memory_log: Any) -> None:
    old, new, there = await start_broker(1001), await start_broker(2001), await start_broker(3001)
    old.logs[KEY], new.logs[KEY] = memory_log(), memory_log(home=RegionNumber(2))
    old.publish_errors = [NotHome("it moved", epoch=2, home=2) for _ in range(9)]
    batches = [b"batch %06d" % number * 4 for number in range(5)]
    futures = await forwarded(there, 1, batches)
    assert [future.result().base_offset for future in futures] == [0, 1, 2, 3, 4]
    assert new.published == batches
    assert old.published == []


async def test_what_the_old_home_may_have_stored_is_sent_nowhere_else(
    start_broker: Any, memory_log: Any, until: Any
) -> None:
    old, new, there = await start_broker(1001), await start_broker(2001), await start_broker(3001)
    old.logs[KEY], new.logs[KEY] = memory_log(), memory_log(home=RegionNumber(2))
    old.hold_publishes = True
    futures = [there.links.forward(KEY, unparsed(b"one" * 20), region=RegionNumber(1))]
    await until(lambda: len(old.published) == 1)
    # The publisher hears of the new home: what follows waits until the old one has answered, or is lost.
    futures.append(there.links.forward(KEY, unparsed(b"two" * 20), region=RegionNumber(2)))
    await asyncio.sleep(0.05)
    assert (old.published, new.published) == ([b"one" * 20], [])
    await old.links.stop()
    await asyncio.wait(futures, timeout=5)
    assert isinstance(futures[0].exception(), OutcomeUnknown)
    assert new.published == []


async def test_a_lane_asks_again_while_nobody_can_say_who_the_home_is(start_broker: Any, memory_log: Any) -> None:
    old, there = await start_broker(1001), await start_broker(3001)
    old.logs[KEY] = memory_log()
    old.publish_errors = [NotHome("epoch 2 is to come", epoch=2, home=1)]
    (future,) = await forwarded(there, 1, [b"batch" * 10])
    assert future.result().base_offset == 0


async def test_a_new_home_in_our_own_region_is_left_to_the_publisher(start_broker: Any, memory_log: Any) -> None:
    old, there = await start_broker(1001), await start_broker(3001)
    old.logs[KEY] = memory_log()
    old.publish_errors = [NotHome("it moved to you", epoch=2, home=3)]
    (future,) = await forwarded(there, 1, [b"batch" * 10])
    assert isinstance(future.exception(), NotHome)
