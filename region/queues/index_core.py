"""What the leader of a queue knows of its open records: which are ready, which come later, who holds which lease. Pure.

It is built anew by every leader from the replicated state (QueueState) and the records that were read from the log, and
it is never the truth: after every change of a record, `refresh` derives its phase from the replicated state again.

Rule 1: what is proposed and not applied yet is TAKEN: it is offered to nobody, and `refresh` or `untake` ends that.
Rule 2: within a partition the lowest ready offset comes first; partitions take turns.
Rule 3: with order=key only the oldest open record of a key can be ready: the next one when that one is done.
Rule 4: contents of records are only a cache: what is delayed, leased or over the budget is read from the log again.
"""

from __future__ import annotations

import enum
import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from georelay.wire.records import Record
from region.queues.delivery_traces import BatchFacts
from region.queues.limits import CACHED_BYTES_PER_QUEUE_MAX, OPEN_PER_PARTITION_MAX, OPEN_PER_QUEUE_MAX
from region.queues.queue_core import Claim, Place, QueueState, RecordState

EXPIRED: Final = "expired"  # why a record is over that nothing else is wrong with


class Phase(enum.Enum):
    """Of an open record at the leader."""

    BLOCKED = "blocked"  # an older record of its key is open
    DELAYED = "delayed"
    READY = "ready"
    TAKEN = "taken"
    LEASED = "leased"
    CONDEMNED = "condemned"


@dataclass(slots=True, kw_only=True)
class OpenRecord:
    """A record that was read and is not done.

    Args:
        key: with order=key, None for a record without one.
        available_us: first delivery not before; expires_us: no delivery from then on, 0 for never.
        size_bytes: of key, value and headers. content: None when it must be read again.
        refused: why it is handed to nobody, "" for one that is.
    """

    place: Place
    key: bytes | None
    batch: BatchFacts
    available_us: int
    expires_us: int
    size_bytes: int
    content: Record | None
    refused: str = ""
    phase: Phase = Phase.TAKEN

    @property
    def append_us(self) -> int:
        """Return when it was appended at its home, us since 1970."""
        return self.batch.append_us


class _Shelf:
    """Ready offsets of one partition: those that were delivered before and those that never were."""

    __slots__ = ("again", "new")

    def __init__(self) -> None:
        self.again: list[int] = []
        self.new: list[int] = []


