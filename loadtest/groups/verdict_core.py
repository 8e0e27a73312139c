"""Was every record processed, none by two members of one generation, and only uncommitted ones again? Pure.

The coordinator's own log is the witness: it has every generation with its assignments and every commit, in order.

Rule 1: every record of the topic is processed at least once, but for one record of each client that is known to drop
        one when it is told to end: the one behind the last that it processed of a partition.
Rule 2: in every generation each partition is assigned to one member at most: cooperative assignors leave out for one
        generation what moves. None is assigned that the topic does not have.
Rule 3: a record is processed only by a member that was assigned its partition in some generation.
Rule 4: in a generation nobody processes what was committed before it began: a duplicate is an uncommitted record.
Rule 5: every process that was started to be a member became one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Place: TypeAlias = tuple[int, int]  # partition, offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A member holds these partitions from now on."""

    at_ms: int
    member: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A member processed these records. `at_ms` 0: its client does not say when."""

    at_ms: int
    member: str
    partition: int
    offsets: tuple[int, ...]


Event: TypeAlias = Assigned | Read


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A generation as the coordinator stored it, with where the group stood when it began."""

    number: int
    stored_ms: int
    assigned: Mapping[str, frozenset[int]]  # by member
    committed: Mapping[int, int]  # next offset by partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Counts; `problems` are the first of each kind, as text."""

    records: int
    processed: int
    missing: int
    dropped: int
    duplicates: int
    generations: int
    problems: tuple[str, ...] = field(default=())

    @property
    def is_exact(self) -> bool:
        """Return whether all rules hold."""
        return not self.missing and not self.problems


def judge(
    *,
    stored: Iterable[Place],
    events_by_process: Mapping[str, Sequence[Event]],
    generations: Sequence[Generation],
    partitions: int,
    droppers: Iterable[str] = (),
) -> Verdict:
    """Compare what members did with what the coordinator decided.

    Args:
        stored: every record of the topic.
        droppers: processes that were told to end and may each have dropped a record.
    """
    wanted = set(stored)
    reads = [event for found in events_by_process.values() for event in found if isinstance(event, Read)]
    times = Counter((read.partition, offset) for read in reads for offset in read.offsets)
    missing, dropped = unprocessed(wanted, events_by_process, droppers)
    first = sorted(missing)[:3]
    problems = [f"partition {partition} offset {offset} was processed by nobody" for partition, offset in first]
    problems += [text for generation in generations for text in _badly_assigned(generation, partitions)][:3]
    problems += [text for read in reads for text in _wrongly_read(read, generations)][:3]
    problems += [
        f"{name} never became a member"
        for name, found in events_by_process.items()
        if not any(isinstance(event, Assigned) for event in found)
    ]
    return Verdict(
        records=len(wanted),
        processed=len(times),
        missing=len(missing),
        dropped=len(dropped),
        duplicates=times.total() - len(times),
        generations=sum(bool(generation.assigned) for generation in generations),
        problems=tuple(problems),
    )


def unprocessed(
    stored: Iterable[Place], events_by_process: Mapping[str, Sequence[Event]], droppers: Iterable[str]
) -> tuple[set[Place], set[Place]]:
    """Return what nobody has processed: what is missing, and what droppers may have dropped (see `judge`)."""
    reads = [event for found in events_by_process.values() for event in found if isinstance(event, Read)]
    left = set(stored) - {(read.partition, offset) for read in reads for offset in read.offsets}
    behind = [_behind(events_by_process[name]) & left for name in droppers]
    dropped = {min(places) for places in behind if places}
    return left - dropped, dropped


def _behind(events: Sequence[Event]) -> set[Place]:
    """Return the places behind the last record that a process processed of each partition."""
    last = {event.partition: max(event.offsets) for event in events if isinstance(event, Read)}
    return {(partition, offset + 1) for partition, offset in last.items()}


def _badly_assigned(generation: Generation, partitions: int) -> list[str]:
    if not generation.assigned:
        return []
    given = [partition for held in generation.assigned.values() for partition in held]
    twice = sorted({partition for partition in given if given.count(partition) > 1})
    problems = []
    if twice:
        problems.append(f"generation {generation.number}: partitions {twice} have two members")
    if not set(given) <= set(range(partitions)):
        problems.append(f"generation {generation.number}: partitions {sorted(set(given))} of {partitions}")
    return problems


def _wrongly_read(read: Read, generations: Sequence[Generation]) -> list[str]:
    held = [
        generation
        for generation in generations
        if read.partition in generation.assigned.get(read.member, frozenset())
        and (generation.stored_ms <= read.at_ms or not read.at_ms)
    ]
    what = f"{read.member} processed partition {read.partition} offset {min(read.offsets)}"
    if not held:
        return [f"{what} without having been assigned it"]
    generation = held[-1] if read.at_ms else held[0]
    committed = generation.committed.get(read.partition, 0)
    if min(read.offsets) < committed:
        return [f"{what} in generation {generation.number}, which began at {committed}"]
    return []
