"""Every schedule of small histories: the shipped receiver rule keeps a mirror an exact prefix, two wrong ones do not.

The world: a sender with a cursor, frames in flight that may be dropped, duplicated and reordered, a mirror whose
uncommitted tail may vanish (its leader restarts), and a sender that may be replaced at any time. The search visits
every state such a world can reach.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from georelay.wire.crc import crc32c
from mesh.replication.receiver_core import MirrorEnd, Verdict, judge
from mesh.replication.stream_header import EntryType, StreamHeader, first_digest, next_digest

KEY = StreamKey(b"t" * 16, RegionNumber(0), 0)
IN_FLIGHT_MAX = 2


class Batch(NamedTuple):
    header: StreamHeader
    payload: bytes


class World(NamedTuple):
    """Batches are named by their place in the home's history."""

    cursor: int  # next batch the sender sends
    in_flight: tuple[int, ...]
    mirror: tuple[int, ...]  # batches in the mirror's log, in order
    committed: int  # how many of them


def build(
    sizes: tuple[int, ...], *, epoch: int = 1, after: tuple[Batch, ...] = (), mark: str = ""
) -> tuple[Batch, ...]:
    """Return a history of batches with these record counts, behind the batches of `after`."""
    history = list(after)
    for number, records in enumerate(sizes):
        first = history[-1].header.next_offset if history else Offset(0)
        digest = history[-1].header.digest if history else first_digest(KEY)
        payload = f"{mark}{number}".encode() * 20
        header = StreamHeader(
            type=EntryType.DATA,
            entry_region=1,
            record_count=records,
            epoch=Epoch(epoch),
            base_offset=first,
            append_us=0,
            received_ns=0,
            max_timestamp_ms=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            payload_crc=crc32c(payload),
            digest=next_digest(
                digest, epoch=Epoch(epoch), first=first, last=Offset(first + records - 1), batch=payload
            ),
        )
        history.append(Batch(header, payload))
    return tuple(history)


def log_end(history: tuple[Batch, ...], mirror: tuple[int, ...]) -> MirrorEnd:
    if not mirror:
        return MirrorEnd(epoch=Epoch(1), next_offset=Offset(0), digest=first_digest(KEY))
    last = history[mirror[-1]].header
    return MirrorEnd(epoch=Epoch(1), next_offset=last.next_offset, digest=last.digest)


Rule = Callable[[tuple[Batch, ...], World, Batch], Verdict]


def shipped(history: tuple[Batch, ...], world: World, batch: Batch) -> Verdict:
    end = log_end(history, world.mirror)
    table = ((Epoch(1), Offset(0)),)
    return judge(end, session_epoch=Epoch(1), table=table, header=batch.header, payload=batch.payload)


def high_watermark(history: tuple[Batch, ...], world: World) -> int:
    return history[world.mirror[world.committed - 1]].header.next_offset if world.committed else 0


def above_high_watermark(history: tuple[Batch, ...], world: World, batch: Batch) -> Verdict:
    """Wrong: "accept if > hwm"."""
    return Verdict.ACCEPT if batch.header.base_offset >= high_watermark(history, world) else Verdict.ALREADY_THERE


def next_after_high_watermark(history: tuple[Batch, ...], world: World, batch: Batch) -> Verdict:
    """Wrong: "first == hwm + 1", with batches pipelined before the commit."""
    hwm = high_watermark(history, world)
    if batch.header.base_offset == hwm:
        return Verdict.ACCEPT
    return Verdict.GAP if batch.header.base_offset > hwm else Verdict.ALREADY_THERE


def steps(history: tuple[Batch, ...], world: World, rule: Rule) -> Iterator[World]:
    """Yield every world that can follow."""
    end = len(world.mirror)
    if world.cursor < len(history) and len(world.in_flight) < IN_FLIGHT_MAX:
        yield world._replace(cursor=world.cursor + 1, in_flight=(*world.in_flight, world.cursor))
    for place, number in enumerate(world.in_flight):
        others = world.in_flight[:place] + world.in_flight[place + 1 :]
        yield world._replace(in_flight=others)  # dropped
        verdict = rule(history, world, history[number])
        for left in (others, world.in_flight):  # delivered, or delivered and still in flight: a duplicate
            if verdict is Verdict.ACCEPT:
                yield world._replace(in_flight=left, mirror=(*world.mirror, number))
            elif verdict is Verdict.GAP:
                yield world._replace(in_flight=left, cursor=end)
            else:
                assert verdict is Verdict.ALREADY_THERE, verdict
                yield world._replace(in_flight=left)
    if world.committed < end:
        yield world._replace(committed=world.committed + 1)
    for kept in range(world.committed, end):  # the mirror's leader restarts: part of the tail was never stored
        yield world._replace(mirror=world.mirror[:kept])
    yield world._replace(cursor=min(end, len(history)))  # a new session: HELLO says where the log ends


