"""What is asked of the generator: a world, a length and faults. No numpy here: the command line imports it.

A fault is written `KIND` or `KIND:NAME=VALUE,...`, such as `gap:count=3` or `link-cut:region=us,peer=eu,at=60,for=30`.
FAULTS says which names a kind knows, with the value of each that is left out. Common names:

region, peer  names of regions ("" : chosen by the seed)
at, for       seconds after the start, and seconds that it lasts (-1: chosen)
count         how many times, or how many rows
heal          seconds after which what was left out is handed over after all (-1: never)
ms            milliseconds
rows          kind of trace files, such as ledger
"""

from __future__ import annotations

import datetime
import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from georelay.trace.kinds import TraceKind
from sla.errors import UsageError

SECONDS_MAX: Final = 31 * 86_400
ROWS_MAX: Final = 1_000_000_000
RATE_MAX: Final = 10_000_000
REGIONS_MAX: Final = 12
TOPICS_MAX: Final = 64
PARTITIONS_MAX: Final = 256
BROKERS_MAX: Final = 9
COUNT_MAX: Final = 1_000
MS_MAX: Final = 600_000
HEAL_S_MAX: Final = 3_600  # the grid of latencies ends at 2**32 us
# Times are int64 nanoseconds since 1970 (they end in April 2262), and hours before 1970 have no number. The room at
# both ends is for clocks that are wrong and for what is on the way when publishing ends.
START_MIN: Final = datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC)
END_MAX: Final = datetime.datetime(2260, 1, 1, tzinfo=datetime.UTC)
_REGION: Final = re.compile(r"[a-z0-9-]{1,20}")


class FaultKind(enum.Enum):
    """Everything the generator can break."""

    GAP = "gap"  # one batch is never handed over to one session, or (heal) so many seconds late
    DUPLICATE = "duplicate"  # one batch is handed over again; flagged=1: as a second attempt
    REORDER = "reorder"  # two batches are handed over in the wrong order
    ABORTED = "aborted"  # a transaction is aborted: nobody is handed its batch
    EXPIRED = "expired"  # retention overtakes one session
    REBALANCE = "rebalance"  # a group's member changes and rewinds by `count` batches
    LINK_CUT = "link-cut"  # two regions do not hear each other; what was on the way comes later
    REGION_OUTAGE = "region-outage"  # every broker of a region is down
    PUBLISH_REFUSED = "publish-refused"  # a region cannot publish: probes are refused, requests fail
    SLOW_PAIR = "slow-pair"  # one way between two regions takes `ms`
    WRONG_CLOCK = "wrong-clock"  # a region's clocks are `ms` ahead; exchanges say so
    CLOCK_REVISED = "clock-revised"  # ... and the brokers did not believe the exchanges
    CLOCK_STEP = "clock-step"  # a region's clocks are set forward by `ms`
    CLOCK_UNKNOWN = "clock-unknown"  # nobody exchanges stamps with a region
    ASYMMETRIC_PATH = "asymmetric-path"  # the way from region to peer is `ms` longer than the way back
    SILENT_REGION = "silent-region"  # files of a region never arrive
    LATE_TRACES = "late-traces"  # files of a region are written in the hour after
    MISSING_FILE = "missing-file"
    CORRUPT_FILE = "corrupt-file"  # one bit of a page is flipped
    TORN_FILE = "torn-file"  # the end is cut off, the footer with it
    EMPTY_FILE = "empty-file"
    WRONG_SCHEMA = "wrong-schema"  # a column has another type
    OLD_SCHEMA = "old-schema"  # of version 1: readable, its newer column is not there
    DROPPED_ROWS = "dropped-rows"  # the writer gave up `count` rows


