"""What a report must say about requests, probes, clocks and inputs: plain counts of the rows that reach a reader."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from georelay.trace.kinds import ProbeOutcome, TraceKind
from sla.generate.files import WrittenFile
from sla.generate.world import NS_PER_S, NS_PER_US, World

MINUTE_S: Final = 60
HOUR_S: Final = 3_600
TAIL_S: Final = 60
DRIFT_PPM: Final = 1_000
_COUNTS: Final = ("attempts", "ok", "client_error", "server_error", "timeout", "offered")
# What one row makes of a probe: any delivery beats none; of the others a refusal says more.
_STATES: Final = {ProbeOutcome.LOST: 1, ProbeOutcome.REFUSED: 2, ProbeOutcome.LATE: 3, ProbeOutcome.OK: 4}


class RequestBook:
    """Outcome rows by minute. `writers` follows from who writes: one row per writer, second and operation."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, str, str, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys(_COUNTS, 0))
        self._gateways: dict[tuple[int, str, str, str], set[str]] = defaultdict(set)
        self._rows: dict[tuple[int, str, str, str], dict[int, int]] = defaultdict(lambda: defaultdict(int))

    def take(self, table: pa.Table, reaches: npt.NDArray[np.bool_]) -> None:
        """Count the rows that are read."""
        for row in table.filter(pa.array(reaches)).to_pylist():
            source = "gateway" if row["gateway"] else "broker"
            key = (row["second"] // MINUTE_S * MINUTE_S, row["region"], source, row["op"])
            counts = self._counts[key]
            for name in _COUNTS:
                counts[name] += row[name]
            self._gateways[key].add(row["gateway"])
            self._rows[key][row["second"]] += 1

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of requests_minute."""
        rows = []
        for key, counts in self._counts.items():
            ts_s, region, source, operation = key
            writers = len(self._gateways[key]) if source == "gateway" else max(self._rows[key].values())
            head = {"ts_s": ts_s, "region": region, "source": source, "op": operation}
            rows.append({**head, **counts, "writers": writers})
        return rows


class ProbeBook:
    """What became of every probe."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._first_s = world.start_ns // NS_PER_S - TAIL_S
        regions = len(world.regions)
        self._states = np.zeros((regions, regions, world.seconds + 2 * TAIL_S), dtype=np.int8)

    def take(self, table: pa.Table, reaches: npt.NDArray[np.bool_]) -> None:
        """Count the rows that are read."""
        read = table.filter(pa.array(reaches))
        columns = (read.column(name).to_pylist() for name in ("origin", "dest", "seq", "outcome"))
        for origin, dest, seq, outcome in zip(*columns, strict=True):
            place = self._world.number(origin), self._world.number(dest), seq - self._first_s
            self._states[place] = max(self._states[place], _STATES[ProbeOutcome(outcome)])

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of avail_minute."""
        rows = []
        first_minute = self._first_s // MINUTE_S
        minutes = (np.arange(self._states.shape[2]) + self._first_s) // MINUTE_S - first_minute
        for origin, from_region in enumerate(self._world.regions):
            for dest, to_region in enumerate(self._world.regions):
                states = self._states[origin, dest]
                count = {
                    outcome: np.bincount(minutes, states == state).astype(int).tolist()
                    for outcome, state in _STATES.items()
                }
                for index in range(int(minutes[-1]) + 1):
                    numbers = {outcome: count[outcome][index] for outcome in _STATES}
                    if any(numbers.values()):
                        rows.append(
                            {
                                "ts_s": (first_minute + index) * MINUTE_S,
                                "origin": from_region,
                                "dest": to_region,
                                "probes": sum(numbers.values()),
                                "probes_ok": numbers[ProbeOutcome.OK],
                                "probes_late": numbers[ProbeOutcome.LATE],
                                "probes_lost": numbers[ProbeOutcome.LOST],
                                "probes_refused": numbers[ProbeOutcome.REFUSED],
                            }
                        )
        return rows


class ClockBook:
    """Exchanges by hour and pair of regions: what is exact about them. Offsets are estimates and have bounds."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._hours: dict[tuple[int, int, int], dict[str, int]] = {}
        self._last: dict[tuple[str, str], tuple[int, int, int]] = {}

    def take(self, region: int, table: pa.Table, reaches: npt.NDArray[np.bool_]) -> None:
        """Count the rows that are read, in the order of the monotonic clock."""
        for row in table.filter(pa.array(reaches)).to_pylist():
            peer = int(row["peer"]) // 1_000 - 1
            key = (row["t4_ns"] // NS_PER_S // HOUR_S * HOUR_S, region, peer)
            empty = {"exchanges": 0, "rtt_min_us": row["delta_ns"] // NS_PER_US, "steps": 0, "unsync": 0}
            hour = self._hours.setdefault(key, empty)
            hour["exchanges"] += 1
            hour["rtt_min_us"] = min(hour["rtt_min_us"], row["delta_ns"] // NS_PER_US)
            hour["unsync"] += row["host_unsync"]
            last = self._last.get((row["broker"], row["peer"]))
            if last is not None:
                theta_ns, delta_ns, mono_ns = last
                room_ns = (row["delta_ns"] + delta_ns) / 2 + (row["mono_ns"] - mono_ns) * DRIFT_PPM / 1e6
                hour["steps"] += abs(row["theta_ns"] - theta_ns) > room_ns
            self._last[row["broker"], row["peer"]] = (row["theta_ns"], row["delta_ns"], row["mono_ns"])

    def rows(self) -> list[dict[str, Any]]:
        """Return the exact columns of clock_hour."""
        names = self._world.regions
        return [
            {"ts_s": ts_s, "region": names[region], "peer": names[peer], **counts}
            for (ts_s, region, peer), counts in self._hours.items()
        ]


def input_rows(files: Iterable[WrittenFile]) -> list[dict[str, Any]]:
    """Return the rows of inputs_hour, by the hour of the folder; bytes are those on the disk."""
    files = list(files)
    there = [file for file in files if file.path]
    rows: dict[tuple[int, str, str], dict[str, Any]] = {}

    def row_of(hour_s: int, kind: TraceKind, region: str) -> dict[str, Any]:
        head = {"ts_s": hour_s, "kind": kind.value, "region": region}
        names = ("files", "bytes", "rows", "quarantined_files", "missing_rows", "dropped_rows", "gone_rows")
        counts = dict.fromkeys(names, 0)
        return rows.setdefault((hour_s, kind.value, region), {**head, **counts, "writers": [], "silent_writers": []})

    by_run: dict[tuple[TraceKind, str, str], list[WrittenFile]] = defaultdict(list)
    for file in there:
        row = row_of(file.hour_s, file.kind, file.region)
        if not file.is_readable:
            row["quarantined_files"] += 1
            continue
        row["files"] += 1
        row["bytes"] += file.size_bytes
        row["rows"] += file.rows
        row["writers"] = sorted({*row["writers"], file.writer})
        by_run[file.kind, file.writer, file.boot_id].append(file)
    for run in by_run.values():
        run.sort(key=lambda file: file.first_row_seq)
        first = run[0]
        if first.first_row_seq <= first.dropped:
            row = row_of(first.hour_s, first.kind, first.region)
            row["dropped_rows"] += first.dropped
            row["gone_rows"] += first.dropped
        for earlier, later in pairwise(run):
            row = row_of(later.hour_s, later.kind, later.region)
            missing = later.first_row_seq - earlier.first_row_seq - earlier.rows
            row["missing_rows"] += missing
            row["dropped_rows"] += later.dropped - earlier.dropped
            row["gone_rows"] += max(missing, later.dropped - earlier.dropped)
    _add_silent(there, row_of)
    return list(rows.values())


def _add_silent(there: list[WrittenFile], row_of: Any) -> None:
    """Add who wrote a kind in the hour before or after and not in the hour; of clock rows, in any hour before.

    Nothing that is made here is as long as the week after which a broker counts as removed.
    """
    wrote: dict[tuple[TraceKind, str, str], set[int]] = defaultdict(set)
    for file in there:
        wrote[file.kind, file.region, file.writer].add(file.hour_s)
    hours = [file.hour_s for file in there]
    for (kind, region, writer), mine in wrote.items():
        for hour_s in range(min(hours), max(hours) + 1, HOUR_S):
            is_away = kind is TraceKind.CLOCK and min(mine) < hour_s
            if hour_s not in mine and (is_away or {hour_s - HOUR_S, hour_s + HOUR_S} & mine):
                row = row_of(hour_s, kind, region)
                row["silent_writers"] = sorted({*row["silent_writers"], writer})
