"""Outcomes of requests per second, from counters that only grow: pure, and nothing on the path of a request.

Rule 1: `ok`, `client_error`, `server_error` and `timeout` add up to `attempts`. What is under way is counted when it
        is answered.
Rule 2: a redirection (another broker leads, another region is home) is nobody's error and no attempt: a client
        follows it and asks again. A refusal for quota or rights is the client's.
Rule 3: a counter that went back (a listener began anew) counts from zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from georelay.trace.kinds import Operation
from mesh.tracing.latency_cells_core import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts since the start. `offered` counts records, the others requests."""

    ok: int = 0
    client_error: int = 0
    server_error: int = 0
    timeout: int = 0
    offered: int = 0

    def __add__(self, other: Totals) -> Totals:
        """Return the sums."""
        return Totals(**{name: getattr(self, name) + getattr(other, name) for name in _NAMES})

    def since(self, earlier: Totals) -> Totals:
        """Return what came since `earlier`."""
        values = {}
        for name in _NAMES:
            now, before = getattr(self, name), getattr(earlier, name)
            values[name] = now - before if now >= before else now
        return Totals(**values)

    @property
    def attempts(self) -> int:
        """Return the requests that were answered."""
        return self.ok + self.client_error + self.server_error + self.timeout


_NAMES: Final = tuple(field.name for field in fields(Totals))
NOTHING: Final = Totals()


class OutcomeCore:
    """The last totals of every operation.

    Args:
        region: name of the region; gateway: name of the gateway, empty for a broker.
    """

    def __init__(self, *, region: str, gateway: str = "") -> None:
        self._region = region
        self._gateway = gateway
        self._last: dict[Operation, Totals] = {}
        self._second = -1

    def is_due(self, second: int) -> bool:
        """Return whether the rows of a second were not taken yet."""
        return second > self._second

    def take(self, second: int, totals: Mapping[Operation, Totals]) -> list[Row]:
        """Return the rows of the second that is over; a row of zeros says that this broker was there.

        Args:
            second: seconds since 1970.
            totals: counts since the start, by operation.
        """
        rows: list[Row] = []
        self._second = second
        for operation, now in totals.items():
            news = now.since(self._last.get(operation, NOTHING))
            self._last[operation] = now
            rows.append(
                (
                    second,
                    self._region,
                    self._gateway,
                    operation.value,
                    news.attempts,
                    news.ok,
                    news.client_error,
                    news.server_error,
                    news.timeout,
                    news.offered,
                )
            )
        return rows
