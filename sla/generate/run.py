"""Makes synthetic traces with injected faults, and says exactly what a report must find in them.

One pass over the period in chunks of one trace file each: publish, replicate, deliver, break, write, count. Memory is
that of one chunk and of the counts; what is expected never passes through Spark or through anything that reads files.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import pyarrow as pa

from georelay.trace.kinds import LedgerKind, TraceKind
from sla.errors import UsageError
from sla.generate import counted, latency_rows, ledger_rows
from sla.generate.clocks import Clocks
from sla.generate.duties import Duties
from sla.generate.edits import Edits
from sla.generate.expected import EXPECTED_NAME, MINUTE_ROWS_MAX, TRACES_NAME, Expected, sorted_rows
from sla.generate.expected_counts import ClockBook, ProbeBook, RequestBook, input_rows
from sla.generate.expected_latency import LatencyBook
from sla.generate.expected_ledger import LedgerBook
from sla.generate.files import TraceFilesWriter
from sla.generate.latency_rows import LatencyEvents
from sla.generate.ledger_rows import LedgerRows
from sla.generate.request import FaultKind, GenerateRequest
from sla.generate.traffic import Lane, Traffic
from sla.generate.world import NS_PER_S, Int64, World

CHUNK_DELIVERIES_MAX: Final = 1_500_000
MINUTE_S: Final = 60
HOUR_S: Final = 3_600
FOR_EVER_NS: Final = (1 << 63) - 1  # the last moment there is; 1 << 62 is in 2116


def run_generate(request: GenerateRequest, on_step: Callable[[str], None] = lambda _: None) -> Expected:
    """Write `request.out`/traces and `request.out`/expected.json.

    Args:
        on_step: called with a short text whenever the next step begins.

    Raises:
        UsageError: the request cannot be met; one line says what to change.
    """
    request.check()
    directory = request.out / TRACES_NAME
    if directory.exists():
        raise UsageError(f"{directory} exists already; give another --out or remove it")
    directory.mkdir(parents=True)
    generator = Generator(World.of(request))
    for done_s, seconds in generator.run():
        on_step(f"generated {done_s} of {seconds} s, {generator.deliveries} deliveries")
    on_step("counting what a report must find")
    expected = generator.expected()
    expected.write(request.out / EXPECTED_NAME)
    return expected


class Generator:
    """One run of a world.

    Attributes:
        deliveries: delivery rows so far.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._clocks = Clocks(world)
        self._traffic = Traffic(world)
        self._edits = Edits(world, self._traffic)
        self._duties = Duties(world, self._clocks)
        self._files = TraceFilesWriter(world, world.request.out / TRACES_NAME)
        self._latency = LatencyBook(world)
        self._ledger = LedgerBook(world)
        self._requests = RequestBook()
        self._probes = ProbeBook(world)
        self._exchanges = ClockBook(world)
        self._aborted: list[tuple[int, int, int, int, int]] = []  # stream, region, first, end, true time
        self.deliveries = 0

    def run(self) -> Iterator[tuple[int, int]]:
        """Generate everything; yield (seconds done, seconds in all) after each chunk."""
        world = self._world
        for from_ns, to_ns in self._chunks():
            self._chunk(from_ns, to_ns, is_last=to_ns == world.end_ns)
            yield (to_ns - world.start_ns) // NS_PER_S, world.seconds

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Yield [from, to) of every chunk: whole files, cut at multiples of their length."""
        world = self._world
        per_s = world.batches_per_s * len(world.streams) * len(world.regions)
        length_s = max(1, min(world.request.roll_s, int(CHUNK_DELIVERIES_MAX / per_s)))
        from_s, end_s = world.start_ns // NS_PER_S, world.end_ns // NS_PER_S
        while from_s < end_s:
            to_s = min(end_s, (from_s // length_s + 1) * length_s)
            yield from_s * NS_PER_S, to_s * NS_PER_S
            from_s = to_s

    def _chunk(self, from_ns: int, to_ns: int, *, is_last: bool) -> None:
        world, edits = self._world, self._edits
        for stream, aborted in self._traffic.publish(from_ns, to_ns).items():
            for first, end, known_ns in aborted:
                edits.injected.append(edits.done(FaultKind.ABORTED, stream, -1, first, end, int(known_ns[0])))
                self._aborted += [
                    (stream, region, first, end, int(at_ns)) for region, at_ns in enumerate(known_ns.tolist())
                ]
        before_ns = FOR_EVER_NS if is_last else to_ns
        span_ns = (from_ns, to_ns)
        seconds = np.arange(from_ns // NS_PER_S, to_ns // NS_PER_S, dtype=np.int64)
        for region in range(len(world.regions)):
            self._traffic_of(region, before_ns, span_ns)
            self._duties_of(region, seconds, span_ns)

    def _traffic_of(self, region: int, before_ns: int, span_ns: tuple[int, int]) -> None:
        """Write what the brokers of a region counted of the traffic."""
        world, clocks = self._world, self._clocks
        ledger: list[LedgerRows] = []
        events: list[LatencyEvents] = []
        deliveries: list[tuple[pa.Table, Int64]] = []
        for kind, lane in self._logs_of(region):
            due = lane.due(before_ns)
            if len(due):
                shown_ns = clocks.shown(region, due.at)
                ledger.append(ledger_rows.of_lane(kind, lane, due, shown_ns, ledger_rows.sequences(lane, due)))
                events.append(counted.of_log(clocks, lane, due, shown_ns))
        for key, lane in self._traffic.deliveries.items():
            if lane.region != region:
                continue
            due = self._edits.apply(key, lane.due(before_ns), before_ns)
            if len(due):
                shown_ns = clocks.shown(region, due.at)
                sequence = ledger_rows.sequences(lane, due)
                ledger.append(ledger_rows.of_lane(LedgerKind.DELIVERED, lane, due, shown_ns, sequence))
                events += counted.of_consumer(clocks, lane, due, shown_ns)
                deliveries.append(counted.delivery_table(world, clocks, lane, due, shown_ns, sequence))
                self.deliveries += len(due)
        ledger += self._singles_of(region, before_ns)
        ledger += self._refused_of(region, span_ns)
        self._write_ledger(region, ledger, span_ns)
        self._write_latencies(region, events, span_ns)
        self._write_deliveries(region, deliveries, span_ns)

    def _logs_of(self, region: int) -> Iterator[tuple[LedgerKind, Lane]]:
        for lane in self._traffic.commits:
            if lane.region == region:
                yield LedgerKind.COMMIT, lane
        for lane in self._traffic.replicas.values():
            if lane.region == region:
                yield LedgerKind.REPLICATED, lane

    def _singles_of(self, region: int, before_ns: int) -> list[LedgerRows]:
        """Return the rows of a region that no batch is behind, and forget them."""
        rows = []
        for kind, waiting in ((LedgerKind.ABORTED, self._aborted), (LedgerKind.EXPIRED, self._edits.expired)):
            for single in [entry for entry in waiting if entry[1] == region and entry[4] < before_ns]:
                waiting.remove(single)
                stream, _, first, end, at_ns = single
                rows.append(
                    ledger_rows.single(
                        self._world, self._clocks, kind, stream=stream, region=region, first=first, end=end, at_ns=at_ns
                    )
                )
        return rows

    def _refused_of(self, region: int, span_ns: tuple[int, int]) -> list[LedgerRows]:
        """Return what a region refused while it could not publish: as many records as it takes otherwise."""
        world = self._world
        seconds = np.arange(span_ns[0] // NS_PER_S, span_ns[1] // NS_PER_S, dtype=np.int64)
        refusing = seconds[self._duties.is_refused(region, seconds * NS_PER_S)]
        rows = []
        for stream in world.streams if len(refusing) else ():
            if stream.has_every_home and stream.home != region:
                continue
            records = self._duties.refused_records(len(refusing))
            found = ledger_rows.refused(
                world, self._clocks, stream=stream.index, region=region, seconds=refusing, records=records
            )
            if len(found):
                rows.append(found)
        return rows

    def _write(
        self, kind: TraceKind, region: int, broker: int, table: pa.Table, span_ns: tuple[int, int]
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        # The first row of a file is that of a second which is over.
        opened_ns = self._clocks.shown_at(region, span_ns[0] + NS_PER_S)
        return self._files.write(kind, region=region, broker=broker, table=table, span_ns=span_ns, opened_ns=opened_ns)

    def _write_ledger(self, region: int, parts: list[LedgerRows], span_ns: tuple[int, int]) -> None:
        if not parts:
            return
        rows = LedgerRows.concat(parts)
        reaches = np.full(len(rows), True)
        for broker in np.unique(rows.broker).tolist():
            mine = np.flatnonzero(rows.broker == broker)
            mine = mine[np.argsort(rows.first_ns[mine], kind="stable")]
            table = ledger_rows.table(self._world, region, rows.take(mine))
            reaches[mine] = self._write(TraceKind.LEDGER, region, broker, table, span_ns)
        start = 0
        for part in parts:
            self._ledger.take(region, part, reaches[start : start + len(part)])
            start += len(part)

    def _write_latencies(self, region: int, parts: list[LatencyEvents], span_ns: tuple[int, int]) -> None:
        events = LatencyEvents.concat(parts) if parts else None
        if events is None or not len(events):
            return
        table, broker_of_row, row_of_event = latency_rows.table(self._world, region, events)
        reaches = np.full(table.num_rows, True)
        for broker in np.unique(broker_of_row).tolist():
            mine = np.flatnonzero(broker_of_row == broker)  # in one piece: rows are sorted by it
            part = table.slice(int(mine[0]), len(mine))
            reaches[mine] = self._write(TraceKind.LATENCY_HIST, region, broker, part, span_ns)
        self._latency.take(region, events, reaches[row_of_event])

    def _write_deliveries(self, region: int, parts: list[tuple[pa.Table, Int64]], span_ns: tuple[int, int]) -> None:
        if not parts:
            return
        table = pa.concat_tables([part for part, _ in parts])
        brokers = np.concatenate([broker for _, broker in parts])
        for broker in np.unique(brokers).tolist():
            self._write(TraceKind.DELIVERY, region, broker, table.filter(pa.array(brokers == broker)), span_ns)

    def _duties_of(self, region: int, seconds: Int64, span_ns: tuple[int, int]) -> None:
        """Write what the brokers and the gateway of a region write every second."""
        world = self._world
        writers = [(broker, "") for broker in world.brokers(region)]
        writers.append((self._files.gateway_number(region), f"gateway-{world.regions[region]}"))
        for number, gateway in writers:
            outcomes = self._duties.outcomes(region, seconds, gateway=gateway)
            if outcomes is not None:
                reaches = self._write(TraceKind.OUTCOME, region, number, outcomes, span_ns)
                self._requests.take(outcomes, reaches)
            clocks = None if gateway else self._duties.clocks(region, number, seconds)
            if clocks is not None:
                self._exchanges.take(region, clocks, self._write(TraceKind.CLOCK, region, number, clocks, span_ns))
        probes = self._duties.probes(region, seconds)
        if probes is not None:
            reaches = self._write(TraceKind.PROBE, region, world.leader(region, 0), probes, span_ns)
            self._probes.take(probes, reaches)

    def expected(self) -> Expected:
        """Return what follows from everything that was generated."""
        world = self._world
        minutes = self._latency.rows(MINUTE_S)
        tables = {
            "minute": minutes if len(minutes) <= MINUTE_ROWS_MAX else [],
            "hour": self._latency.rows(HOUR_S),
            "throughput_minute": self._ledger.throughput(),
            "integrity_hour": self._ledger.integrity(),
            "stream_hour": self._ledger.streams(),
            "mirror_hour": self._ledger.mirrors(),
            "account_hour": self._ledger.accounts(),
            "avail_minute": self._probes.rows(),
            "requests_minute": self._requests.rows(),
            "clock_hour": self._exchanges.rows(),
            "inputs_hour": input_rows(self._files.files),
        }
        broken: dict[str, int] = {}
        for file in self._files.files:
            if file.broken is not None:
                broken[file.broken.value] = broken.get(file.broken.value, 0) + 1
        return Expected(
            traces=world.request.out / TRACES_NAME,
            made_with=_made_with(world),
            tables={name: sorted_rows(name, rows) for name, rows in tables.items()},
            injected=[
                {**asdict(done), "kind": done.kind.value, "records": done.records} for done in self._edits.injected
            ],
            files={
                "written": sum(bool(file.path) for file in self._files.files),
                "readable": sum(file.is_readable for file in self._files.files),
                "broken": dict(sorted(broken.items())),
                "delivery_rows": self.deliveries,
                "rows": sum(file.rows for file in self._files.files if file.is_readable),
                "faults_without_place": self._edits.waiting() + self._traffic.aborts_waiting(),
            },
        )


def _made_with(world: World) -> dict[str, Any]:
    request = world.request
    end = request.start + datetime.timedelta(seconds=world.seconds)
    return {
        "start": request.start.isoformat(),
        "end": end.isoformat(),
        "seconds": world.seconds,
        "regions": list(request.regions),
        "rate_per_s": request.rate_per_s,
        "seed": request.seed,
        "faults": [str(fault) for fault in world.faults],
        "topics": list(world.topics),
        "partitions": request.partitions,
        "brokers": request.brokers,
        "batch_records": request.batch_records,
        "roll_s": request.roll_s,
        "settle_s": request.settle_s,
        "floor_us": {
            f"{one}>{other}": int(world.delay_ns[index, at]) // 1_000
            for index, one in enumerate(world.regions)
            for at, other in enumerate(world.regions)
        },
    }
