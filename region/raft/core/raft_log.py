"""The log as the core sees it: terms of all entries, and the newest entries themselves, in memory.

Invariants:
1 first_index <= last_index + 1, and the tail holds the entries [tail_first, last_index] without a gap.
  Terms are known from first_index - 1 on, and of nothing below it.
2 stable_index <= last_index: up to it everything is durable on this broker and equals the memory.
3 What is not durable is in the tail: eviction stops at stable_index.
4 Terms never decrease along the log; they are kept as runs (start index, term), so a log of a million entries
  and three leaders needs three pairs.
5 log_epoch grows at every truncation and reset: with it a late "durable" for a replaced entry is told from a true one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Generic

from georelay.ids import Term
from region.raft.core.roles import InvariantViolated
from region.raft.core.types import NO_TERM, PENDING, E, Pending


class RaftLog(Generic[E]):
    """In-memory view of one group's log.

    Args:
        first_index: first entry that is still stored.
        term_runs: (start index, term) with both growing; the first run may start below first_index.
        last_index: 0, or first_index - 1, when empty.
        tail: the last entries, ending at last_index; may be empty or all of them.

    All of it is taken to be durable. Raises ValueError when these disagree.
    """

    __slots__ = (
        "_ends",
        "_run_starts",
        "_run_terms",
        "_tail",
        "_truncated_from",
        "_unwritten_from",
        "first_index",
        "last_index",
        "last_term",
        "log_epoch",
        "stable_index",
        "tail_first",
    )

    def __init__(
        self,
        *,
        first_index: int = 1,
        term_runs: Sequence[tuple[int, Term]] = (),
        last_index: int = 0,
        tail: Sequence[E] = (),
    ) -> None:
        self.first_index = first_index
        self.last_index = max(last_index, first_index - 1)
        self._run_starts = [start for start, _ in term_runs]
        self._run_terms = [term for _, term in term_runs]
        self.last_term = self._run_terms[-1] if term_runs else NO_TERM
        self._tail: list[E] = list(tail)
        self._ends: list[
            int
        ] = []  # bytes of all entries ever in the tail, up to and including each; the first is the base
        self._measure()
        self.tail_first = self.last_index + 1 - len(self._tail)
        self.stable_index = self.last_index
        self.log_epoch = 0
        self._unwritten_from = self.last_index + 1
        self._truncated_from: int | None = None
        self._check_recovered()
        self._forget_terms()

    def _measure(self) -> None:
        end = 0
        self._ends = [0]
        for entry in self._tail:
            end += entry.size
            self._ends.append(end)

    def _check_recovered(self) -> None:
        pairs = list(zip(self._run_starts, self._run_terms, strict=True))
        rising = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))
        covered = not pairs or pairs[-1][0] <= self.last_index
        if not rising or not covered or (self.last_index >= self.first_index and not pairs):
            raise ValueError(f"term runs {pairs} do not describe a log [{self.first_index}, {self.last_index}]")
        if self.tail_first < self.first_index:
            raise ValueError(f"a tail from {self.tail_first} starts below the log's {self.first_index}")
        for position, entry in enumerate(self._tail):
            if entry.index != self.tail_first + position or entry.term != self.term(entry.index):
                raise ValueError(f"tail entry {entry.index} of term {entry.term} does not fit the term runs {pairs}")

    def _forget_terms(self) -> None:
        """Forget the terms below first_index - 1."""
        before = self.first_index - 1
        runs = bisect_right(self._run_starts, before)
        if runs:
            del self._run_starts[: runs - 1]
            del self._run_terms[: runs - 1]
            self._run_starts[0] = before

    # Reading

    @property
    def tail_bytes(self) -> int:
        """Return the bytes of the entries in memory."""
        return self._ends[-1] - self._ends[0]

    def last_entry(self) -> E | None:
        """Return the last entry, None when the log is empty or its end is not in memory."""
        return self._tail[-1] if self._tail else None

    def term(self, index: int) -> Term | None:
        """Return the term of `index`; None outside [first_index - 1, last_index] or when it is not known."""
        if index > self.last_index:
            return None
        starts = self._run_starts
        if starts and index >= starts[-1]:
            return self.last_term  # nearly every call
        if index == 0 and self.first_index == 1:
            return NO_TERM
        run = bisect_right(starts, index)
        return self._run_terms[run - 1] if run else None

    def bytes_after(self, index: int) -> int:
        """Return the bytes of the in-memory entries above `index`."""
        position = max(index + 1 - self.tail_first, 0)
        return self._ends[-1] - self._ends[position]

    def entries(self, lo: int, hi: int, bytes_max: int) -> list[E] | Pending:
        """Return entries [lo, hi) up to `bytes_max`, the first always, or PENDING when `lo` was evicted.

        Raises:
            InvariantViolated: the range is not inside the log.
        """
        if lo < self.tail_first and self.first_index <= lo < hi <= self.last_index + 1:
            return PENDING
        start = lo - self.tail_first
        stop = hi - self.tail_first
        if not 0 <= start < stop <= len(self._tail):
            raise InvariantViolated(f"entries [{lo}, {hi}) of a log [{self.first_index}, {self.last_index}]")
        budget = self._ends[start] + bytes_max
        if self._ends[stop] > budget:
            stop = max(bisect_right(self._ends, budget, start, stop) - 1, start + 1)
        return self._tail[start:stop]

    def cut(self, lo: int, hi: int, bytes_max: int) -> int:
        """Return the end of the longest [lo, end) within [lo, hi) whose entries in memory take `bytes_max`.

        Entries that were evicted do not count; at least one entry is taken.
        """
        start = max(lo, self.tail_first) - self.tail_first
        stop = hi - self.tail_first
        if stop <= start or self._ends[stop] <= self._ends[start] + bytes_max:
            return hi
        stop = bisect_right(self._ends, self._ends[start] + bytes_max, start, stop) - 1
        return max(self.tail_first + stop, lo + 1)

    def held(self, entries: Sequence[E]) -> int:
        """Return how many of the leading `entries` this log holds already, with the same terms."""
        for count, entry in enumerate(entries):
            if entry.index >= self.first_index and self.term(entry.index) != entry.term:
                return count
        return len(entries)

    def floor(self, index: int, term: Term) -> int:
        """Return the largest index <= `index` whose term is <= `term` (first_index - 1 when there is none).

        Whole terms are skipped at once: this is what makes a conflict cost one round trip per term at most.
        """
        runs = bisect_right(self._run_terms, term)
        end = self._run_starts[runs] - 1 if runs < len(self._run_starts) else self.last_index
        return max(min(index, end), self.first_index - 1)

    # Changing

    def append(self, entries: Sequence[E]) -> None:
        """Append `entries`.

        Raises:
            InvariantViolated: they do not follow the last one, or a term decreases.
        """
        index = self.last_index
        term = self.last_term
        end = self._ends[-1]
        for entry in entries:
            index += 1
            if entry.index != index or entry.term < term:
                raise InvariantViolated(
                    f"entry {entry.index} of term {entry.term} cannot follow {index - 1} of term {term}"
                )
            if entry.term != term:
                term = entry.term
                self._run_starts.append(index)
                self._run_terms.append(term)
            end += entry.size
            self._tail.append(entry)
            self._ends.append(end)
        self.last_index = index
        self.last_term = term

    def truncate_from(self, index: int) -> None:
        """Remove `index` and everything after it. The caller has checked that nothing of it is committed."""
        if not self.first_index <= index <= self.last_index:
            raise InvariantViolated(f"truncating from {index} a log [{self.first_index}, {self.last_index}]")
        if index < self._unwritten_from:  # part of it is on disk, or on its way there
            self._truncated_from = index if self._truncated_from is None else min(index, self._truncated_from)
            self._unwritten_from = index
        keep = max(index - self.tail_first, 0)
        del self._tail[keep:]
        del self._ends[keep + 1 :]
        self.tail_first = min(self.tail_first, index)
        while self._run_starts and self._run_starts[-1] >= index:
            self._run_starts.pop()
            self._run_terms.pop()
        self.last_index = index - 1
        self.last_term = self._run_terms[-1] if self._run_terms else NO_TERM
        self.stable_index = min(self.stable_index, self.last_index)
        self.log_epoch += 1

    def reset(self, index: int, term: Term) -> None:
        """Drop everything and go on after (index, term), of which nothing is durable before the next write."""
        self.stable_index = 0
        self.log_epoch += 1
        self._truncated_from = None
        self.first_index = index + 1
        self._run_starts, self._run_terms = [index], [term]
        self._end_at(index)

    def adopt(self, last_index: int, term_runs: Sequence[tuple[int, Term]]) -> None:
        """Take over stored, durable entries that follow the last one and are in no memory, up to `last_index`.

        Raises:
            InvariantViolated: the log's own end is not durable, or the runs do not continue it.
        """
        runs = list(term_runs)
        starts = [start for start, _ in runs]
        rising = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(runs))
        if (
            self.unwritten
            or self.stable_index != self.last_index
            or not runs
            or starts[0] != self.last_index + 1
            or starts[-1] > last_index
            or not rising
            or runs[0][1] < self.last_term
        ):
            raise InvariantViolated(
                f"stored entries {runs} up to {last_index} do not follow {self.last_index} of term {self.last_term},"
                f" durable up to {self.stable_index}"
            )
        if runs[0][1] == self.last_term:
            del runs[0]
        self._run_starts += [start for start, _ in runs]
        self._run_terms += [term for _, term in runs]
        self._end_at(last_index)
        self.stable_index = last_index

    def _end_at(self, index: int) -> None:
        """End at `index` with an empty tail."""
        self._tail = []
        self._ends = [0]
        self.last_index = index
        self.last_term = self._run_terms[-1]
        self.tail_first = self._unwritten_from = index + 1

    def advance_start(self, first_index: int) -> None:
        """Drop everything below `first_index`, which stays; storage drops it as well. A lower one changes nothing.

        Raises:
            InvariantViolated: `first_index` is not durable, or beyond the log.
        """
        if first_index > self.stable_index:
            raise InvariantViolated(f"the log cannot start at {first_index}, durable up to {self.stable_index}")
        if first_index > self.first_index:
            self.evict(first_index - 1)
            self.first_index = first_index
            self._forget_terms()

    def evict(self, to_index: int) -> int:
        """Drop entries up to `to_index` from memory, never one that is not durable, nor the last one.

        Returns:
            The first index that is still in memory.
        """
        count = min(to_index, self.stable_index, self.last_index - 1) + 1 - self.tail_first
        if count > 0:
            del self._tail[:count]
            del self._ends[:count]
            self.tail_first += count
        return self.tail_first

    def trim(self, bytes_max: int, up_to: int) -> int:
        """Evict the oldest entries, at most up to index `up_to`, until the tail takes `bytes_max` or less.

        Returns:
            The first index that is still in memory.
        """
        excess = self.tail_bytes - bytes_max
        if excess <= 0:
            return self.tail_first
        position = bisect_right(self._ends, self._ends[0] + excess - 1)
        return self.evict(min(self.tail_first + position - 1, up_to))

    # Storage

    @property
    def unwritten(self) -> bool:
        """Return whether storage has to be told anything."""
        return self._unwritten_from <= self.last_index or self._truncated_from is not None

    def take_unwritten(self) -> tuple[int | None, list[E]]:
        """Hand out what storage has not been told: an index to truncate from, and the entries to append."""
        truncated_from = self._truncated_from
        entries = self._tail[self._unwritten_from - self.tail_first :]
        self._truncated_from = None
        self._unwritten_from = self.last_index + 1
        return truncated_from, entries

    def made_stable(self, index: int) -> None:
        """Note that everything up to `index` is durable."""
        if index > self.last_index:
            raise InvariantViolated(f"index {index} became durable in a log that ends at {self.last_index}")
        self.stable_index = max(self.stable_index, index)
