"""The judge of a queue campaign: what consumers wrote down against what was published. Pure.

Rule 1: every good record is acknowledged once: one OK, or no answer (who asked was killed) and no further delivery.
Rule 2: after an OK nobody gets the record again.
Rule 3: every poison record is in the dead-letter topic, and nothing else is.
Rule 4: a record that was not settled comes back not before its lease is over; a rejected one not before its delay. A
        reject that came too late rejects nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from loadtest.load.queue_history import QueueEvent

SLACK_MS: Final = 2.0  # clocks are told in whole ms


@dataclass(slots=True, kw_only=True)
class QueueVerdict:
    """Counts of records, and how late records came back, in ms."""

    redelivered: int = 0
    acknowledged_once: int = 0
    answer_lost: int = 0  # acknowledged by somebody who never read the answer
    never_acknowledged: list[str] = field(default_factory=list)
    acknowledged_twice: list[str] = field(default_factory=list)
    delivered_after: list[str] = field(default_factory=list)
    dead_letters: int = 0
    dead_letters_missing: list[str] = field(default_factory=list)
    dead_letters_twice: list[str] = field(default_factory=list)
    dead_letters_wrong: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    after_lease_ms: list[float] = field(default_factory=list)
    after_reject_ms: list[float] = field(default_factory=list)

    def wrong(self) -> dict[str, list[str]]:
        """Return the records by what is wrong with them."""
        return {
            "never acknowledged": self.never_acknowledged,
            "acknowledged twice": self.acknowledged_twice,
            "delivered after their acknowledge": self.delivered_after,
            "no dead letter": self.dead_letters_missing,
            "a dead letter twice": self.dead_letters_twice,
            "a dead letter for nothing": self.dead_letters_wrong,
            "too early": self.early,
        }


def judge(
    *,
    good: Iterable[str],
    poison: Iterable[str],
    events: Iterable[QueueEvent],
    dead_letters: Sequence[str],
) -> QueueVerdict:
    """Return the verdict; `dead_letters`: records that are in the dead-letter topic."""
    good, poison = set(good), set(poison)
    verdict = QueueVerdict()
    by_record: dict[str, list[QueueEvent]] = {}
    for event in events:
        by_record.setdefault(event.record, []).append(event)
    for record in sorted(good):
        _judge_good(verdict, record, by_record.get(record, []))
    for record, rows in by_record.items():
        _judge_times(verdict, record, rows)
    counts = Counter(dead_letters)
    verdict.dead_letters = len(dead_letters)
    verdict.dead_letters_missing = sorted(poison - counts.keys())
    verdict.dead_letters_wrong = sorted(counts.keys() - poison)
    verdict.dead_letters_twice = sorted(record for record, count in counts.items() if count > 1)
    return verdict


def _judge_good(verdict: QueueVerdict, record: str, rows: Sequence[QueueEvent]) -> None:
    acked = [row.delivery for row in rows if row.kind == "acked"]
    last = max((row.delivery for row in rows if row.kind == "got"), default=0)
    if len(acked) == 1:
        verdict.acknowledged_once += 1
        if last > acked[0]:
            verdict.delivered_after.append(record)
    elif acked:
        verdict.acknowledged_twice.append(record)
    elif any(row.kind == "acking" and row.delivery == last for row in rows):
        verdict.answer_lost += 1
    else:
        verdict.never_acknowledged.append(record)


def _judge_times(verdict: QueueVerdict, record: str, rows: Sequence[QueueEvent]) -> None:
    by_kind: dict[str, dict[int, QueueEvent]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, {})[row.delivery] = row
    got, asked = by_kind.get("got", {}), by_kind.get("rejecting", {})
    verdict.redelivered += sum(delivery > 1 for delivery in got)
    for delivery, row in got.items():
        before = got.get(delivery - 1)
        if before is None:
            continue  # it was on its way to a consumer that was killed
        reject = asked.get(delivery - 1) if delivery - 1 not in by_kind.get("over", {}) else None
        due_ms = before.until_ms if reject is None else reject.at_ms + reject.delay_ms
        if delivery - 1 not in by_kind.get("rejected", {}):  # nobody knows whether it was heard before the lease ended
            due_ms = min(due_ms, before.until_ms)
        late_ms = row.at_ms - due_ms
        if late_ms < -SLACK_MS:
            verdict.early.append(record)
        if reject is None:
            verdict.after_lease_ms.append(late_ms)
        elif delivery - 1 in by_kind.get("rejected", {}):  # else the reject may have come too late, or never
            verdict.after_reject_ms.append(late_ms)
