"""What a report must say about the ledger: integrity, streams, mirrors and throughput, judged row by row.

Rule 1: rows are judged in the order of their session, in plain Python; only a stretch of rows that touch without a
        fault is added up at once.
Rule 2: what is known of a stream (committed, replicated, aborted, expired) is kept by hour and by whether it came
        within the settle time of the hour before: a gap is judged with what is known then.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from georelay.trace.kinds import LedgerKind
from sla.generate.intervals import IntervalSet, Range, size
from sla.generate.ledger_rows import KINDS, LedgerRows
from sla.generate.world import NS_PER_S, Int64, World

HOUR_NS: Final = 3_600 * NS_PER_S
HOUR_S: Final = 3_600
MIRROR_QUIET_HOURS: Final = 24
READER_QUIET_HOURS: Final = 24
TAIL_S: Final = 3_600  # after the publishing, in which deliveries may still come
LOADED_PER_S: Final = 1_000
COUNTS: Final = (
    "sessions", "delivered", "dup_flagged", "dup_unflagged", "gaps", "gap_records", "healed_records", "lost",
    "unexplained", "aborted", "expired", "order_violations", "pending",
)  # fmt: skip
_PROVEN: Final = (LedgerKind.COMMIT, LedgerKind.REPLICATED)

Bucket = tuple[int, int]  # hour, and 0 within the settle time of the hour before, 1 after it


@dataclass(slots=True)
class _Gap:
    hour: int
    first: int
    end: int
    healed: IntervalSet = field(default_factory=IntervalSet)


@dataclass(slots=True)
class _Session:
    ranges: IntervalSet = field(default_factory=IntervalSet)
    reach: int | None = None


@dataclass(slots=True)
class _Unit:
    """Whatever is judged alone: a session of a plain consumer, or all sessions of a group in a region."""

    ranges: IntervalSet = field(default_factory=IntervalSet)
    reach: int | None = None
    gaps: list[_Gap] = field(default_factory=list)
    sessions: dict[int, _Session] = field(default_factory=dict)
    reach_of_hour: dict[int, int] = field(default_factory=dict)


class LedgerBook:
    """Everything expected of the ledger rows that reach a reader."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._settle_ns = world.request.settle_s * NS_PER_S
        self._units: dict[tuple[int, int], dict[int, _Unit]] = defaultdict(dict)
        self._counts: dict[tuple[int, int, int], dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTS, 0))
        self._sessions: dict[tuple[int, int, int], set[int]] = defaultdict(set)
        self._known: dict[tuple[LedgerKind, int, int], dict[Bucket, IntervalSet]] = defaultdict(
            lambda: defaultdict(IntervalSet)
        )
        self._first_s = world.start_ns // NS_PER_S // HOUR_S * HOUR_S - HOUR_S
        last_s = max(fault.at_s + max(0, fault.for_s) for fault in world.faults) if world.faults else 0
        last_s = world.start_ns // NS_PER_S + max(world.seconds, last_s) * 2 + TAIL_S
        seconds = last_s // HOUR_S * HOUR_S + HOUR_S - self._first_s
        self._seconds = seconds
        self._deliveries: dict[tuple[int, int], list[LedgerRows]] = defaultdict(list)  # region, stream
        self._committed = np.zeros((len(world.streams), seconds), dtype=np.int64)
        self._handed: dict[tuple[int, int, int], IntervalSet] = defaultdict(IntervalSet)  # stream, region, hour
        self._refused: dict[tuple[int, int, int], int] = defaultdict(int)
        self._is_read = np.zeros((len(world.regions), len(world.streams), seconds // HOUR_S), dtype=np.bool_)

    def take(self, region: int, rows: LedgerRows, reaches: npt.NDArray[np.bool_]) -> None:
        """Judge the rows of one stream, region and kind in the order of its sessions; those that `reaches` says."""
        rows = rows.take(reaches)
        if not len(rows):
            return
        kind, stream = KINDS[int(rows.kind[0])], int(rows.stream[0])
        second = rows.first_ns // NS_PER_S - self._first_s
        if kind is LedgerKind.REFUSED:
            for hour, records in zip((rows.first_ns // HOUR_NS).tolist(), rows.records.tolist(), strict=True):
                self._refused[stream, region, hour] += records
            return
        if kind is LedgerKind.DELIVERED:
            self._deliveries[region, stream].append(rows)
            self._is_read[region, stream, np.unique(second // HOUR_S)] = True
            self._judge(region, stream, rows)
            return
        if kind is LedgerKind.COMMIT:
            np.add.at(self._committed[stream], second, rows.end - rows.first)
        self._learn(kind, stream, region, rows)

    def _learn(self, kind: LedgerKind, stream: int, region: int, rows: LedgerRows) -> None:
        hour = rows.first_ns // HOUR_NS
        is_settled = (rows.first_ns % HOUR_NS >= self._settle_ns).astype(np.int64)
        apart = (rows.first[1:] != rows.end[:-1]) | (hour[1:] != hour[:-1]) | (is_settled[1:] != is_settled[:-1])
        starts = np.append(0, np.flatnonzero(apart) + 1)
        lasts = np.append(starts[1:], len(rows)) - 1
        known = self._known[kind, stream, region]
        for start, last in zip(starts.tolist(), lasts.tolist(), strict=True):
            known[int(hour[start]), int(is_settled[start])].add(int(rows.first[start]), int(rows.end[last]))

    def _judge(self, region: int, stream: int, rows: LedgerRows) -> None:
        has_group = bool(self._world.groups[self._world.streams[stream].topic])
        units = self._units[stream, region]
        hour = rows.first_ns // HOUR_NS
        for session in dict.fromkeys(rows.session_epoch.tolist()):
            mine = np.flatnonzero(rows.session_epoch == session)
            unit = units.setdefault(0 if has_group else session, _Unit())
            for number in np.unique(hour[mine]).tolist():
                of_hour = rows.take(mine[hour[mine] == number])
                starts = np.append(0, np.flatnonzero(of_hour.first[1:] != of_hour.end[:-1]) + 1)
                lasts = np.append(starts[1:], len(of_hour)) - 1
                for first, end in zip(of_hour.first[starts].tolist(), of_hour.end[lasts].tolist(), strict=True):
                    self._handed[stream, region, number].add(first, end)
                self._judge_hour(unit, (region, stream, number), session, of_hour)

    def _judge_hour(self, unit: _Unit, key: tuple[int, int, int], session: int, rows: LedgerRows) -> None:
        self._sessions[key].add(session)
        own = unit.sessions.setdefault(session, _Session())
        if self._is_plain(unit, own, rows):
            first, end = int(rows.first[0]), int(rows.end[-1])
            self._counts[key]["delivered"] += end - first
            unit.ranges.add(first, end)
            own.ranges.add(first, end)
            unit.reach = own.reach = end
        else:
            columns = (rows.first, rows.end, rows.attempt, rows.first_ns)
            for first, end, attempt, first_ns in zip(*(column.tolist() for column in columns), strict=True):
                self._judge_row(unit, own, key, first, end, attempt, first_ns)
        assert unit.reach is not None  # some row was judged
        unit.reach_of_hour[key[2]] = unit.reach

    @staticmethod
    def _is_plain(unit: _Unit, own: _Session, rows: LedgerRows) -> bool:
        """Return whether the rows follow each other, and what the unit was handed before, without any fault."""
        first = int(rows.first[0])
        is_first = unit.reach is None or unit.reach == first
        return bool(
            is_first
            and (own.reach is None or own.reach <= first)
            and (rows.attempt == 1).all()
            and (rows.first[1:] == rows.end[:-1]).all()
        )

    def _judge_row(
        self, unit: _Unit, own: _Session, key: tuple[int, int, int], first: int, end: int, attempt: int, first_ns: int
    ) -> None:
        counts = self._counts[key]
        counts["delivered"] += end - first
        seen, fresh = unit.ranges.within(first, end), unit.ranges.without(first, end)
        if attempt > 1:
            counts["dup_flagged"] += size(seen)
        else:
            by_itself = size(own.ranges.within(first, end))
            counts["dup_unflagged"] += by_itself
            counts["dup_flagged"] += size(seen) - by_itself  # a group's: another session of it was handed them
            if own.reach is not None:
                counts["order_violations"] += size((f, min(e, own.reach)) for f, e in fresh if f < own.reach)
        if unit.reach is not None and first > unit.reach:
            counts["gaps"] += 1
            counts["gap_records"] += first - unit.reach
            unit.gaps.append(_Gap(key[2], unit.reach, first))
        for gap in unit.gaps:
            if first_ns < (gap.hour + 1) * HOUR_NS + self._settle_ns:
                for part_first, part_end in fresh:
                    gap.healed.add(max(part_first, gap.first), min(part_end, gap.end))
        for ranges in (unit.ranges, own.ranges):
            ranges.add(first, end)
        unit.reach = end if unit.reach is None else max(unit.reach, end)
        own.reach = end if own.reach is None else max(own.reach, end)

    def _known_near(self, kinds: tuple[LedgerKind, ...], stream: int, hour: int) -> IntervalSet:
        """Return what is known of a stream when an hour is judged: from an hour before it to the settle time after."""
        near = ((hour - 1, 0), (hour - 1, 1), (hour, 0), (hour, 1), (hour + 1, 0))
        known = IntervalSet()
        for kind in kinds:
            for region in range(len(self._world.regions)):
                for bucket in near:
                    for first, end in self._known.get((kind, stream, region), {}).get(bucket, ()):
                        known.add(first, end)
        return known

    def _settle_gaps(self) -> None:
        for (stream, region), units in self._units.items():
            for unit in units.values():
                for gap in unit.gaps:
                    counts = self._counts[region, stream, gap.hour]
                    counts["healed_records"] += gap.healed.size
                    rest = gap.healed.without(gap.first, gap.end)
                    for name, kinds in (
                        ("aborted", (LedgerKind.ABORTED,)),
                        ("expired", (LedgerKind.EXPIRED,)),
                        ("lost", _PROVEN),
                    ):
                        rest = _count(counts, name, rest, self._known_near(kinds, stream, gap.hour))
                    counts["unexplained"] += size(rest)
                unit.gaps.clear()

    def integrity(self) -> list[dict[str, Any]]:
        """Return the rows of integrity_hour; call it once, at the end."""
        self._settle_gaps()
        rows = []
        for region, stream, hour in self._sessions:
            counts = self._counts[region, stream, hour]
            reach = max(
                unit.reach_of_hour[hour] for unit in self._units[stream, region].values() if hour in unit.reach_of_hour
            )
            counts["sessions"] = len(self._sessions[region, stream, hour])
            counts["pending"] = max(0, self._committed_end(stream, hour) - reach)
            rows.append(
                {
                    "ts_s": hour * HOUR_S,
                    **self._stream(stream),
                    "dest": self._world.regions[region],
                    "group": self._world.groups[self._world.streams[stream].topic],
                    **counts,
                }
            )
        return rows

    def _committed_end(self, stream: int, until_hour: int) -> int:
        return max(
            (
                end
                for kind in _PROVEN
                for region in range(len(self._world.regions))
                for (hour, _), ranges in self._known.get((kind, stream, region), {}).items()
                if hour <= until_hour
                for _, end in ranges
            ),
            default=0,
        )

    def _stream(self, stream: int) -> dict[str, Any]:
        owner = self._world.streams[stream]
        topic = self._world.topics[owner.topic]
        return {"topic": topic, "origin": owner.origin, "partition": owner.partition}

    def _in_hour(self, kinds: tuple[LedgerKind, ...], stream: int, hour: int, region: int | None = None) -> IntervalSet:
        ranges = IntervalSet()
        for kind in kinds:
            for where in range(len(self._world.regions)) if region is None else (region,):
                for bucket in ((hour, 0), (hour, 1)):
                    for first, end in self._known.get((kind, stream, where), {}).get(bucket, ()):
                        ranges.add(first, end)
        return ranges

    def _hours(self) -> list[int]:
        return sorted({hour for buckets in self._known.values() for hour, _ in buckets})

    def streams(self) -> list[dict[str, Any]]:
        """Return the rows of stream_hour."""
        rows = []
        for hour in self._hours():
            for stream in range(len(self._world.streams)):
                committed = self._in_hour((LedgerKind.COMMIT,), stream, hour).size
                aborted = self._in_hour((LedgerKind.ABORTED,), stream, hour).size
                expired = self._in_hour((LedgerKind.EXPIRED,), stream, hour).size
                if committed or aborted or expired:
                    rows.append(
                        {
                            "ts_s": hour * HOUR_S,
                            **self._stream(stream),
                            "committed": committed,
                            "aborted": aborted,
                            "expired": expired,
                            "epochs": int(committed > 0),
                        }
                    )
        return rows

    def mirrors(self) -> list[dict[str, Any]]:
        """Return the rows of mirror_hour."""
        rows = []
        for hour in self._hours():
            for stream in range(len(self._world.streams)):
                committed = self._in_hour((LedgerKind.COMMIT,), stream, hour)
                for region in range(len(self._world.regions)):
                    own = self._known.get((LedgerKind.REPLICATED, stream, region), {})
                    hours = {then for then, _ in own}
                    replicated = self._in_hour((LedgerKind.REPLICATED,), stream, hour, region)
                    is_mirror = any(hour - MIRROR_QUIET_HOURS <= then <= hour for then in hours)
                    if not is_mirror or not (committed.size or replicated.size):
                        continue
                    near = ((hour - 1, 0), (hour - 1, 1), (hour, 0), (hour, 1), (hour + 1, 0))
                    there = IntervalSet(part for bucket in near for part in own.get(bucket, ()))
                    missing = sum(size(there.without(first, end)) for first, end in committed)
                    rows.append(
                        {
                            "ts_s": hour * HOUR_S,
                            **self._stream(stream),
                            "region": self._world.regions[region],
                            "replicated": replicated.size,
                            "missing": missing,
                        }
                    )
        return rows

    def accounts(self) -> list[dict[str, Any]]:
        """Return the rows of account_hour."""
        sets: dict[tuple[LedgerKind, int, int, int], IntervalSet] = defaultdict(IntervalSet)
        for (kind, stream, region), buckets in self._known.items():
            for (hour, _), ranges in buckets.items():
                for first, end in ranges:
                    sets[kind, stream, region, hour].add(first, end)
        for (stream, region, hour), handed in self._handed.items():
            sets[LedgerKind.DELIVERED, stream, region, hour] = handed
        rows = [self._account(*key, ranges.size, [list(pair) for pair in ranges]) for key, ranges in sets.items()]
        rows += [
            self._account(LedgerKind.REFUSED, stream, region, hour, records, [])
            for (stream, region, hour), records in self._refused.items()
        ]
        return rows

    def _account(
        self, kind: LedgerKind, stream: int, region: int, hour: int, records: int, ranges: list[list[int]]
    ) -> dict[str, Any]:
        group = self._world.groups[self._world.streams[stream].topic] if kind is LedgerKind.DELIVERED else ""
        return {
            "ts_s": hour * HOUR_S,
            "kind": kind.value,
            **self._stream(stream),
            "region": self._world.regions[region],
            "group": group,
            "records": records,
            "ranges": ranges,
        }

    def throughput(self) -> list[dict[str, Any]]:
        """Return the rows of throughput_minute."""
        rows: list[dict[str, Any]] = []
        for region in range(len(self._world.regions)):
            fresh, fresh_of_hour = self._fresh(region)
            for hour in range(1, self._is_read.shape[2]):
                start = hour * HOUR_S
                delivered = np.append(fresh_of_hour[start - HOUR_S : start], fresh[start : start + HOUR_S])
                rows += self._throughput_hour(region, hour, delivered)
        return rows

    def _fresh(self, region: int) -> tuple[Int64, Int64]:
        """Return per second the records above all that the region was handed of their stream: ever, and in the hour."""
        ever, of_hour = (np.zeros(self._seconds, dtype=np.int64) for _ in range(2))
        for (where, _), parts in self._deliveries.items():
            if where != region:
                continue
            rows = LedgerRows.concat(parts)
            rows = rows.take(np.lexsort((rows.deliver_seq, rows.session_epoch, rows.broker, rows.first_ns)))
            second = rows.first_ns // NS_PER_S - self._first_s
            np.add.at(ever, second, _above_reach(rows))
            for hour in np.unique(second // HOUR_S).tolist():
                mine = second // HOUR_S == hour
                np.add.at(of_hour, second[mine], _above_reach(rows.take(mine)))
        return ever, of_hour

    def _throughput_hour(self, region: int, hour: int, delivered: Int64) -> list[dict[str, Any]]:
        window = slice((hour - 1) * HOUR_S, (hour + 1) * HOUR_S)
        is_read = self._is_read[region, :, max(0, hour - READER_QUIET_HOURS) : hour + 1].any(axis=1)
        offered = self._committed[is_read, window].sum(axis=0)
        sums = {name: (_sums(values, 10), _sums(values, 60)) for name, values in (("d", delivered), ("o", offered))}
        rows = []
        for start in range(HOUR_S, 2 * HOUR_S, 60):
            minute = slice(start, start + 60)
            if not delivered[minute].any() and not offered[minute].any():
                continue
            loaded = offered[minute] >= LOADED_PER_S
            rows.append(
                {
                    "ts_s": self._first_s + (hour - 1) * HOUR_S + start,
                    "dest": self._world.regions[region],
                    "delivered": int(delivered[minute].sum()),
                    "offered": int(offered[minute].sum()),
                    "max_1s": int(delivered[minute].max()),
                    "max_10s_mean": int(sums["d"][0][minute].max()) / 10,
                    "offered_max_10s_mean": int(sums["o"][0][minute].max()) / 10,
                    "max_60s_mean": int(sums["d"][1][minute].max()) / 60,
                    "loaded_seconds": int(loaded.sum()),
                    "loaded_seconds_met": int((loaded & (delivered[minute] >= LOADED_PER_S)).sum()),
                }
            )
        return rows


def _above_reach(rows: LedgerRows) -> Int64:
    """Return of every row, in order, how many records lie above all rows before it."""
    reach = np.append(0, np.maximum.accumulate(rows.end)[:-1])
    above: Int64 = np.maximum(0, rows.end - np.maximum(rows.first, reach))
    return above


def _sums(values: Int64, seconds: int) -> Int64:
    """Return for every second the sum of the window that ends with it."""
    total = np.cumsum(np.append(np.zeros(seconds, dtype=np.int64), values))
    sums: Int64 = total[seconds:] - total[:-seconds]
    return sums


def _count(counts: dict[str, int], name: str, rest: list[Range], known: IntervalSet) -> list[Range]:
    """Count what is known of the rest under a name; return what is left."""
    left: list[Range] = []
    for first, end in rest:
        counts[name] += size(known.within(first, end))
        left += known.without(first, end)
    return left