_FILE: Final[Mapping[str, str]] = {"region": "", "at": "-1", "rows": "ledger"}
_SPAN: Final[Mapping[str, str]] = {"region": "", "at": "-1", "for": "-1"}
_CLOCK: Final[Mapping[str, str]] = {"region": "", "ms": "30"}
FAULTS: Final[Mapping[FaultKind, Mapping[str, str]]] = {
    FaultKind.GAP: {"region": "", "count": "1", "at": "-1", "heal": "-1"},
    FaultKind.DUPLICATE: {"region": "", "count": "1", "at": "-1", "flagged": "0"},
    FaultKind.REORDER: {"region": "", "count": "1", "at": "-1"},
    FaultKind.ABORTED: {"count": "1", "at": "-1"},
    FaultKind.EXPIRED: {"region": "", "count": "1", "at": "-1"},
    FaultKind.REBALANCE: {"region": "", "count": "3", "at": "-1"},
    FaultKind.LINK_CUT: {"region": "", "peer": "", "at": "-1", "for": "-1"},
    FaultKind.REGION_OUTAGE: _SPAN,
    FaultKind.PUBLISH_REFUSED: _SPAN,
    FaultKind.SLOW_PAIR: {"region": "", "peer": "", "ms": "75"},
    FaultKind.WRONG_CLOCK: _CLOCK,
    FaultKind.CLOCK_REVISED: _CLOCK,
    FaultKind.CLOCK_STEP: {"region": "", "ms": "80", "at": "-1"},
    FaultKind.CLOCK_UNKNOWN: {"region": ""},
    FaultKind.ASYMMETRIC_PATH: {"region": "", "peer": "", "ms": "20"},
    FaultKind.SILENT_REGION: _SPAN,
    FaultKind.LATE_TRACES: _SPAN,
    FaultKind.MISSING_FILE: _FILE,
    FaultKind.CORRUPT_FILE: _FILE,
    FaultKind.TORN_FILE: _FILE,
    FaultKind.EMPTY_FILE: _FILE,
    FaultKind.WRONG_SCHEMA: _FILE,
    FaultKind.OLD_SCHEMA: _FILE,
    FaultKind.DROPPED_ROWS: {"region": "", "at": "-1", "rows": "delivery", "count": "7"},
}
FILE_FAULTS: Final = frozenset(
    {
        FaultKind.MISSING_FILE,
        FaultKind.CORRUPT_FILE,
        FaultKind.TORN_FILE,
        FaultKind.EMPTY_FILE,
        FaultKind.WRONG_SCHEMA,
        FaultKind.OLD_SCHEMA,
        FaultKind.DROPPED_ROWS,
    }
)
DROPPABLE: Final = frozenset({TraceKind.DELIVERY, TraceKind.OUTCOME, TraceKind.PROBE, TraceKind.CLOCK})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong. Fields that the kind does not know have their defaults.

    Args:
        at_s, for_s: seconds from the start, -1 to be chosen. heal_s: seconds from the gap, -1 never.
        is_flagged: of a duplicate: handed over as a second attempt.
        rows: kind of the trace files.
    """

    kind: FaultKind
    region: str = ""
    peer: str = ""
    at_s: int = -1
    for_s: int = -1
    count: int = 1
    ms: int = 0
    heal_s: int = -1
    is_flagged: bool = False
    rows: TraceKind = TraceKind.LEDGER

    def __str__(self) -> str:
        """Return the fault as it is written on the command line."""
        values = {
            "region": self.region,
            "peer": self.peer,
            "at": str(self.at_s),
            "for": str(self.for_s),
            "count": str(self.count),
            "ms": str(self.ms),
            "heal": str(self.heal_s),
            "flagged": str(int(self.is_flagged)),
            "rows": self.rows.value,
        }
        said = [f"{name}={values[name]}" for name, default in FAULTS[self.kind].items() if values[name] != default]
        return self.kind.value + (":" + ",".join(said) if said else "")

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read a fault as it is written on the command line.

        Raises:
            UsageError: unknown kind or name, or a value out of range; the text says what is known.
        """
        name, _, rest = text.partition(":")
        known = [kind.value for kind in FaultKind]
        if name not in known:
            raise UsageError(f"unknown fault {name!r}; known: {', '.join(known)}")
        kind = FaultKind(name)
        values = dict(FAULTS[kind])
        for part in rest.split(",") if rest else []:
            key, separator, value = part.partition("=")
            if not separator or key not in values:
                raise UsageError(f"fault {name}: {part!r} is none of {', '.join(f'{key}=...' for key in values)}")
            values[key] = value
        return cls(
            kind=kind,
            region=values.get("region", ""),
            peer=values.get("peer", ""),
            at_s=_integer(name, "at", values.get("at", "-1"), -1, SECONDS_MAX),
            for_s=_integer(name, "for", values.get("for", "-1"), -1, SECONDS_MAX),
            count=_integer(name, "count", values.get("count", "1"), 1, COUNT_MAX),
            ms=_integer(name, "ms", values.get("ms", "0"), -MS_MAX, MS_MAX),
            heal_s=_integer(name, "heal", values.get("heal", "-1"), -1, HEAL_S_MAX),
            is_flagged=_integer(name, "flagged", values.get("flagged", "0"), 0, 1) == 1,
            rows=_trace_kind(name, values.get("rows", "ledger")),
        )


