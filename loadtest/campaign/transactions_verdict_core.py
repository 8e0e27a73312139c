"""What came of transactions: all of each or nothing of it, and what was told stays true. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Name = tuple[str, int]  # (writer, number of its transaction)


class Fate(enum.Enum):
    """What a writer was told of one of its transactions."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"  # it crashed, or never heard: everything or nothing is there


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsVerdict:
    """What a reader of committed records found.

    Args:
        committed, aborted, unknown: transactions by what their writers were told.
        resolved: of the unknown ones, how many are there.
        torn: there in some topics and not in all. lost: told committed, not there. raised: told aborted, and there.
        repeated: records that are there more than once. foreign: records of no transaction.
    """

    committed: int
    aborted: int
    unknown: int
    resolved: int
    torn: tuple[Name, ...] = ()
    lost: tuple[Name, ...] = ()
    raised: tuple[Name, ...] = ()
    repeated: int = 0
    foreign: int = 0

    @property
    def is_exact(self) -> bool:
        """Return whether nothing is wrong."""
        return not (self.torn or self.lost or self.raised or self.repeated or self.foreign)


def judge_transactions(
    fates: Mapping[Name, Fate], found: Mapping[str, Sequence[Name]], *, topics: Sequence[str]
) -> TransactionsVerdict:
    """Return the verdict.

    Args:
        fates: of every transaction that was begun. found: names by topic, as read; each transaction writes one record
            to every one of `topics`.
    """
    counts = {topic: Counter(found.get(topic, ())) for topic in topics}
    seen: set[Name] = {name for counter in counts.values() for name in counter}
    whole = {name for name in seen if all(counts[topic][name] for topic in topics)}
    by_fate = Counter(fates.values())
    return TransactionsVerdict(
        committed=by_fate[Fate.COMMITTED],
        aborted=by_fate[Fate.ABORTED],
        unknown=by_fate[Fate.UNKNOWN],
        resolved=sum(fates.get(name) is Fate.UNKNOWN for name in whole),
        torn=tuple(sorted(seen - whole)),
        lost=tuple(sorted(name for name, fate in fates.items() if fate is Fate.COMMITTED and name not in whole)),
        raised=tuple(sorted(name for name in seen if fates.get(name) is Fate.ABORTED)),
        repeated=sum(count - 1 for counter in counts.values() for count in counter.values() if count > 1),
        foreign=sum(name not in fates for name in seen),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineVerdict:
    """What came out of a pipeline that reads, changes and writes: each input once."""

    inputs: int
    outputs: int
    missing: int
    repeated: int
    foreign: int

    @property
    def is_exact(self) -> bool:
        """Return whether every input came out once."""
        return not (self.missing or self.repeated or self.foreign)


def judge_pipeline(inputs: Iterable[int], outputs: Iterable[int]) -> PipelineVerdict:
    """Return the verdict over the numbers that went in and came out."""
    wanted, counts = set(inputs), Counter(outputs)
    return PipelineVerdict(
        inputs=len(wanted),
        outputs=sum(counts.values()),
        missing=len(wanted - counts.keys()),
        repeated=sum(count - 1 for count in counts.values()),
        foreign=len(counts.keys() - wanted),
    )


@dataclass(slots=True)
class Journal:
    """What one writer wrote down, line by line: "begin N", "committed N", "aborted N"."""

    fates: dict[int, Fate] = field(default_factory=dict)

    def add(self, line: str) -> None:
        """Follow one line; a last one that the crash tore is ignored. A word that is none means nothing."""
        word, _, number = line.partition(" ")
        if not number.isdigit():
            return
        if word == "begin":
            self.fates[int(number)] = Fate.UNKNOWN
        elif word in (Fate.COMMITTED.value, Fate.ABORTED.value):
            self.fates[int(number)] = Fate(word)

    @property
    def following(self) -> int:
        """Return the number of the next transaction."""
        return max(self.fates, default=-1) + 1


def read_journal(text: str) -> Journal:
    """Return what a journal says; only whole lines count."""
    journal = Journal()
    for line in text.split("\n")[:-1]:
        journal.add(line)
    return journal
