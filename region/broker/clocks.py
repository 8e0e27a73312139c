"""The clocks of a broker: its book, the exchanges over its links, and what traces, metrics and callers ask of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from georelay.clock import Clock, SystemClock
from georelay.ids import BrokerId, RegionNumber
from georelay.trace.kinds import TraceKind
from mesh.clock.book_core import ClockBook
from mesh.clock.estimate import ClockEstimate, ClockRow, Exchange
from mesh.clock.exchanger import ClockExchanger, HostClock, NoHostClock
from mesh.clock.host_bound import KernelClock
from mesh.replication.frames import ClockAnswer, ClockAsk
from mesh.replication.mesh_links import MeshLinks
from mesh.tracing.latency_cells_core import SAME_CLOCK, UNKNOWN_CLOCK, Correction
from mesh.tracing.recorder_core import Row

CELL_OPEN_NS_MAX: Final = 2_000_000_000  # a histogram of a second is open for it and until the next drain


class BrokerClocks:
    """What this broker knows of every other clock.

    Args:
        region, broker: ours.
        regions: every region of the mesh, by number.
        clock: ours. The kernel's word on its own clock counts only for the real one.
        override_us: configured bound of the clock error between any two brokers; None: estimate it.
        host: what the host knows of its clock; default: asked of the kernel.

    Attributes:
        keep: takes a trace row of every exchange.
    """

    def __init__(
        self,
        *,
        region: RegionNumber,
        broker: BrokerId,
        regions: Callable[[], Sequence[RegionNumber]],
        region_name: Callable[[int], str],
        clock: Clock,
        override_us: int | None,
        host: HostClock | None = None,
    ) -> None:
        self._regions = regions
        self._region_name = region_name
        self._region = region
        self._broker = broker
        self._clock = clock
        self._host = host or (KernelClock() if isinstance(clock, SystemClock) else NoHostClock())
        self._exchanger: ClockExchanger | None = None
        self.book = ClockBook(region=region, broker=broker, override_us=override_us)
        self.keep: Callable[[TraceKind, Row], None] = lambda _kind, _row: None

    def start(self, links: MeshLinks) -> None:
        """Answer and ask over these links from now on."""
        exchanger = self._exchanger = ClockExchanger(
            self.book,
            links=links,
            regions=self._regions,
            own=self._region,
            clock=self._clock,
            host=self._host,
            on_exchange=self._exchanged,
        )

        def answered(broker: BrokerId, answer: ClockAnswer) -> None:
            exchanger.answered(
                broker,
                t1_ns=answer.t1_ns,
                t2_ns=answer.t2_ns,
                t3_ns=answer.t3_ns,
                host_error_us=answer.host_error_us,
                spread_us=answer.spread_us,
            )

        def answer(ask: ClockAsk) -> ClockAnswer:
            return ClockAnswer(*exchanger.answer(ask.t1_ns))

        links.serve_clocks(answer, answered)
        exchanger.start()

    def stop(self) -> None:
        """Ask no more."""
        if self._exchanger is not None:
            self._exchanger.stop()

    def offset_to(self, region: RegionNumber | int, *, for_ns: int = 0) -> ClockEstimate | None:
        """Return how a region's clocks stand against ours now; see ClockBook.offset_to."""
        self.book.move_to(wall_ns=self._clock.wall_ns(), monotonic_ns=self._clock.monotonic_ns())
        return self.book.offset_to(region, for_ns=for_ns)

    def correction(self, region: int) -> Correction:
        """Return what a latency that began on a clock of `region` needs; asked once per histogram."""
        estimate = self.offset_to(region, for_ns=CELL_OPEN_NS_MAX)
        if estimate is None:
            return UNKNOWN_CLOCK
        # A stamp s of that clock was taken at s - offset on ours: the latency grows by the offset.
        return Correction(estimate.offset_us, estimate.error_us) if estimate.error_us else SAME_CLOCK

    def rows(self) -> list[ClockRow]:
        """Return one row per region and per broker that was asked."""
        self.book.move_to(wall_ns=self._clock.wall_ns(), monotonic_ns=self._clock.monotonic_ns())
        return self.book.rows(self._regions())

    def document(self) -> dict[str, Any]:
        """Return what GET /v1/clocks answers."""
        host_us = self._host.max_error_us()
        return {
            "region": self._region_name(self._region),
            "broker": self._broker,
            "host_error_us": host_us,
            "is_overridden": self.book.is_overridden,
            "clocks": [self._row(row) for row in self.rows()],
        }

    def _row(self, row: ClockRow) -> dict[str, Any]:
        estimate = row.estimate
        return {
            "region": self._region_name(row.region),
            "broker": row.broker or None,
            "offset_us": None if estimate is None else estimate.offset_us,
            "error_us": None if estimate is None else estimate.error_us,
            "drift_ppm": None if estimate is None else round(estimate.drift_ppm, 3),
            "rtt_us": row.rtt_us if row.rtt_us >= 0 else None,
            "spread_us": row.spread_us if row.spread_us >= 0 else None,
            "exchanges": row.exchanges,
            "refused": row.refused,
            "steps": row.steps,
        }

    def _exchanged(self, broker: BrokerId, exchange: Exchange) -> None:
        host_us = exchange.host_error_us
        self.keep(
            TraceKind.CLOCK,
            (
                self._region_name(self._region),
                str(self._broker),
                str(broker),
                exchange.t1_ns,
                exchange.t2_ns,
                exchange.t3_ns,
                exchange.t4_ns,
                exchange.theta_ns,
                exchange.delta_ns,
                host_us if host_us >= 0 else None,
                host_us < 0,
                exchange.monotonic4_ns,
            ),
        )


class ClockCollector(Collector):
    """Clocks as Prometheus gauges; what is not known is absent."""

    def __init__(self, clocks: BrokerClocks, *, region_name: Callable[[int], str]) -> None:
        self._clocks = clocks
        self._region_name = region_name

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        labels = ("region",)
        offset = GaugeMetricFamily("georelay_clock_offset_seconds", "A region's clocks minus ours", labels=labels)
        error = GaugeMetricFamily("georelay_clock_error_seconds", "Hard bound of that offset's error", labels=labels)
        drift = GaugeMetricFamily("georelay_clock_drift_ppm", "What its clock gains on ours", labels=labels)
        rtt = GaugeMetricFamily("georelay_clock_rtt_seconds", "Shortest exchange of the last minute", labels=labels)
        exchanges = refused = steps = 0
        for row in self._clocks.rows():
            exchanges, refused, steps = exchanges + row.exchanges, refused + row.refused, steps + row.steps
            if row.broker:
                continue
            name = (self._region_name(row.region),)
            if row.rtt_us >= 0:
                rtt.add_metric(name, row.rtt_us / 1e6)
            if row.estimate is not None:
                offset.add_metric(name, row.estimate.offset_us / 1e6)
                error.add_metric(name, row.estimate.error_us / 1e6)
                drift.add_metric(name, row.estimate.drift_ppm)
        yield from (offset, error, drift, rtt)
        yield CounterMetricFamily("georelay_clock_exchanges", "Answers of other clocks", exchanges)
        yield CounterMetricFamily("georelay_clock_answers_refused", "Answers whose stamps cannot be", refused)
        yield CounterMetricFamily("georelay_clock_steps", "Times a clock was found to have been set", steps)

    def describe(self) -> list[Metric]:
        """Return nothing: values are read only when they are asked for."""
        return []