class QueueIndex:
    """The open records of one queue at its leader."""

    def __init__(self, queue: QueueState) -> None:
        self._queue = queue
        self._open: dict[int, dict[int, OpenRecord]] = {}  # by partition, ascending by offset
        self._shelves: dict[int, _Shelf] = {}
        self._turns: deque[int] = deque()  # partitions that may have something ready
        self._delayed: list[tuple[int, Place]] = []
        self._expiring: list[tuple[int, Place]] = []
        self._leases: list[tuple[int, Claim]] = []
        self._holders: dict[Place, str] = {}
        self._held: dict[str, set[Place]] = {}
        self._chains: dict[tuple[int, bytes], deque[int]] = {}
        self._phases = dict.fromkeys(Phase, 0)
        self.open_count = 0
        self.cached_bytes = 0
        for place, _ in queue.rows():
            self._follow_lease(place)

    # --- looking ----------------------------------------------------------------------------------

    def count(self, phase: Phase) -> int:
        """Return how many records that were read are in a phase."""
        return self._phases[phase]

    @property
    def lease_count(self) -> int:
        """Return how many leases are held, also of records that this leader has not read."""
        return len(self._holders)

    def find(self, place: Place) -> OpenRecord | None:
        """Return an open record."""
        return self._open.get(place.partition, {}).get(place.offset)

    def open_in(self, partition: int) -> int:
        """Return how many records of a partition are open."""
        return len(self._open.get(partition, ()))

    def held_by(self, consumer: str) -> set[Place]:
        """Return the records that a consumer has leases of."""
        return self._held.get(consumer, set())

    def holders(self) -> Iterator[str]:
        """Return the consumers that hold leases."""
        return iter(self._held)

    def room(self, partition: int) -> int:
        """Return how many more records of a partition may be taken in."""
        if self.cached_bytes >= CACHED_BYTES_PER_QUEUE_MAX and self._phases[Phase.READY]:
            return 0
        return max(0, min(OPEN_PER_QUEUE_MAX - self.open_count, OPEN_PER_PARTITION_MAX - self.open_in(partition)))

    def oldest_append_us(self) -> int | None:
        """Return the append time of the oldest open record."""
        firsts = [next(iter(records.values())).append_us for records in self._open.values() if records]
        return min(firsts, default=None)

    def next_due_us(self) -> int | None:
        """Return when `due` has something to do."""
        heads = [heap[0][0] for heap in (self._delayed, self._expiring, self._leases) if heap]
        return min(heads, default=None)

    # --- following --------------------------------------------------------------------------------

    def add(self, record: OpenRecord, now_us: int) -> None:
        """Enter a record that was read; it must be the highest of its partition and not done."""
        place = record.place
        self._open.setdefault(place.partition, {})[place.offset] = record
        self.open_count += 1
        self._phases[record.phase] += 1
        if record.content is not None:
            self.cached_bytes += record.size_bytes
        if record.key is not None:
            self._chains.setdefault((place.partition, record.key), deque()).append(place.offset)
        self.refresh(place, now_us)

    def refresh(self, place: Place, now_us: int) -> None:
        """Derive what is known of a record from the replicated state again."""
        self._follow_lease(place)
        record = self.find(place)
        if record is None:
            return
        match self._queue.state_of(place):
            case RecordState.DONE:
                self._close(record, now_us)
            case RecordState.LEASED:
                self._set_phase(record, Phase.LEASED)
            case RecordState.CONDEMNED:
                self._set_phase(record, Phase.CONDEMNED)
            case RecordState.WAITING | RecordState.UNTOUCHED:
                self._schedule(record, now_us)

    def refresh_partition(self, partition: int, now_us: int) -> None:
        """Do the same for all records of one partition."""
        for place in [place for place in self._holders if place.partition == partition]:
            self.refresh(place, now_us)
        for offset in list(self._open.get(partition, ())):
            self.refresh(Place(partition, offset), now_us)

    def _follow_lease(self, place: Place) -> None:
        holder = self._holders.pop(place, None)
        if holder is not None:
            held = self._held[holder]
            held.discard(place)
            if not held:
                del self._held[holder]
        row = self._queue.row(place)
        if row is None or row.state is not RecordState.LEASED:
            return
        self._holders[place] = row.consumer
        self._held.setdefault(row.consumer, set()).add(place)
        heapq.heappush(self._leases, (row.due_us, Claim(*place, row.deliveries)))

    def _schedule(self, record: OpenRecord, now_us: int) -> None:
        place = record.place
        if record.expires_us:
            heapq.heappush(self._expiring, (record.expires_us, place))
        if self._is_blocked(record):
            self._set_phase(record, Phase.BLOCKED)
            return
        row = self._queue.row(place)
        due_us = record.available_us if row is None else row.due_us
        if due_us > now_us:
            self._set_phase(record, Phase.DELAYED)
            heapq.heappush(self._delayed, (due_us, place))
            return
        self._set_phase(record, Phase.READY)
        shelf = self._shelves.get(place.partition)
        if shelf is None:
            shelf = self._shelves[place.partition] = _Shelf()
            self._turns.append(place.partition)
        heapq.heappush(shelf.new if row is None else shelf.again, place.offset)

    def _is_blocked(self, record: OpenRecord) -> bool:
        if record.key is None:
            return False
        return self._chains[record.place.partition, record.key][0] != record.place.offset

    def _set_phase(self, record: OpenRecord, phase: Phase) -> None:
        self._phases[record.phase] -= 1
        self._phases[phase] += 1
        record.phase = phase
        if phase in (Phase.DELAYED, Phase.LEASED, Phase.CONDEMNED):
            self.forget_content(record)

    def forget_from(self, partition: int, start: int) -> None:
        """Let go of what was read at or above an offset: other records will be read there."""
        records = self._open.get(partition, {})
        gone = [offset for offset in records if offset >= start]
        if not gone:
            return
        for offset in gone:
            record = records.pop(offset)
            self.forget_content(record)
            self._phases[record.phase] -= 1
            self.open_count -= 1
        for chain in [chain for chain in self._chains if chain[0] == partition]:
            offsets = deque(offset for offset in self._chains.pop(chain) if offset < start)
            if offsets:
                self._chains[chain] = offsets
        for heap in (self._delayed, self._expiring):
            heap[:] = [row for row in heap if row[1].partition != partition or row[1].offset < start]
            heapq.heapify(heap)
        shelf = self._shelves.get(partition)
        for offsets_ready in () if shelf is None else (shelf.again, shelf.new):
            offsets_ready[:] = [offset for offset in offsets_ready if offset < start]
            heapq.heapify(offsets_ready)

    def forget_content(self, record: OpenRecord) -> None:
        """Let the content go."""
        if record.content is not None:
            self.cached_bytes -= record.size_bytes
            record.content = None

    def _close(self, record: OpenRecord, now_us: int) -> None:
        place = record.place
        self.forget_content(record)
        self._phases[record.phase] -= 1
        del self._open[place.partition][place.offset]
        self.open_count -= 1
        if record.key is None:
            return
        chain = self._chains[place.partition, record.key]
        was_first = chain[0] == place.offset
        while chain and chain[0] not in self._open[place.partition]:
            chain.popleft()
        if not chain:
            del self._chains[place.partition, record.key]
        elif was_first:
            self.refresh(Place(place.partition, chain[0]), now_us)

    # --- handing out ------------------------------------------------------------------------------

    def take(self, now_us: int, *, only_again: bool = False) -> OpenRecord | None:
        """Take the next ready record out; None when there is none.

        Args:
            only_again: only one that was delivered before (the state has no room for more rows).
        """
        for _ in range(len(self._turns)):
            partition = self._turns[0]
            self._turns.rotate(-1)
            record = self._take_from(partition, now_us, only_again=only_again)
            if record is not None:
                return record
            shelf = self._shelves[partition]
            if not shelf.again and not shelf.new:
                del self._shelves[partition]
                self._turns.pop()
        return None

    def _take_from(self, partition: int, now_us: int, *, only_again: bool) -> OpenRecord | None:
        shelf = self._shelves[partition]
        while shelf.again or (shelf.new and not only_again):
            pick_again = bool(shelf.again) and (only_again or not shelf.new or shelf.again[0] < shelf.new[0])
            offset = heapq.heappop(shelf.again if pick_again else shelf.new)
            record = self.find(Place(partition, offset))
            if record is None or record.phase is not Phase.READY:
                continue  # it was on the shelf for something that is over
            if record.expires_us and record.expires_us <= now_us:
                continue  # `due` gives it out
            self._set_phase(record, Phase.TAKEN)
            return record
        return None

    def untake(self, place: Place, now_us: int) -> None:
        """Put a record back whose change was not applied."""
        record = self.find(place)
        if record is not None and record.phase is Phase.TAKEN:
            self.refresh(place, now_us)

    def by_reason(self, claims: Iterable[Claim]) -> dict[str, list[Claim]]:
        """Return why records are over, and which."""
        found: dict[str, list[Claim]] = {}
        for claim in claims:
            record = self.find(claim.place)
            found.setdefault((record.refused if record else "") or EXPIRED, []).append(claim)
        return found

    def due(self, now_us: int, *, new_max: int | None = None) -> tuple[list[Claim], list[Claim]]:
        """Return leases that are over, and records that expired; delayed records become ready.

        Args:
            new_max: of the expired ones that have no row yet; the others wait. None: all.

        The expired ones are TAKEN. Leases are returned once; `refresh` enters them again where ending them failed.
        """
        self._end_delays(now_us)
        return self._pop_leases(now_us), self._pop_expired(now_us, new_max)

    def _end_delays(self, now_us: int) -> None:
        while self._delayed and self._delayed[0][0] <= now_us:
            _, place = heapq.heappop(self._delayed)
            record = self.find(place)
            if record is not None and record.phase is Phase.DELAYED:
                self._schedule(record, now_us)

    def _pop_leases(self, now_us: int) -> list[Claim]:
        over: dict[Claim, None] = {}
        while self._leases and self._leases[0][0] <= now_us:
            _, claim = heapq.heappop(self._leases)
            row = self._queue.row(claim.place)
            if row is None or row.state is not RecordState.LEASED or row.deliveries != claim.deliveries:
                continue
            if row.due_us <= now_us:
                over[claim] = None
        return list(over)

    def _pop_expired(self, now_us: int, new_max: int | None) -> list[Claim]:
        expired: list[Claim] = []
        new = 0
        while self._expiring and self._expiring[0][0] <= now_us:
            _, place = self._expiring[0]
            record, row = self.find(place), self._queue.row(place)
            is_open = record is not None and record.phase in (Phase.BLOCKED, Phase.DELAYED, Phase.READY)
            if is_open and row is None and new_max is not None and new >= new_max:
                break
            heapq.heappop(self._expiring)
            if record is None or not is_open:
                continue
            new += row is None
            self._set_phase(record, Phase.TAKEN)
            expired.append(Claim(*place, row.deliveries if row else 0))
        return expired