def faults(history: tuple[Batch, ...], rule: Rule) -> tuple[set[str], dict[World, list[World]]]:
    """Return what went wrong in any schedule, and the graph of all worlds that were sound."""
    start = World(0, (), (), 0)
    seen: dict[World, list[World]] = {}
    wrong: set[str] = set()
    waiting = [start]
    while waiting:
        world = waiting.pop()
        if world in seen:
            continue
        seen[world] = []
        for following in steps(history, world, rule):
            if len(set(following.mirror)) < len(following.mirror):
                wrong.add("duplicate")
            elif following.mirror != tuple(range(len(following.mirror))):
                wrong.add("gap")
            else:
                seen[world].append(following)
                waiting.append(following)
    return wrong, seen


SIZES = [*itertools.product((1, 2, 3), repeat=3), (1, 2, 3, 1), (3, 1, 1, 2)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_shipped_rule_keeps_an_exact_prefix_in_every_schedule(sizes: tuple[int, ...]) -> None:
    wrong, seen = faults(build(sizes), shipped)
    assert wrong == set()
    assert len(seen) > 100


def test_the_shipped_rule_can_always_finish() -> None:
    history = build((1, 2, 3))
    _, seen = faults(history, shipped)
    before: dict[World, list[World]] = {}
    for world, followings in seen.items():
        for following in followings:
            before.setdefault(following, []).append(world)
    finishing = [world for world in seen if world.committed == len(history)]
    reached = set(finishing)
    while finishing:
        for world in before.get(finishing.pop(), []):
            if world not in reached:
                reached.add(world)
                finishing.append(world)
    assert reached == set(seen)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 2, 3)], ids=str)
def test_accepting_everything_above_the_high_watermark_loses_records(sizes: tuple[int, ...]) -> None:
    assert "gap" in faults(build(sizes), above_high_watermark)[0]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 2, 3)], ids=str)
def test_accepting_only_the_high_watermark_duplicates_pipelined_batches(sizes: tuple[int, ...]) -> None:
    assert "duplicate" in faults(build(sizes), next_after_high_watermark)[0]


# --- two homes ----------------------------------------------------------------------------------------

COMMON = build((1, 2))
OLD_HOME = build((1, 1), after=COMMON, mark="old")
START = COMMON[-1].header.next_offset
NEW_HOME = build((1, 2), epoch=2, after=COMMON, mark="new")
OLD_TABLE = ((Epoch(1), Offset(0)),)
NEW_TABLE = ((Epoch(1), Offset(0)), (Epoch(2), START))


def two_homes(*, fenced: bool) -> set[str]:
    """Return what can go wrong when both homes send anything at any time and the mirror raises its epoch."""
    wrong: set[str] = set()
    seen: set[tuple[int, tuple[Batch, ...]]] = set()
    waiting: list[tuple[int, tuple[Batch, ...]]] = [(1, ())]
    while waiting:
        state = waiting.pop()
        if state in seen:
            continue
        seen.add(state)
        epoch, log = state
        if log != (OLD_HOME if epoch == 1 else NEW_HOME)[: len(log)]:
            wrong.add("mixed")
            continue
        following = log[-1].header.next_offset if log else Offset(0)
        digest = log[-1].header.digest if log else first_digest(KEY)
        if epoch == 1 and following >= START:
            waiting.append((2, tuple(batch for batch in log if batch.header.next_offset <= START)))
        for table, history in ((OLD_TABLE, OLD_HOME), (NEW_TABLE, NEW_HOME)):
            for batch, session in itertools.product(history, (1, 2)):
                if table is OLD_TABLE and session == 2:
                    continue  # the old home never heard of epoch 2
                verdict = judge(
                    MirrorEnd(epoch=Epoch(epoch), next_offset=following, digest=digest),
                    session_epoch=Epoch(session if fenced else epoch),
                    table=table,
                    header=batch.header,
                    payload=batch.payload,
                )
                if verdict is Verdict.ACCEPT:
                    waiting.append((epoch, (*log, batch)))
    assert any(epoch == 2 and log == NEW_HOME for epoch, log in seen)
    return wrong


def test_two_homes_never_mix_their_records_in_a_mirror() -> None:
    assert two_homes(fenced=True) == set()


def test_without_the_session_epoch_two_homes_mix() -> None:
    assert two_homes(fenced=False) == {"mixed"}
