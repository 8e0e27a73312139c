"""Any history of publishes, commits, truncations, fences, cuts and restarts leaves a stream what a plain model says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from georelay.errors import NotHome
from georelay.ids import Epoch, Offset, RaftIndex
from mesh.replication.stream_header import EntryType, first_digest
from region.topics.branch_states import scratch_log, states_of
from region.topics.epoch_entry_core import EpochCut
from region.topics.fence_core import encode_promise, encode_seal
from region.topics.stream import Stream

PRODUCERS = 3


class Record(NamedTuple):
    """One batch of the model: where it begins, its size, its epoch and its producer's sequence."""

    first: int
    records: int
    epoch: int
    producer: int
    sequence: int

    @property
    def following(self) -> int:
        return self.first + self.records


@dataclass
class Model:
    """A log as a list of things that happened; everything else is computed from the front each time."""

    happened: list[tuple[Any, ...]] = field(default_factory=list)

    def at(self, count: int) -> Known:
        known = Known()
        for place, what in enumerate(self.happened[:count], 1):
            known.follow(place, what)
        return known

    @property
    def end(self) -> Known:
        return self.at(len(self.happened))


@dataclass
class Known:
    """What a prefix of the log says."""

    records: list[Record] = field(default_factory=list)
    table: list[tuple[int, int]] = field(default_factory=list)
    promised: int = 0
    sealed: int = 0
    orphans: list[tuple[int, int, int, int]] = field(default_factory=list)
    epoch: int = 0

    @property
    def next(self) -> int:
        return self.records[-1].following if self.records else 0

    @property
    def fence(self) -> int:
        return max(self.promised, self.sealed)

    def follow(self, place: int, what: tuple[Any, ...]) -> None:
        match what:
            case ("record", record):
                self.records.append(record)
            case ("promise", epoch):
                self.promised = epoch
            case ("seal", epoch):
                self.sealed = epoch
            case ("epoch", epoch, start):
                if start < self.next:
                    self.orphans.append((epoch, start, self.next, place))
                self.records = [record for record in self.records if record.following <= start]
                self.table = [row for row in self.table if row[1] <= start] + [(epoch, start)]
                self.epoch = epoch
                self.promised = self.promised if self.promised > epoch else 0
                self.sealed = self.sealed if self.sealed > epoch else 0
            case _:
                assert what == ("nothing",)

    def last_sequences(self) -> dict[int, int]:
        return {record.producer: record.sequence for record in self.records}


