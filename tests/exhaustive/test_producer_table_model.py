"""Every short history of one pipelining producer, a leader change and retries: nothing stored twice, no order lost.

The producer sends batches 0, 1, 2 in order, up to two in flight, and sends again what it has no answer to. Two
brokers hold the log; at any moment the leader may be lost, with any part of what was not committed. A table that
follows the committed end only, or one that accepts any first sequence, must fail here.
"""

from __future__ import annotations

from collections.abc import Iterator

from georelay.errors import OutOfOrderSequence
from georelay.ids import Epoch, Offset, RaftIndex
from mesh.replication.stream_header import EntryType, StreamHeader
from region.topics.producer_table_core import ProducerTable

BATCHES = 3
EVENTS_MAX = 7
PRODUCER = 7
State = tuple[tuple[int, ...], int]  # sequences in the log, how many of them are committed


def header(sequence: int, base: int) -> StreamHeader:
    return StreamHeader(
        type=EntryType.DATA,
        entry_region=1,
        record_count=1,
        epoch=Epoch(1),
        base_offset=Offset(base),
        append_us=0,
        received_ns=0,
        max_timestamp_ms=0,
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=sequence,
        payload_crc=0,
        digest=bytes(16),
    )


def table_of(log: tuple[int, ...]) -> ProducerTable:
    table = ProducerTable()
    for index, sequence in enumerate(log, 1):
        table.appended(RaftIndex(index), header(sequence, index - 1), 0)
    return table


def send(log: tuple[int, ...], committed: int, sequence: int, *, rule: str) -> tuple[int, ...]:
    """Return the log after the leader was sent `sequence`."""
    table = table_of(log[:committed] if rule == "committed end" else log)
    if rule == "any first sequence" and not log:
        return (*log, sequence)
    try:
        original = table.check(
            producer_id=PRODUCER, epoch=0, base_sequence=sequence, record_count=1, checksum=0, append_us=0
        )
    except OutOfOrderSequence:
        return log
    return log if original is not None else (*log, sequence)


def next_states(state: State, *, rule: str) -> Iterator[State]:
    log, committed = state
    for sequence in range(BATCHES):  # sent for the first time, or again
        yield send(log, committed, sequence, rule=rule), committed
    for up_to in range(committed + 1, len(log) + 1):
        yield log, up_to
    for kept in range(committed, len(log)):  # another leader, whose log is shorter
        yield log[:kept], committed


def broken_logs(rule: str) -> list[tuple[int, ...]]:
    seen: set[State] = {((), 0)}
    edge = list(seen)
    for _ in range(EVENTS_MAX):
        edge = [new for state in edge for new in set(next_states(state, rule=rule)) if new not in seen]
        seen.update(edge)
    return sorted({log for log, _ in seen if log != tuple(range(len(log)))})


def test_no_history_stores_a_batch_twice_or_out_of_order() -> None:
    assert broken_logs("log end") == []


def test_a_table_that_follows_the_committed_end_stores_duplicates() -> None:
    assert (0, 0) in broken_logs("committed end")


def test_a_table_that_takes_any_first_sequence_loses_the_batch_before_it() -> None:
    assert (1,) in broken_logs("any first sequence")
