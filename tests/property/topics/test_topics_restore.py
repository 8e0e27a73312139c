"""A stream restored from its state at any index and the entries above it equals one that saw every entry."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from georelay.errors import GeorelayError
from georelay.ids import Epoch, Offset, RaftIndex
from georelay.wire.batch import RecordDraft, build_batch, validate
from mesh.replication.publish import Publish
from region.topics.log_start_core import LogStart
from region.topics.producer_rows import encode_producers
from region.topics.skip_core import encode_skip

HOUR_NS = 3_600_000_000_000
Step = tuple[str, int, int]
step = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("publish"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("transact"), st.integers(0, 3), st.integers(0, 1)),
    st.tuples(st.just("transact"), st.integers(0, 3), st.integers(0, 1)),
    st.tuples(st.just("mark"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("mark"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("commit"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("snapshot"), st.just(0), st.just(0)),
    st.tuples(st.just("truncate"), st.integers(1, 3), st.just(0)),
    st.tuples(st.just("lead"), st.just(0), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 30), st.just(0)),
    st.tuples(st.just("start"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("epoch"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("skip"), st.integers(1, 4), st.just(0)),
)


@dataclass(frozen=True, slots=True)
class Taken:
    index: RaftIndex
    state: bytes


class History:
    """One live stream and what was taken of it."""

    def __init__(self, make_bench: Any) -> None:
        self.make_bench = make_bench
        self.bench = make_bench().ready()
        self.taken = [Taken(RaftIndex(0), make_bench().stream.snapshot())]
        self.digests = {0: self.bench.stream.end.digest}
        self.sequences: dict[int, int] = {}
        self.producer_epochs: dict[int, int] = {}
        self.numbers: dict[int, int] = {}

    def do(self, kind: str, number: int, more: int) -> None:
        stream, log = self.bench.stream, self.bench.log
        if kind == "publish":
            self.publish(number, more)
        elif kind == "transact":
            self.publish(10 + number, more, in_transaction=True)
        elif kind == "mark":
            self.mark(10 + number, is_commit=more % 2 == 0, raises_epoch=more >= 2)
        elif kind == "commit":
            log.commit(max(len(log.entries) - number, log.applied))
        elif kind == "snapshot":
            self.taken.append(Taken(stream.commit_index, stream.snapshot()))
        elif kind == "truncate" and len(log.entries) - number >= log.applied:
            log.truncate(len(log.entries) - number + 1)
        elif kind == "lead":
            log.lead()
            log.commit()
        elif kind == "wait":
            self.bench.clock.now_ns += number * HOUR_NS
        elif kind == "start":
            offset = Offset(min(stream.log_start + number, stream.high_watermark))
            first = RaftIndex(stream.commit_index + 1)
            stream.propose_start(LogStart(first_index=first, offset=offset, boundary=offset, digest=bytes(16)))
        elif kind == "epoch":
            log.commit()  # what the mesh agreed on is committed
            start = Offset(max(stream.high_watermark - number, stream.log_start, stream.epochs.rows()[-1][1]))
            stream.open_epoch(Epoch(stream.epochs.newest() + 1), start=start, digest=bytes(16), control_index=1)
        elif kind == "skip":
            self.skip(number)

    def mark(self, producer: int, *, is_commit: bool, raises_epoch: bool) -> None:
        epoch = self.producer_epochs.get(producer, 0) + raises_epoch
        if raises_epoch:
            self.producer_epochs[producer], self.sequences[producer] = epoch, 0
        self.numbers[producer] = self.numbers.get(producer, 0) + 1
        self.bench.stream.write_marker(
            producer_id=producer, producer_epoch=epoch, is_commit=is_commit, number=self.numbers[producer]
        )

    def publish(self, producer: int, stamp: int, *, in_transaction: bool = False) -> None:
        raw = bytearray(
            build_batch(
                [RecordDraft(b"v")] * (1 + stamp % 2),
                timestamps_ms=stamp,
                producer_id=producer,
                producer_epoch=self.producer_epochs.get(producer, 0),
                base_sequence=self.sequences.get(producer, 0),
                is_transactional=in_transaction,
            )
        )
        header = validate(raw, from_client=True, transactional_ok=in_transaction)
        stream = self.bench.stream
        try:
            if in_transaction:  # as when its coordinator has said yes
                batch = Publish(header, raw, 1, 1, transactional_id="t")
                stream._admit(batch, self.numbers.get(producer, 0) + 1)
            else:
                stream.publish(Publish(header, raw, 1, 1))
        except GeorelayError:
            self.sequences[producer] = 0  # expired or truncated: it starts again
            return
        self.sequences[producer] = self.sequences.get(producer, 0) + 1 + stamp % 2

    def skip(self, records: int) -> None:
        stream = self.bench.stream
        following = Offset(stream.end.next_offset + records)
        rows = stream.epochs.rows()
        payload = encode_skip(epochs=rows, producers=encode_producers(()))
        stream.propose_skip(following, digest=bytes(16), epoch=rows[-1][0], payload=payload)

    def again(self, taken: Taken | None) -> Any:
        """Return a bench that holds the same log: replayed from the first entry, or restored and replayed."""
        bench = self.make_bench()
        entries, applied = self.bench.log.entries, self.bench.log.applied
        from_index = 0
        if taken is not None:
            bench.stream.restore(taken)
            from_index = taken.index
        bench.log.entries = list(entries)
        bench.log.applied = from_index
        for entry in entries[from_index:]:
            bench.stream.recovered(entry)
        if applied > from_index:
            bench.log.commit(applied)
        return bench


def seen(bench: Any) -> dict[str, Any]:
    stream = bench.stream
    return {
        "state": stream.snapshot(),
        "end": stream.end,
        "hwm": stream.high_watermark,
        "log_start": stream.start,
        "epochs": stream.epochs.rows(),
        "last_stable": stream.last_stable_offset,
        "open_at_end": stream.transactions.end.ongoing,
        "ended_at_end": {producer: row[:3] for producer, row in stream.transactions.end.ended.items()},
        "producers": stream.producers.rows_at(RaftIndex(len(bench.log.entries)), stream.end.append_us),
    }


@given(steps=st.lists(step, max_size=40), cut=st.integers(0, 3))
def test_restored_and_replayed_streams_equal_the_live_one(make_bench: Any, steps: list[Step], cut: int) -> None:
    async def run() -> None:
        history = History(make_bench)
        for one in steps:
            history.do(*one)
        live = history.bench
        others = [history.again(taken) for taken in [None, *history.taken]]
        for other in others:
            assert seen(other) == seen(live)
        # A truncation after the restore takes back exactly what is above it.
        kept = len(live.log.entries) - cut
        if kept >= live.log.applied:
            for bench in (live, *others):
                bench.log.truncate(kept + 1)
        for bench in (live, *others):
            bench.log.commit()
        for other in others:
            assert seen(other) == seen(live)

    asyncio.run(run())


@given(steps=st.lists(step, max_size=40))
def test_a_restart_that_only_learns_how_far_the_commit_was_equals_the_live_stream(
    make_bench: Any, steps: list[Step]
) -> None:
    async def run() -> None:
        history = History(make_bench)
        for one in steps:
            history.do(*one)
        live = history.bench
        for taken in [None, *history.taken]:
            other = make_bench()
            first = 0
            if taken is not None:
                other.stream.restore(taken)
                first = taken.index
            for entry in live.log.entries[first:]:
                other.stream.recovered(entry)
            other.log.entries = list(live.log.entries)
            if live.log.applied > first:
                other.stream.applied_until(live.log.entries[live.log.applied - 1])
            assert seen(other) == seen(live)

    asyncio.run(run())
