"""What the consumers of one region saw, judged record by record: complete, in order, nothing twice. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadtest.load.samples_core import Samples


@dataclass(slots=True)
class RegionTally:
    """Counts of one region.

    Args:
        lines_total: number of lines that are published.
    """

    region: str
    lines_total: int
    received: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    latencies: Samples = field(default_factory=Samples)
    _seen: set[int] = field(default_factory=set)
    _newest_line: dict[str, int] = field(default_factory=dict)

    def saw(self, *, line: int, key: str, latency_us: int) -> None:
        """Count one delivered record; lines of one key must arrive in the order of the file."""
        self.received += 1
        if line in self._seen:
            self.duplicates += 1
            return
        self._seen.add(line)
        if key and self._newest_line.get(key, -1) > line:
            self.out_of_order += 1
        self._newest_line[key] = max(line, self._newest_line.get(key, -1))
        self.latencies.add(latency_us / 1000)

    def has(self, line: int) -> bool:
        """Return whether the line has arrived."""
        return line in self._seen

    @property
    def missing(self) -> int:
        """Return how many lines have not arrived."""
        return self.lines_total - len(self._seen)

    @property
    def is_exact(self) -> bool:
        """Return whether every line arrived once and in order."""
        return self.missing == 0 and self.duplicates == 0 and self.out_of_order == 0