class Driver:
    """Does to a stream and to the model what an operation says."""

    def __init__(self, make_bench: Any) -> None:
        self.make_bench = make_bench
        self.model = Model()
        self.bench = make_bench(level=6)
        self.numbers = 1  # epochs given out
        self.bench.log.lead()
        self.model.happened += [("nothing",), ("epoch", 1, 0)]
        self.commit(99)

    @property
    def stream(self) -> Any:
        return self.bench.stream

    def commit(self, count: int) -> None:
        self.bench.log.commit(min(self.bench.log.applied + count, len(self.model.happened)))

    def publish(self, producer: int, count: int) -> None:
        end = self.model.end
        sequence = end.last_sequences().get(producer, -1) + 1
        try:
            self.bench.publish(producer=producer, epoch=0, sequence=sequence, count=count)
        except NotHome:
            assert end.fence > end.epoch
            return
        assert end.fence <= end.epoch
        record = Record(end.next, count, end.epoch, producer, sequence + count - 1)
        self.model.happened.append(("record", record))

    def truncate(self, count: int) -> None:
        keep = max(len(self.model.happened) - count, self.bench.log.applied)
        if keep == len(self.model.happened):
            return
        self.bench.log.step_down()
        self.bench.log.truncate(keep + 1)
        del self.model.happened[keep:]
        self.bench.log.leads = True
        self.bench.stream.led(leader=1001, is_leader=True)

    def fence(self, kind: str) -> None:
        end = self.model.end
        self.numbers = max(self.numbers, end.fence, end.epoch) + 1
        is_seal = kind == "seal"
        payload = encode_seal(Epoch(self.numbers), "m") if is_seal else encode_promise(Epoch(self.numbers))
        self.stream._propose_control(EntryType.SEAL if is_seal else EntryType.PROMISE, payload)
        self.model.happened.append((kind, self.numbers))

    def begin_epoch(self, pick: int, *, with_states: bool) -> None:
        """Begin an epoch at a committed end of a batch."""
        end, committed = self.model.end, self.model.at(self.bench.log.applied)
        kept = [record for record in committed.records if record in end.records]
        starts = [0, *(record.following for record in kept)]
        start = starts[-1 - pick % len(starts)]
        self.numbers = max(self.numbers, end.fence, end.epoch) + pick % 2 + (1 if end.fence <= end.epoch else 0)
        epoch = max(self.numbers, end.epoch + 1)
        self.numbers = epoch
        cut = None
        if with_states and start < end.next:
            last = self._last_below(start)
            cut = EpochCut(first_index=RaftIndex(last + 1), states=self._states(last))
        digest = first_digest(self.stream.key) if not start else self._digest(start)
        self.stream.open_epoch(Epoch(epoch), start=Offset(start), digest=digest, control_index=9, cut=cut)
        self.model.happened.append(("epoch", epoch, start))

    def _last_below(self, start: int) -> int:
        """Return the index of the entry that ends at `start` in what is valid now, 0 for none."""
        end = self.model.end
        wanted = next((record for record in end.records if record.following == start), None)
        places = [place for place, what in enumerate(self.model.happened, 1) if what == ("record", wanted)]
        return places[-1] if places else 0

    def _digest(self, start: int) -> bytes:
        return bytes(self.bench.log.entries[self._last_below(start) - 1].header().digest)

    def _states(self, last: int) -> Any:
        follower = scratch_log(self.stream.key, "orders")
        for entry in self.bench.log.entries[:last]:
            follower.recovered(entry)
        if last:
            follower.applied_until(self.bench.log.entries[last - 1])
        return states_of(follower)

    def restart(self) -> None:
        """Go on with another stream, made of the state at the applied entry and the entries above it."""
        applied, before = self.bench.log.applied, self.bench
        state = self.stream.snapshot()
        self.bench = self.make_bench(level=6)
        self.stream.restore(_State(RaftIndex(applied), state))
        self.bench.log.entries, self.bench.log.applied = before.log.entries, applied
        self.bench.log.term = before.log.term
        for entry in before.log.entries[applied:]:
            self.stream.recovered(entry)
        self.bench.log.leads = True
        self.stream.led(leader=1001, is_leader=True)
        assert self.stream.snapshot() == state

    def check(self) -> None:
        stream, end = self.stream, self.model.end
        committed = self.model.at(self.bench.log.applied)
        assert (stream.next_offset, stream.end.epoch) == (end.next, end.epoch)
        assert (stream.high_watermark, stream.epoch) == (committed.next, committed.epoch)
        assert stream.epochs.rows() == end.table
        assert stream.epochs.committed(stream.commit_index) == committed.table
        for fences, known in ((stream.fences.end, end), (stream.fences.committed, committed)):
            assert fences.promised == known.promised
            assert (0 if fences.seal is None else fences.seal.new_epoch) == known.sealed
        branches = [(row.epoch, row.first, row.following, row.cut_index) for row in stream.orphan_book.committed]
        assert branches == committed.orphans
        self._check_tail(committed)

    def _check_tail(self, committed: Known) -> None:
        first = self.stream.tail.first
        if first is None:
            return
        shown = self.stream.tail.read(first.base_offset, 1 << 30)
        expected = [record.first for record in committed.records if record.first >= first.base_offset]
        assert [entry.base_offset for entry in shown or ()] == expected

    def check_producers(self) -> None:
        table = self.stream.producers.snapshot()
        assert {producer: state.last_sequence for producer, state in table.items()} == self.model.end.last_sequences()


class _State:
    def __init__(self, index: RaftIndex, state: bytes) -> None:
        self.index = index
        self.state = state


OPERATIONS = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, PRODUCERS - 1), st.integers(1, 3)),
    st.tuples(st.just("publish"), st.integers(0, PRODUCERS - 1), st.integers(1, 3)),
    st.tuples(st.just("commit"), st.integers(1, 6)),
    st.tuples(st.just("truncate"), st.integers(1, 6)),
    st.tuples(st.just("seal")),
    st.tuples(st.just("promise")),
    st.tuples(st.just("epoch"), st.integers(0, 7)),
    st.tuples(st.just("epoch"), st.integers(0, 7)),
    st.tuples(st.just("truncate"), st.integers(1, 2)),
    st.tuples(st.just("restart")),
)


@given(st.lists(OPERATIONS, max_size=60), st.booleans())
def test_a_stream_is_what_the_model_says(make_bench: Any, operations: list[Any], with_states: bool) -> None:
    async def run() -> None:
        driver = Driver(make_bench)
        for operation in operations:
            match operation:
                case ("publish", producer, count):
                    driver.publish(producer, count)
                case ("commit", count):
                    driver.commit(count)
                case ("truncate", count):
                    driver.truncate(count)
                case ("seal",) | ("promise",):
                    driver.fence(operation[0])
                case ("epoch", pick):
                    driver.begin_epoch(pick, with_states=with_states)
                case _:
                    driver.restart()
            driver.check()
            if with_states:
                driver.check_producers()

    asyncio.run(run())


def test_the_bench_is_a_stream(make_bench: Any) -> None:
    async def run() -> None:
        assert isinstance(Driver(make_bench).stream, Stream)

    asyncio.run(run())
