"""How much of the traces is there: the share of events that nobody saw, per kind and region.

Rule 1: rows that are numbered and gone, files that are unreadable, and hours in which a broker wrote nothing at all are
        missing. Rows are the better measure; unreadable files count when they say more. Rows that a writer dropped are
        numbered too: they are gone once, also where no file before them shows the jump. Rows that were read and that
        no hour could be made of are as good as gone.
Rule 2: a broker that writes no clock rows is silent: clock rows come every second. Of other kinds nothing may mean
        that nothing happened. One that is new counts as silent in the hour before it, and sums do not tell that hour
        from others: as many as a region has writers may all be of brokers that were not there yet.
Rule 3: of an hour that nobody saw to its end, and of which no traces are left, the rest is missing: of every kind and
        region, because nobody knows whose rows it had.
Rule 4: of a region that is expected everything is missing when nothing of any kind was read of it, while something of
        others was: a broker that runs writes clock rows every second.
"""

from __future__ import annotations

from collections.abc import Iterable

from georelay.trace.kinds import TraceKind
from sla.judging.facts import InputFacts
from sla.report.model import InputRow


class Completeness:
    """Answers what share of a region's rows of a kind is missing.

    Args:
        inputs: one per (kind, region).
        unseen_share: of the period's hours, those that nobody saw to their end, in [0, 1].
        expected: regions that took part in probes.
    """

    def __init__(
        self, inputs: Iterable[InputFacts], *, unseen_share: float = 0.0, expected: Iterable[str] = ()
    ) -> None:
        self._by_key = {(facts.kind, facts.region): facts for facts in inputs}
        self._unseen_share = unseen_share
        self._expected = frozenset(expected)
        self._nothing_read = self._expected - self.regions_read if self.regions_read else frozenset()

    @property
    def regions(self) -> frozenset[str]:
        """Return the regions of which anything is known, the expected ones among them."""
        return self._expected.union(region for _, region in self._by_key)

    @property
    def regions_read(self) -> frozenset[str]:
        """Return the regions of which any row was read."""
        return frozenset(facts.region for facts in self._by_key.values() if facts.rows)

    def writers(self, kind: TraceKind, region: str) -> tuple[str, ...]:
        """Return who wrote the rows that were read, as `us/1001`."""
        facts = self._by_key.get((kind.value, region))
        return facts.writers if facts is not None else ()

    def is_of_unknown_writers(self, kind: TraceKind, region: str) -> bool:
        """Return whether files could not be read, or rows are in no figure, of whom nobody knows who wrote them."""
        facts = self._by_key.get((kind.value, region))
        return facts is not None and bool(facts.quarantined_files or facts.left_out_rows)

    def has_silent_brokers(self, region: str) -> bool:
        """Return whether a broker of a region wrote nothing for whole hours."""
        clock = self._by_key.get((TraceKind.CLOCK.value, region))
        return clock is not None and bool(clock.silent_writer_hours)

    def is_read_whole(self, kind: TraceKind, region: str) -> bool:
        """Return whether nothing of a kind is missing, of a region of which anything was read."""
        return region in self.regions_read and not self.missing_share(kind, region)

    def lossy_regions(self, kind: TraceKind) -> frozenset[str]:
        """Return the regions of whose rows of a kind any is missing."""
        return frozenset(region for region in self.regions if self.missing_share(kind, region))

    def regions_hiding(self, kind: TraceKind) -> frozenset[str]:
        """Return the regions of whose rows of a kind any is missing, silence aside that new brokers may explain."""
        return frozenset(region for region in self.lossy_regions(kind) if self._hides(kind.value, region))

    def rows_missing_max(self, kind: TraceKind, region: str) -> int | None:
        """Return how many rows of a kind are missing at most, None when nobody knows: not all of them are numbered."""
        if region in self._nothing_read or self._unseen_share or self.has_silent_brokers(region):
            return None
        facts = self._by_key.get((kind.value, region))
        if facts is None:
            return 0
        return None if facts.quarantined_files else facts.gone_rows + facts.left_out_rows

    def own_missing_share(self, kind: TraceKind, region: str) -> float:
        """Return the share that is missing of what the region itself wrote, hours that nobody saw aside."""
        return 1 - self._there(kind.value, region)

    def missing_share(self, kind: TraceKind, *regions: str) -> float:
        """Return the share of events without a row, in [0, 1]; the worst of the regions."""
        return max(self._missing(kind.value, region) for region in regions)

    def rows(self) -> tuple[InputRow, ...]:
        """Return what the report prints."""
        return tuple(
            InputRow(
                kind=facts.kind,
                region=facts.region,
                files=facts.files,
                bytes=facts.bytes,
                rows=facts.rows,
                quarantined_files=facts.quarantined_files,
                missing_rows=facts.missing_rows,
                dropped_rows=facts.dropped_rows,
                gone_rows=facts.gone_rows,
                writers=facts.writers,
                silent_writer_hours=facts.silent_writer_hours,
                completeness=1 - self._missing(facts.kind, facts.region),
            )
            for _, facts in sorted(self._by_key.items())
        )

    def _hides(self, kind: str, region: str) -> bool:
        if region in self._nothing_read or self._unseen_share:
            return True
        facts = self._by_key.get((kind, region))
        if facts is not None and (facts.gone_rows or facts.left_out_rows or facts.quarantined_files):
            return True
        clock = self._by_key.get((TraceKind.CLOCK.value, region))
        return clock is not None and clock.silent_writer_hours > max(1, len(clock.writers))

    def _missing(self, kind: str, region: str) -> float:
        return 1 - self._there(kind, region) * (1 - self._unseen_share)

    def _there(self, kind: str, region: str) -> float:
        if region in self._nothing_read:
            return 0.0
        facts = self._by_key.get((kind, region))
        clock = self._by_key.get((TraceKind.CLOCK.value, region))
        rows = _share(facts.gone_rows + facts.left_out_rows, facts.rows) if facts else 0.0
        files = _share(facts.quarantined_files, facts.files) if facts else 0.0
        silent = _share(clock.silent_writer_hours, clock.writer_hours) if clock else 0.0
        return (1 - max(rows, files)) * (1 - silent)


def _share(missing: int, there: int) -> float:
    return missing / (missing + there) if missing else 0.0
