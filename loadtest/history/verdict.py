"""The categories of what can be wrong with a history, and the verdict with its counter-examples. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from loadtest.history.operation import Kind, Operation, Outcome

EXAMPLES_MAX: Final = 3  # per category; the counts are always complete


class Category(Enum):
    """What a finding is. The text says what was promised and broken."""

    LOST_WRITE = "lost write: acknowledged, at or below the highest offset seen or at no known one, and not read"
    UNSEEN = "unseen at the end: acknowledged, above everything that the complete read returned"
    VANISHED = "vanished: was read, and is not in the complete read that came later"
    DUPLICATE = "duplicate: one value at two offsets"
    INCONSISTENT_OFFSET = "inconsistent offset: two values at one offset"
    NON_MONOTONIC_SEND = "non-monotonic send: a later record of one producer has the lower offset"
    OVERTAKEN_SEND = "overtaken send: sent after another one was acknowledged, and has the lower offset"
    NON_MONOTONIC_POLL = "non-monotonic poll: a reader went back without asking for it"
    POLL_SKIP = "poll skip: a reader jumped over a record that is there"
    ABORTED_READ = "aborted read: a value that was refused for sure was read"
    STALE_END = "stale read: an end offset asked for after an acknowledgement does not count it"
    WRONG_BYTES = "wrong bytes: a value was read that nobody sent to this key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One broken promise and the operations that prove it, in the order of invocation."""

    category: Category
    key: str
    text: str
    operations: tuple[Operation, ...]

    def describe(self) -> str:
        """Return the finding and its operations, one per line."""
        lines = "\n".join(f"      {operation.describe()}" for operation in self.operations)
        return f"    {self.key}: {self.text}\n{lines}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the checker says of one history.

    Args:
        counts: findings by category; a category without any is not there.
        findings: the first EXAMPLES_MAX of each category.
        keys, acknowledged, refused, unknown: what was produced.
        records_read: by all readers together.
    """

    counts: Mapping[Category, int]
    findings: tuple[Finding, ...]
    keys: int
    acknowledged: int
    refused: int
    unknown: int
    records_read: int

    @property
    def is_valid(self) -> bool:
        """Return whether no promise was broken."""
        return not self.counts

    def count(self, *categories: Category) -> int:
        """Return the findings of these categories together."""
        return sum(self.counts.get(category, 0) for category in categories)

    def describe(self) -> str:
        """Return the verdict for people: one line when valid, else every category with its counter-examples."""
        summary = (
            f"{self.keys} keys, {self.acknowledged:,} acknowledged, {self.refused:,} refused, "
            f"{self.unknown:,} unknown, {self.records_read:,} records read"
        )
        if self.is_valid:
            return f"valid: {summary}"
        lines = [f"NOT VALID: {summary}"]
        for category in Category:
            if count := self.counts.get(category, 0):
                lines.append(f"  {count:,} x {category.value}")
                lines += [finding.describe() for finding in self.findings if finding.category is category]
        return "\n".join(lines)


def verdict_of(operations: Sequence[Operation], findings: Iterable[Finding]) -> Verdict:
    """Count the findings and keep the first of each category."""
    counts: Counter[Category] = Counter()
    kept = []
    for finding in findings:
        counts[finding.category] += 1
        if counts[finding.category] <= EXAMPLES_MAX:
            kept.append(finding)
    outcomes = Counter(operation.outcome for operation in operations if operation.kind is Kind.PRODUCE)
    return Verdict(
        counts=dict(counts),
        findings=tuple(kept),
        keys=len({operation.key for operation in operations}),
        acknowledged=outcomes[Outcome.OK],
        refused=outcomes[Outcome.FAIL],
        unknown=outcomes[Outcome.UNKNOWN],
        records_read=sum(len(operation.records) for operation in operations),
    )