def _integer(fault: str, name: str, text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise UsageError(f"fault {fault}: {name}={text} is no whole number from {low} to {high}")
    return value


def _trace_kind(fault: str, text: str) -> TraceKind:
    known = [kind.value for kind in TraceKind]
    if text not in known:
        raise UsageError(f"fault {fault}: rows={text} is none of {', '.join(known)}")
    return TraceKind(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """A world to generate traces of.

    Args:
        out: directory that gets `traces/` and `expected.json`; made when missing, `traces` must not exist in it.
        start: first moment, a whole second; not before START_MIN, and the end not behind END_MAX.
        seconds: length of the publishing, 1 to SECONDS_MAX; deliveries end a little later.
        regions: names, 1 to REGIONS_MAX; all pairs are 12 to 50 ms apart unless a fault says otherwise.
        rate_per_s: records published per second in the whole mesh, 1 to RATE_MAX.
        seed: of everything random; one seed and request make the same rows.
        faults: what goes wrong.
        rows: delivery rows to make; `seconds` follows from it. None: `seconds` stands.
        topics: the even ones have every region as home and are read by plain consumers, the odd ones have one home
            and are read by a group.
        partitions: per topic (and home). brokers: per region.
        batch_records: mean records of a batch, >= 1.
        roll_s: seconds of one trace file.
        settle_s: how long after its hour a gap may still heal; must be the pipeline's.
    """

    out: Path
    start: datetime.datetime
    seconds: int = 600
    regions: tuple[str, ...] = ("us", "eu", "ap")
    rate_per_s: int = 300
    seed: int = 1
    faults: tuple[Fault, ...] = field(default=())
    rows: int | None = None
    topics: int = 2
    partitions: int = 2
    brokers: int = 2
    batch_records: int = 10
    roll_s: int = 300
    settle_s: int = 900

    @property
    def length_s(self) -> int:
        """Return the length of the publishing: `seconds`, or what `rows` need."""
        if self.rows is None:
            return self.seconds
        return max(1, math.ceil(self.rows * self.batch_records / (self.rate_per_s * len(self.regions))))

    def check(self) -> None:
        """Refuse what cannot be generated.

        Raises:
            UsageError: one line that says which value to change.
        """
        _in_range("--seconds", self.seconds, 1, SECONDS_MAX)
        _in_range("--rows", 1 if self.rows is None else self.rows, 1, ROWS_MAX)
        _in_range("--rate", self.rate_per_s, 1, RATE_MAX)
        _in_range("--seed", self.seed, 0, 2**32 - 1)
        _in_range("the number of topics", self.topics, 1, TOPICS_MAX)
        _in_range("the number of partitions", self.partitions, 1, PARTITIONS_MAX)
        _in_range("the number of brokers", self.brokers, 1, BROKERS_MAX)
        _in_range("the records of a batch", self.batch_records, 1, 10_000)
        _in_range("the seconds of a file", self.roll_s, 1, 3_600)
        _in_range("the number of regions", len(self.regions), 1, REGIONS_MAX)
        if len(set(self.regions)) != len(self.regions):
            raise UsageError("--regions names a region twice")
        for region in self.regions:
            if _REGION.fullmatch(region) is None:
                raise UsageError(f"--regions: {region!r} is no name of a region ([a-z0-9-], 20 characters at most)")
        if self.start.tzinfo is None or self.start.microsecond:
            raise UsageError("--start must be a whole second with a time zone, such as 2026-01-01T00:00:00Z")
        # In seconds: no date can be added to at the end of the calendar.
        if self.start < START_MIN or (END_MAX - self.start).total_seconds() < self.length_s:
            span = f"{START_MIN:%Y-%m-%d} to {END_MAX:%Y-%m-%d}"
            text = f"{self.length_s} s from {self.start:%Y-%m-%dT%H:%M:%SZ}"
            raise UsageError(f"{text}: synthetic traces must lie from {span}; change --start")
        for fault in self.faults:
            self._check_fault(fault)

    def _check_fault(self, fault: Fault) -> None:
        for name in (fault.region, fault.peer):
            if name and name not in self.regions:
                raise UsageError(f"fault {fault.kind.value}: {name!r} is none of the regions {', '.join(self.regions)}")
        if "peer" in FAULTS[fault.kind] and len(self.regions) < 2:
            raise UsageError(f"fault {fault.kind.value} needs two regions")
        if fault.region and fault.region == fault.peer:
            raise UsageError(f"fault {fault.kind.value}: region and peer are both {fault.region}")
        if fault.kind is FaultKind.REBALANCE and self.topics < 2:
            raise UsageError("fault rebalance needs a topic that a group reads: at least 2 topics")
        if fault.kind is FaultKind.DROPPED_ROWS and fault.rows not in DROPPABLE:
            raise UsageError(f"fault dropped-rows: rows of {fault.rows.value} are never dropped")


def _in_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"{name} must be from {low} to {high}, not {value}")
