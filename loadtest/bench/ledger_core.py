"""The books of a run's clients: what the producer sent and must send again, what came to the consumer.

1. A record that has no answer for a time, or was refused, is due again: the same rule for every protocol.
2. An answer counts once, however often a record was sent.
3. Records without an answer in the end are told as failed; whether they were stored is not known.
4. A consumer has read everything when every record has come; it stays a little longer, for what comes twice.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from loadtest.bench.schedule_core import read_value

REFUSED_RETRY_NS: Final = 250_000_000
STAY_NS: Final = 1_000_000_000


class Ledger:
    """Book of one run. Times are of one monotonic clock, in ns.

    Args:
        retry_ns: how long to wait for an answer before a record is due again.
    """

    def __init__(self, retry_ns: int) -> None:
        self.acknowledged: list[int] = []
        self.sent_again = 0
        self.lags_ns: list[int] = []
        self._retry_ns = retry_ns
        self._open: dict[int, int] = {}  # number: when it is due again
        self._due: deque[tuple[int, int]] = deque()  # when, number; old rows are passed over
        self._refused: deque[tuple[int, int]] = deque()

    @property
    def open(self) -> int:
        """Return how many records have no answer."""
        return len(self._open)

    def sent(self, number: int, now_ns: int) -> None:
        """Note that a record went out."""
        self._open[number] = now_ns + self._retry_ns
        self._due.append((now_ns + self._retry_ns, number))

    def answered(self, number: int) -> None:
        """Note an acknowledgement."""
        if self._open.pop(number, None) is not None:
            self.acknowledged.append(number)

    def refused(self, number: int, now_ns: int) -> None:
        """Note an answer that is no acknowledgement."""
        if number in self._open:
            self._open[number] = now_ns + REFUSED_RETRY_NS
            self._refused.append((now_ns + REFUSED_RETRY_NS, number))

    def again(self, now_ns: int) -> list[int]:
        """Return the records to be sent again now; each is told once until it is `sent` again."""
        numbers = []
        for rows in (self._due, self._refused):
            while rows and rows[0][0] <= now_ns:
                due_ns, number = rows.popleft()
                if self._open.get(number) == due_ns:
                    numbers.append(number)
        self.sent_again += len(numbers)
        return numbers


class Deliveries:
    """Book of a consumer. Times are of the producer's clock, in ns.

    Args:
        from_ns: records due before it are of another run and do not count.
        expected: how many records there will be.
        end_ns: when to wait no longer.
    """

    def __init__(self, *, from_ns: int, expected: int, end_ns: int) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self.count = 0  # each record once
        self._from_ns = from_ns
        self._expected = expected
        self._end_ns = end_ns
        self._seen: set[int] = set()

    def add(self, value: bytes, now_ns: int) -> None:
        """Note a record."""
        due_ns, number = read_value(value)
        if due_ns < self._from_ns:
            return
        self.rows.append((number, due_ns, now_ns))
        if number not in self._seen:
            self._seen.add(number)
            self.counted(1, now_ns)

    def counted(self, records: int, now_ns: int) -> None:
        """Note so many records without looking at them."""
        self.count += records
        if self.count >= self._expected:
            self._end_ns = min(self._end_ns, now_ns + STAY_NS)

    def more(self, now_ns: int) -> bool:
        """Return whether to go on reading."""
        return now_ns < self._end_ns
