"""A queue against a model that is too simple to be wrong: nothing lost, nothing twice at once, order per key."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from georelay.wire.records import Record
from region.queues.commands_core import (
    Acknowledge,
    BeginEpoch,
    Bury,
    Condemn,
    CreateQueue,
    Deliver,
    Drop,
    GiveBack,
    NameProducer,
    PassOver,
    QueueCommand,
    decode_command,
    encode_command,
)
from region.queues.definition import Order, QueueDefinition
from region.queues.delivery_traces import BatchFacts
from region.queues.index_core import OpenRecord, Phase, QueueIndex
from region.queues.queue_core import Claim, Passed, Place, QueueState, RecordState
from region.queues.state_core import Applied, QueuesState

SECOND = 1_000_000
LEASE_US = 10 * SECOND
MAX_DELIVERIES = 3
PARTITIONS = 2
KEYS = (None, b"a", b"b")


@dataclass
class Modelled:
    """A record as the model knows it."""

    place: Place
    key: bytes | None
    deliveries: int = 0
    leased_until_us: int = 0  # 0: nobody has it
    free_from_us: int = 0
    condemned: bool = False
    done: bool = False


class QueueMachine(RuleBasedStateMachine):
    """One queue, followed by a leader that is replaced now and then."""

    order = Order.NONE

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 1_000 * SECOND
        self.state = QueuesState()
        self.records: dict[Place, Modelled] = {}
        self.letters: list[Place] = []
        self.epoch = 1
        definition = QueueDefinition(
            name="q", topic="t", max_deliveries=MAX_DELIVERIES, dead_letter_topic="d", order=self.order
        )
        self._propose(CreateQueue(definition=definition, positions=(0,) * PARTITIONS))
        self.index = QueueIndex(self.queue)

    @property
    def queue(self) -> QueueState:
        found = self.state.find("q")
        assert found is not None
        return found

    def _propose(self, command: QueueCommand) -> Applied:
        decoded, _ = decode_command(encode_command(command, 7))
        assert decoded == command
        return self.state.apply(decoded, append_us=self.now_us)

    def _change(self, command: QueueCommand) -> list[int]:
        applied = self._propose(command)
        for place in applied.places:
            self.index.refresh(place, self.now_us)
        assert isinstance(applied.result, list)
        return [int(result) for result in applied.result]

    def _add(self, record: Modelled) -> None:
        content = Record(record.place.offset, 0, record.key, b"", ())
        self.index.add(
            OpenRecord(
                place=record.place,
                key=record.key if self.order is Order.KEY else None,
                batch=BatchFacts(append_us=0, epoch=1, received_ns=0, entry_region=1),
                available_us=0,
                expires_us=0,
                size_bytes=1,
                content=content,
            ),
            self.now_us,
        )

    # --- what happens -----------------------------------------------------------------------------

    @rule(partition=st.integers(0, PARTITIONS - 1), keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4))
    def publish(self, partition: int, keys: list[bytes | None]) -> None:
        for key in keys:
            offset = sum(place.partition == partition for place in self.records)
            record = self.records[Place(partition, offset)] = Modelled(Place(partition, offset), key)
            self._add(record)

    @rule(count=st.integers(1, 5))
    def receive(self, count: int) -> None:
        taken = [record for _ in range(count) if (record := self.index.take(self.now_us)) is not None]
        assert all(record.phase is Phase.TAKEN for record in taken)
        if taken:
            until_us = self.now_us + LEASE_US
            places = tuple(record.place for record in taken)
            counts = self._change(Deliver(queue="q", consumer="c", until_us=until_us, places=places))
            for place, deliveries in zip(places, counts, strict=True):
                self._delivered(self.records[place], deliveries, until_us)

    def _delivered(self, record: Modelled, deliveries: int, until_us: int) -> None:
        assert not record.done and not record.condemned and not record.leased_until_us, record
        assert record.free_from_us <= self.now_us, record
        record.deliveries += 1
        assert deliveries == record.deliveries <= MAX_DELIVERIES
        record.leased_until_us = until_us
        if self.order is Order.KEY and record.key is not None:
            older = [row for row in self._of_key(record) if row.place.offset < record.place.offset]
            assert all(row.done for row in older), (record, older)

    def _of_key(self, record: Modelled) -> list[Modelled]:
        rows = self.records.values()
        return [row for row in rows if (row.key, row.place.partition) == (record.key, record.place.partition)]

    def _leased(self) -> list[Modelled]:
        return [row for row in self.records.values() if row.leased_until_us]

    def _claim(self, record: Modelled) -> Claim:
        return Claim(*record.place, record.deliveries)

    @precondition(lambda self: self._leased())
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self._leased()))
        claim = self._claim(record)
        assert self._change(Acknowledge(queue="q", claims=(claim, claim))) == [1, 0]
        record.done, record.leased_until_us = True, 0

    @precondition(lambda self: self.records)
    @rule(data=st.data(), off_by=st.sampled_from([-1, 0, 1]))
    def acknowledge_another_delivery(self, data: st.DataObject, off_by: int) -> None:
        record = data.draw(st.sampled_from(list(self.records.values())))
        claim = Claim(*record.place, max(0, record.deliveries + off_by))
        if claim.deliveries != record.deliveries or not record.leased_until_us:
            assert self._change(Acknowledge(queue="q", claims=(claim,))) == [0]

    @precondition(lambda self: self._leased())
    @rule(data=st.data(), delay_s=st.integers(0, 20))
    def reject(self, data: st.DataObject, delay_s: int) -> None:
        record = data.draw(st.sampled_from(self._leased()))
        due_us = self.now_us + delay_s * SECOND
        assert self._change(GiveBack(queue="q", due_us=due_us, claims=(self._claim(record),))) == [1]
        self._returned(record, due_us)

    def _returned(self, record: Modelled, due_us: int) -> None:
        record.leased_until_us, record.free_from_us = 0, due_us
        if record.deliveries == MAX_DELIVERIES:
            record.condemned = True
            self.letters.append(record.place)

    @precondition(lambda self: self._leased())
    @rule(data=st.data())
    def reject_for_good(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self._leased()))
        assert self._change(Condemn(queue="q", reason="rejected", claims=(self._claim(record),))) == [1]
        record.leased_until_us, record.condemned = 0, True
        self.letters.append(record.place)

    @rule(seconds=st.integers(1, 15))
    def let_time_pass(self, seconds: int) -> None:
        self.now_us += seconds * SECOND
        over, expired = self.index.due(self.now_us)
        assert not expired
        assert {claim.place for claim in over} == {
            row.place for row in self._leased() if row.leased_until_us <= self.now_us
        }
        if over:
            assert all(self._change(GiveBack(queue="q", due_us=self.now_us, claims=tuple(over))))
        for claim in over:
            self._returned(self.records[claim.place], self.now_us)

    @precondition(lambda self: self.letters)
    @rule()
    def bury(self) -> None:
        place = self.letters.pop(0)
        assert next(iter(self.queue.letters.values())) == place
        assert self._change(Bury(queue="q", places=(place, place))) == [1, 0]
        self.records[place].condemned, self.records[place].done = False, True

    @rule(producer_id=st.integers(1, 5))
    def name_producer(self, producer_id: int) -> None:
        self._propose(NameProducer(queue="q", producer_id=producer_id))
        assert list(self.queue.letters) == list(range(len(self.letters)))
        assert self.queue.next_letter == len(self.letters)

    @rule()
    def move_the_home(self) -> None:
        """Leases are over; those that were the last ones are condemned, in the order of their places."""
        self.epoch += 1
        self.state.fence(self.epoch)
        self.replace_the_leader()
        for record in sorted(self._leased(), key=lambda record: record.place):
            self._returned(record, 0)

    @rule(partition=st.integers(0, PARTITIONS - 1), data=st.data())
    def lose_the_end_of_a_partition(self, partition: int, data: st.DataObject) -> None:
        """Records from some offset on are gone; the next ones that are published have their offsets."""
        end = sum(place.partition == partition for place in self.records)
        start = data.draw(st.integers(0, end))
        self.epoch += 1
        self.index.forget_from(partition, start)
        lost = [place for place in self.records if place.partition == partition and place.offset >= start]
        touched = [place for place in lost if self.queue.state_of(place) is not RecordState.UNTOUCHED]
        applied = self._propose(BeginEpoch(queue="q", partition=partition, epoch=self.epoch, start=start))
        assert applied.result == len(touched)
        assert self._propose(BeginEpoch(queue="q", partition=partition, epoch=self.epoch, start=0)).result == 0
        self.index.refresh_partition(partition, self.now_us)
        assert (self.queue.cut_epoch(partition) == self.epoch) == bool(touched)
        self.letters = [place for place in self.letters if place not in lost]
        for place in lost:
            del self.records[place]

    @rule(partition=st.integers(0, PARTITIONS - 1), first=st.integers(0, 20), count=st.integers(1, 20))
    def say_something_late(self, partition: int, first: int, count: int) -> None:
        """What is said of records that nobody had yet, in an epoch that is over, changes nothing."""
        before, over = self.state.snapshot(), self.queue.epoch(partition) - 1
        if not over:
            return
        claims = tuple(Claim(partition, offset, 0) for offset in range(first, first + count))
        ranges = ((first, first + count),)
        self._propose(PassOver(queue="q", partition=partition, ranges=ranges, why=Passed.PURGE, epoch=over))
        self._propose(Drop(queue="q", claims=claims, epoch=over))
        self._propose(Condemn(queue="q", reason="expired", claims=claims, epoch=over))
        assert self.state.snapshot() == before

    @rule()
    def replace_the_leader(self) -> None:
        raw = self.state.snapshot()
        self.state = QueuesState()
        self.state.restore(raw)
        assert self.state.snapshot() == raw
        self.index = QueueIndex(self.queue)
        for record in self.records.values():
            if record.place.offset >= self.queue.cursor(record.place.partition) and not record.done:
                self._add(record)

    # --- what is true -----------------------------------------------------------------------------

    @invariant()
    def every_record_is_where_the_model_has_it(self) -> None:
        for record in self.records.values():
            if record.done:
                wanted = RecordState.DONE
            elif record.condemned:
                wanted = RecordState.CONDEMNED
            elif record.leased_until_us:
                wanted = RecordState.LEASED
            else:
                wanted = RecordState.WAITING if record.deliveries else RecordState.UNTOUCHED
            assert self.queue.state_of(record.place) is wanted, record

    @invariant()
    def counts_are_right(self) -> None:
        rows = self.records.values()
        assert self.queue.row_count == sum(row.deliveries > 0 and not row.done for row in rows), (
            "a row for each record that was handed out and is not done"
        )
        assert self.index.open_count == sum(not row.done for row in rows)
        assert self.index.lease_count == len(self._leased())
        assert self.index.count(Phase.TAKEN) == 0
        for partition in range(PARTITIONS):
            open_ = [row.place.offset for row in rows if row.place.partition == partition and not row.done]
            end = sum(row.place.partition == partition for row in rows)
            assert self.queue.cursor(partition) == min(open_, default=end)

    def teardown(self) -> None:
        """Whatever happened, consumers that go on get everything that is left."""
        while self.letters:
            self.bury()
        for _ in range(4 * MAX_DELIVERIES * (len(self.records) + 1)):
            if all(row.done for row in self.records.values()):
                break
            self.let_time_pass(30)
            self.receive(5)
            for record in self._leased():
                assert self._change(Acknowledge(queue="q", claims=(self._claim(record),))) == [1]
                record.done, record.leased_until_us = True, 0
            while self.letters:
                self.bury()
        assert all(row.done for row in self.records.values())
        assert not any(progress.rows or len(progress.done) for progress in self.queue.partitions.values())


class KeyedQueueMachine(QueueMachine):
    """The same with one record of a key at a time."""

    order = Order.KEY


_SETTINGS = settings(stateful_step_count=50)
TestQueue = QueueMachine.TestCase
TestQueue.settings = _SETTINGS
TestKeyedQueue = KeyedQueueMachine.TestCase
TestKeyedQueue.settings = _SETTINGS
