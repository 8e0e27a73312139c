"""Ledger rows of one region's chunk: ranges that touch, of one session, second and attempt, are one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from georelay.trace.kinds import SCHEMA_VERSION, LedgerKind, TraceKind
from georelay.trace.schema import SCHEMAS
from sla.generate.batches import Batches
from sla.generate.clocks import Clocks
from sla.generate.columns import constant, named
from sla.generate.traffic import Lane
from sla.generate.world import NS_PER_S, Int64, World

KINDS = tuple(LedgerKind)
NUMBER = {kind: number for number, kind in enumerate(KINDS)}
EPOCH = 1


@dataclass(slots=True)
class LedgerRows:
    """Rows as columns, in the order in which they were made lane by lane. `kind` is an index into KINDS."""

    kind: Int64
    stream: Int64
    broker: Int64
    first: Int64
    end: Int64
    first_ns: Int64
    last_ns: Int64
    attempt: Int64
    session_epoch: Int64
    deliver_seq: Int64
    records: Int64  # of kinds that name no offsets, else 0

    @classmethod
    def concat(cls, parts: Sequence[LedgerRows]) -> LedgerRows:
        """Return all rows of some parts, in order."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _NAMES))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.kind)

    def take(self, index: npt.NDArray[np.integer] | npt.NDArray[np.bool_] | slice) -> LedgerRows:
        """Return some of them."""
        return LedgerRows(*(getattr(self, name)[index] for name in _NAMES))


_NAMES = tuple(field.name for field in fields(LedgerRows))


def sequences(lane: Lane, due: Batches) -> Int64:
    """Return the number of each batch within its session, and count the session on."""
    numbers = np.zeros(len(due), dtype=np.int64)
    for index, session in enumerate(lane.sessions):
        mine = np.flatnonzero(due.session == index)
        numbers[mine] = session.next_sequence + np.arange(len(mine))
        session.next_sequence += len(mine)
    return numbers


def of_lane(kind: LedgerKind, lane: Lane, due: Batches, shown_ns: Int64, sequence: Int64) -> LedgerRows:
    """Return the rows of one lane's chunk.

    Args:
        shown_ns: `due.at` on the clock of the lane's region. sequence: see `sequences`.
    """
    second = shown_ns // NS_PER_S
    is_new = np.full(len(due), True)
    is_new[1:] = (
        (due.first[1:] != due.end[:-1])
        | (due.session[1:] != due.session[:-1])
        | (second[1:] != second[:-1])
        | (due.attempt[1:] != due.attempt[:-1])
    )
    starts = np.flatnonzero(is_new)
    lasts = np.append(starts[1:], len(due))[: len(starts)] - 1
    brokers = np.array([session.broker for session in lane.sessions], dtype=np.int64)
    numbers = np.array([session.number for session in lane.sessions], dtype=np.int64)
    session = due.session[starts]
    return LedgerRows(
        kind=np.full(len(starts), NUMBER[kind], dtype=np.int64),
        stream=np.full(len(starts), lane.stream.index, dtype=np.int64),
        broker=brokers[session],
        first=due.first[starts],
        end=due.end[lasts],
        first_ns=shown_ns[starts],
        last_ns=shown_ns[lasts],
        attempt=due.attempt[starts],
        session_epoch=numbers[session],
        deliver_seq=sequence[starts],
        records=np.zeros(len(starts), dtype=np.int64),
    )


def single(
    world: World, clocks: Clocks, kind: LedgerKind, *, stream: int, region: int, first: int, end: int, at_ns: int
) -> LedgerRows:
    """Return one row that no batch is behind: aborted or expired."""
    shown_ns = clocks.shown_at(region, at_ns)
    broker = world.leader(region, world.streams[stream].partition)
    values = (NUMBER[kind], stream, broker, first, end, shown_ns, shown_ns, 1, 0, 0, 0)
    return LedgerRows(*(np.array([value], dtype=np.int64) for value in values))


def refused(world: World, clocks: Clocks, *, stream: int, region: int, seconds: Int64, records: Int64) -> LedgerRows:
    """Return the rows of publishes that a region refused, one per second with any.

    Args:
        seconds: since 1970, true; records: refused in each.
    """
    seconds, records = seconds[records > 0], records[records > 0]
    number = len(seconds)
    shown_ns = clocks.shown(region, seconds * NS_PER_S)
    nothing = np.zeros(number, dtype=np.int64)
    return LedgerRows(
        kind=np.full(number, NUMBER[LedgerKind.REFUSED], dtype=np.int64),
        stream=np.full(number, stream, dtype=np.int64),
        broker=np.full(number, world.leader(region, world.streams[stream].partition), dtype=np.int64),
        first=nothing,
        end=nothing,
        first_ns=shown_ns,
        last_ns=shown_ns,
        attempt=nothing + 1,
        session_epoch=nothing,
        deliver_seq=nothing,
        records=records,
    )


def table(world: World, region: int, rows: LedgerRows) -> pa.Table:
    """Return the Arrow table of rows of one broker."""
    number = len(rows)
    origins = ["", *world.regions]
    origin_of = np.array([origins.index(stream.origin) for stream in world.streams], dtype=np.int64)
    topic_of = np.array([stream.topic for stream in world.streams], dtype=np.int64)
    partition_of = np.array([stream.partition for stream in world.streams], dtype=np.int64)
    topic = topic_of[rows.stream]
    has_group = np.array([bool(group) for group in world.groups])[topic]
    is_delivered = rows.kind == NUMBER[LedgerKind.DELIVERED]
    columns = [
        named([kind.value for kind in KINDS], rows.kind),
        constant(world.regions[region], number),
        constant(str(rows.broker[0]), number),
        named(origins, origin_of[rows.stream]),
        named(world.topics, topic),
        pa.array(partition_of[rows.stream], pa.int32()),
        constant(EPOCH, number, pa.int64()),
        named(world.groups, topic, is_null=~(is_delivered & has_group)),
        pa.array(rows.first),
        pa.array(rows.end),
        pa.array(rows.first_ns),
        pa.array(rows.last_ns),
        pa.array(rows.attempt, pa.int16()),
        pa.array(rows.session_epoch),
        pa.array(rows.deliver_seq),
        constant(SCHEMA_VERSION, number, pa.int16()),
        pa.array(rows.records, mask=rows.end > rows.first),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMAS[TraceKind.LEDGER])
