"""The replicated state of one queue: what became of every record, in as little as possible. Pure.

Per partition there is one cursor (everything below is done), ranges above it that are done too, and a row for each
record that was handed out, or is on its way to the dead-letter topic. A record without any of them is untouched.

Rule 1: all changes of a record are in TRANSITIONS; what is not there has no effect, and whoever asked is told so.
Rule 2: what belongs to a lease names its delivery count: a lease that is over has no effect for ever.
Rule 3: DONE is final. It is never delivered again.
Rule 4: a record leaves LEASED for WAITING only below max_deliveries; otherwise it is CONDEMNED, and it is DONE only
        after it stands in the dead-letter topic.
Rule 5: what is known of an offset is known of the record that the agreed history of the topic's partition has there.
        When an epoch begins below it, other records get these offsets, and what was known of them is forgotten.
Rule 6: a home epoch of the queue's own coordinator ends every lease. Its dead letters are numbered anew, for a new
        producer: a region that was cut off may have published others under the numbers of the old one.
Rule 7: dead letters are numbered without gaps in the order of the log: the number is the sequence of the producer that
        publishes them, so that one that is published twice is stored once.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from types import MappingProxyType
from typing import Final, NamedTuple

from region.coordination.shares_core import NOBODY
from region.queues.definition import QueueDefinition
from region.queues.offset_ranges_core import OffsetRanges

NO_PRODUCER: Final = -1
FIRST_EPOCH: Final = 1


class RecordState(enum.IntEnum):
    """Of one record in one queue. The numbers are in snapshots; they never change."""

    UNTOUCHED = 0  # nobody had it yet; it has no row
    WAITING = 1  # it came back, and may be delivered again from `due_us` on
    LEASED = 2  # a consumer has it until `due_us`
    CONDEMNED = 3  # it goes to the dead-letter topic and to no consumer
    DONE = 4  # acknowledged, in the dead-letter topic, expired or gone; it has no row


class Event(enum.Enum):
    """What happens to one record."""

    DELIVER = "deliver"
    EXTEND = "extend"
    ACKNOWLEDGE = "acknowledge"
    RETURN = "return"  # rejected, released, or the lease expired; deliveries are left
    CONDEMN = "condemn"  # rejected for good, poison, or expired with a dead-letter topic
    DROP = "drop"  # expired without a dead-letter topic
    BURY = "bury"  # it is in the dead-letter topic
    PASS_OVER = "pass_over"  # noqa: S105  purged, deleted by retention, or no record at all


TRANSITIONS: Final[Mapping[tuple[RecordState, Event], RecordState]] = MappingProxyType(
    {
        (RecordState.UNTOUCHED, Event.DELIVER): RecordState.LEASED,
        (RecordState.UNTOUCHED, Event.CONDEMN): RecordState.CONDEMNED,
        (RecordState.UNTOUCHED, Event.DROP): RecordState.DONE,
        (RecordState.UNTOUCHED, Event.PASS_OVER): RecordState.DONE,
        (RecordState.WAITING, Event.DELIVER): RecordState.LEASED,
        (RecordState.WAITING, Event.CONDEMN): RecordState.CONDEMNED,
        (RecordState.WAITING, Event.DROP): RecordState.DONE,
        (RecordState.WAITING, Event.PASS_OVER): RecordState.DONE,
        (RecordState.LEASED, Event.EXTEND): RecordState.LEASED,
        (RecordState.LEASED, Event.ACKNOWLEDGE): RecordState.DONE,
        (RecordState.LEASED, Event.RETURN): RecordState.WAITING,
        (RecordState.LEASED, Event.CONDEMN): RecordState.CONDEMNED,
        (RecordState.LEASED, Event.PASS_OVER): RecordState.DONE,
        (RecordState.CONDEMNED, Event.BURY): RecordState.DONE,
        (RecordState.CONDEMNED, Event.PASS_OVER): RecordState.DONE,
    }
)


class Place(NamedTuple):
    """One record of a queue."""

    partition: int
    offset: int


class Claim(NamedTuple):
    """One record as of one delivery; `deliveries` 0 for one that nobody had."""

    partition: int
    offset: int
    deliveries: int

    @property
    def place(self) -> Place:
        """Return which record."""
        return Place(self.partition, self.offset)


@dataclass(slots=True)
class Row:
    """What is known of a record that is neither untouched nor done.

    Args:
        deliveries: how often it was handed out.
        due_us: end of the lease, or when it may be delivered again; us since 1970.
        consumer: who has it, or had it last.
        number: of the dead letter, -1 for none. reason: why it is one.
    """

    state: RecordState
    deliveries: int
    due_us: int
    consumer: str = ""
    number: int = -1
    reason: str = ""


@dataclass(slots=True)
class Progress:
    """How far one partition is. `done` is above `cursor` and never touches it.

    Args:
        epoch: newest home epoch of the topic's partition whose beginning was followed.
        cut: the newest of them at which something was forgotten: leases of before may mean other records.
    """

    cursor: int = 0
    epoch: int = FIRST_EPOCH
    cut: int = FIRST_EPOCH
    done: OffsetRanges = field(default_factory=OffsetRanges)
    rows: dict[int, Row] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Counts:
    """Of records since the queue was made."""

    acknowledged: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    expired: int = 0
    purged: int = 0
    skipped: int = 0  # deleted by retention before they were done


class Passed(enum.StrEnum):
    """Why offsets are passed over."""

    NO_RECORD = "no_record"  # a marker, or a batch of an aborted transaction
    RETENTION = "retention"
    PURGE = "purge"


class QueueState:
    """One queue.

    Args:
        made_us: append time of its creation; it tells it from an earlier queue of the same name.
        positions: where each partition begins; one that is not named begins at 0.
        epochs: the home epoch of each then; one that is not named is in its first.
        principal: who made it, as far as that is written down.
    """

    def __init__(
        self,
        definition: QueueDefinition,
        *,
        made_us: int,
        positions: Iterable[int] = (),
        epochs: Iterable[int] = (),
        principal: str = NOBODY,
    ) -> None:
        self.definition = definition
        self.made_us = made_us
        self.principal = principal
        self.partitions: dict[int, Progress] = {
            partition: Progress(cursor=position, epoch=epoch)
            for partition, (position, epoch) in enumerate(zip_longest(positions, epochs, fillvalue=0))
            if position or epoch
        }
        for progress in self.partitions.values():
            progress.epoch = max(progress.epoch, FIRST_EPOCH)
        self.counts = Counts()
        self.letters: dict[int, Place] = {}  # condemned records by number, ascending
        self.next_letter = 0
        self.producer_id = NO_PRODUCER  # of the dead letters
        self.row_count = 0

    # --- looking ----------------------------------------------------------------------------------

    def row(self, place: Place) -> Row | None:
        """Return the row of a record."""
        progress = self.partitions.get(place.partition)
        return None if progress is None else progress.rows.get(place.offset)

    def state_of(self, place: Place) -> RecordState:
        """Return the state of a record."""
        progress = self.partitions.get(place.partition)
        if progress is None:
            return RecordState.UNTOUCHED
        row = progress.rows.get(place.offset)
        if row is not None:
            return row.state
        is_done = place.offset < progress.cursor or place.offset in progress.done
        return RecordState.DONE if is_done else RecordState.UNTOUCHED

    def cursor(self, partition: int) -> int:
        """Return the first offset that is not done."""
        progress = self.partitions.get(partition)
        return 0 if progress is None else progress.cursor

    def epoch(self, partition: int) -> int:
        """Return the newest home epoch of a partition that was followed."""
        progress = self.partitions.get(partition)
        return FIRST_EPOCH if progress is None else progress.epoch

    def cut_epoch(self, partition: int) -> int:
        """Return the epoch at which something of a partition was last forgotten."""
        progress = self.partitions.get(partition)
        return FIRST_EPOCH if progress is None else progress.cut

    def rows(self) -> Iterator[tuple[Place, Row]]:
        """Return every row."""
        for partition, progress in self.partitions.items():
            for offset, row in progress.rows.items():
                yield Place(partition, offset), row

    # --- changes ----------------------------------------------------------------------------------

    def deliver(self, consumer: str, until_us: int, places: Iterable[Place]) -> list[int]:
        """Lease records; returns the delivery count of each, 0 for one that cannot be leased now."""
        return [self._deliver(consumer, until_us, place) for place in places]

    def _deliver(self, consumer: str, until_us: int, place: Place) -> int:
        row = self.row(place)
        if (self.state_of(place), Event.DELIVER) not in TRANSITIONS:
            return 0
        if row is None:
            row = self._add_row(place)
        row.state = RecordState.LEASED
        row.deliveries += 1
        row.due_us = until_us
        row.consumer = consumer
        self.counts.redelivered += row.deliveries > 1
        return row.deliveries

    def extend(self, until_us: int, claims: Iterable[Claim]) -> list[bool]:
        """Let leases last until another time; returns which of them are still held."""

        def change(_: Place, row: Row) -> None:
            row.due_us = until_us

        return [self._change(claim, Event.EXTEND, change) for claim in claims]

    def acknowledge(self, claims: Iterable[Claim]) -> list[bool]:
        """Be done with leased records; returns which leases were still held."""

        def change(place: Place, _: Row) -> None:
            self.counts.acknowledged += 1
            self._finish(place)

        return [self._change(claim, Event.ACKNOWLEDGE, change) for claim in claims]

    def give_back(self, due_us: int, claims: Iterable[Claim]) -> list[bool]:
        """End leases whose records are not done; those that had their last delivery are condemned (rule 4)."""
        limit = self.definition.max_deliveries

        def change(place: Place, row: Row) -> None:
            if limit and row.deliveries >= limit:
                self._condemn(place, row, "max_deliveries")
                return
            row.state = RecordState.WAITING
            row.due_us = due_us

        return [self._change(claim, Event.RETURN, change) for claim in claims]

    def condemn(self, reason: str, claims: Iterable[Claim]) -> list[bool]:
        """Send records to the dead-letter topic; returns of which of them that is so now."""

        def change(place: Place, row: Row) -> None:
            self._condemn(place, row, reason)

        return [self._change(claim, Event.CONDEMN, change) for claim in claims]

    def _condemn(self, place: Place, row: Row, reason: str) -> None:
        row.state = RecordState.CONDEMNED
        row.reason = reason
        row.number = self.next_letter
        row.due_us = 0
        self.letters[row.number] = place
        self.next_letter += 1

    def drop(self, claims: Iterable[Claim]) -> list[bool]:
        """Be done with records that expired and are wanted nowhere."""

        def change(place: Place, _: Row) -> None:
            self.counts.expired += 1
            self._finish(place)

        return [self._change(claim, Event.DROP, change) for claim in claims]

    def bury(self, places: Iterable[Place]) -> list[bool]:
        """Be done with records that stand in the dead-letter topic now."""
        results = []
        for place in places:
            row = self.row(place)
            is_condemned = row is not None and (row.state, Event.BURY) in TRANSITIONS
            if row is not None and is_condemned:
                self.counts.dead_lettered += 1
                self.counts.expired += row.reason == "expired"
                self._finish(place)
            results.append(is_condemned)
        return results

    def pass_over(self, partition: int, ranges: Iterable[tuple[int, int]], why: Passed) -> int:
        """Be done with whatever is in some ranges of offsets; returns how many were not done before."""
        progress = self._progress(partition)
        passed = 0
        for start, following in ranges:
            first = max(start, progress.cursor)
            if first >= following:
                continue
            passed += following - first - progress.done.count_between(first, following)
            is_short = following - first < len(progress.rows)
            looked_at = range(first, following) if is_short else list(progress.rows)
            for offset in [offset for offset in looked_at if first <= offset < following]:
                self._remove_row(Place(partition, offset))
            progress.done.add(first, following)
        progress.cursor = progress.done.advanced(progress.cursor)
        if why is Passed.PURGE:
            self.counts.purged += passed
        elif why is Passed.RETENTION:
            self.counts.skipped += passed
        return passed

    def begin_epoch(self, partition: int, epoch: int, start: int) -> int:
        """Follow a home epoch of a partition that began at `start`; returns how many offsets were forgotten."""
        progress = self._progress(partition)
        if epoch <= progress.epoch:
            return 0
        progress.epoch = epoch
        rows = [offset for offset in progress.rows if offset >= start]
        for offset in rows:
            self._remove_row(Place(partition, offset))
        forgotten = len(rows) + max(0, progress.cursor - start) + progress.done.cut(start)
        progress.cursor = min(progress.cursor, start)
        if forgotten:
            progress.cut = epoch
        return forgotten

    def fence(self) -> None:
        """End every lease; records that had their last delivery are condemned (rule 4), the others are free at once."""
        leased = sorted(place for place, row in self.rows() if row.state is RecordState.LEASED)
        deliveries = [row.deliveries for place in leased if (row := self.row(place)) is not None]
        claims = [Claim(*place, count) for place, count in zip(leased, deliveries, strict=True)]
        self.give_back(0, claims)
        self.producer_id = NO_PRODUCER

    def name_producer(self, producer_id: int) -> None:
        """Let dead letters be published by a producer that is new to their topic: they are numbered from 0 again."""
        self.producer_id = producer_id
        places = list(self.letters.values())
        self.letters = dict(enumerate(places))
        self.next_letter = len(places)
        for number, place in self.letters.items():
            row = self.row(place)
            assert row is not None, place
            row.number = number

    # --- inside -----------------------------------------------------------------------------------

    def _change(self, claim: Claim, event: Event, change: Callable[[Place, Row], None]) -> bool:
        """Let an event happen to a record if it is allowed, and the delivery is the one that is meant."""
        place = claim.place
        row = self.row(place)
        if (self.state_of(place), event) not in TRANSITIONS or claim.deliveries != (row.deliveries if row else 0):
            return False
        change(place, row if row is not None else self._add_row(place))
        return True

    def _progress(self, partition: int) -> Progress:
        found = self.partitions.get(partition)
        if found is None:
            found = self.partitions[partition] = Progress()
        return found

    def _add_row(self, place: Place) -> Row:
        row = Row(RecordState.UNTOUCHED, 0, 0)
        self._progress(place.partition).rows[place.offset] = row
        self.row_count += 1
        return row

    def _remove_row(self, place: Place) -> None:
        row = self.partitions[place.partition].rows.pop(place.offset, None)
        if row is None:
            return
        self.row_count -= 1
        if row.number >= 0:
            self.letters.pop(row.number, None)

    def _finish(self, place: Place) -> None:
        self._remove_row(place)
        progress = self._progress(place.partition)
        progress.done.add(place.offset, place.offset + 1)
        progress.cursor = progress.done.advanced(progress.cursor)
