"""Probes: one small record per second and region, expected in every region. Pure, all times are arguments.

Rule 1: the number of a probe is the second, on its origin's clock, in which it is due: every region knows which probes
        must have come, whether or not anything did.
Rule 2: the destination writes the rows: `ok` or `lost` once per probe, and `late` when a lost one comes. The origin
        writes only what it could not publish: `refused`, one row for every destination.
Rule 3: several rows of one (origin, destination, seq) can exist (two brokers took turns; a lost one came): the one
        with the earliest `delivered_ns` counts, and any delivery beats none.
"""

from __future__ import annotations

from typing import Final

from georelay.fields import FieldError, Fields, dump_object, parse_object
from georelay.trace.kinds import ProbeOutcome
from mesh.tracing.latency_cells_core import Row

PROBE_TOPIC: Final = "__georelay_probes"
PROBE_BYTES_MAX: Final = 256
TIMEOUT_MS: Final = 5_000
WATCHED_S_MAX: Final = 120  # an origin that was not looked at for longer begins anew
NS_PER_S: Final = 1_000_000_000
_SENT_NS_MAX: Final = 253_402_300_799 * NS_PER_S


class Probe:
    """One probe as it stands in its record: who sent it, its number, and the origin's clock when it was sent."""

    __slots__ = ("prober", "sent_ns", "seq")

    def __init__(self, *, prober: str, seq: int, sent_ns: int) -> None:
        self.prober = prober
        self.seq = seq
        self.sent_ns = sent_ns

    def encode(self) -> bytes:
        """Return the value of its record."""
        return dump_object({"prober": self.prober, "sent_ns": self.sent_ns, "seq": self.seq})

    @classmethod
    def decode(cls, raw: bytes) -> Probe:
        """Read the value of a record.

        Raises:
            FieldError: it is no probe.
        """
        fields = Fields(parse_object(raw, bytes_max=PROBE_BYTES_MAX), "the probe")
        probe = cls(
            prober=fields.text("prober", chars_max=64),
            sent_ns=fields.integer("sent_ns", low=0, high=_SENT_NS_MAX),
            seq=fields.integer("seq", low=0, high=_SENT_NS_MAX // NS_PER_S),
        )
        fields.done()
        return probe


class ProbeWatch:
    """What came of one origin's probes, and what did not.

    Args:
        origin, dest: names of the regions.
        timeout_ms: time after its second in which a probe must come.
    """

    __slots__ = ("_came", "_dest", "_next_due", "_origin", "_timeout_ms", "lost", "received")

    def __init__(self, *, origin: str, dest: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._origin = origin
        self._dest = dest
        self._timeout_ms = timeout_ms
        self._came: set[int] = set()  # numbers not yet judged by `tick`
        self._next_due: int | None = None  # the first number that is not judged
        self.received = 0
        self.lost = 0

    def arrived(self, probe: Probe, *, published_ns: int, delivered_ns: int, origin_now_ns: int) -> Row | None:
        """Take a probe that came; None for one from before this watch began, and for a repeated one.

        Args:
            published_ns: when the origin appended it, on its clock.
            delivered_ns: when it could be read here, on our clock.
            origin_now_ns: the origin's clock now, as far as we know.
        """
        oldest_s = (origin_now_ns - self._timeout_ms * 1_000_000) // NS_PER_S
        is_late = probe.seq < oldest_s
        if self._next_due is None or (is_late and probe.seq < self._next_due - WATCHED_S_MAX):
            return None
        if probe.seq in self._came:
            return None
        if probe.seq >= self._next_due:
            self._came.add(probe.seq)
        self.received += 1
        outcome = ProbeOutcome.LATE if is_late else ProbeOutcome.OK
        return self._row(probe.prober, probe.seq, probe.sent_ns, published_ns, delivered_ns, outcome)

    def tick(self, origin_now_ns: int) -> list[Row]:
        """Return a row `lost` for every probe whose time is over; call it about once per second."""
        over_s = (origin_now_ns - self._timeout_ms * 1_000_000) // NS_PER_S  # numbers below it are over
        if self._next_due is None or abs(over_s - self._next_due) > WATCHED_S_MAX:
            # From now on: what was sent before somebody looked is not known to have been sent.
            self._next_due = origin_now_ns // NS_PER_S + 1
            self._came.clear()
            return []
        rows: list[Row] = []
        while self._next_due < over_s:
            seq = self._next_due
            self._next_due = seq + 1
            if seq in self._came:
                self._came.discard(seq)
                continue
            self.lost += 1
            rows.append(self._row("", seq, seq * NS_PER_S, None, None, ProbeOutcome.LOST))
        return rows

    def _row(
        self,
        prober: str,
        seq: int,
        sent_ns: int,
        published_ns: int | None,
        delivered_ns: int | None,
        outcome: ProbeOutcome,
    ) -> Row:
        return (
            self._origin,
            self._dest,
            prober,
            seq,
            sent_ns,
            published_ns,
            delivered_ns,
            outcome.value,
            self._timeout_ms,
        )


def refused_rows(probe: Probe, *, origin: str, dests: list[str]) -> list[Row]:
    """Return the origin's rows of a probe that it could not publish."""
    return [
        (origin, dest, probe.prober, probe.seq, probe.sent_ns, None, None, ProbeOutcome.REFUSED.value, TIMEOUT_MS)
        for dest in dests
    ]


__all__ = ["PROBE_TOPIC", "TIMEOUT_MS", "FieldError", "Probe", "ProbeWatch", "refused_rows"]
