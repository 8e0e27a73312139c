"""Everything a broker writes down about itself for reports: recorder, clocks, probes, expiries and outcomes.

Composed apart from the core, because the core runs in the simulator, and this reads real clocks and files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from georelay.clock import Clock
from georelay.ids import RegionNumber
from mesh.tracing.recorder import Recorder, TraceSettings
from region.api.metrics import BrokerMetrics
from region.broker.clocks import BrokerClocks, ClockCollector
from region.broker.core import BrokerCore
from region.broker.expiry_watch import ExpiryWatch
from region.broker.outcomes import RequestOutcomes
from region.broker.probes import Prober
from region.broker.trace_metrics import TraceCollector
from region.config import BrokerConfig
from region.kafka.counters import KafkaCounters

if TYPE_CHECKING:
    from mesh.tracing.shelf import TraceShelf


class BrokerTraces:
    """Start and stop of the parts.

    Attributes:
        recorder: told of commits and deliveries by others.
        clocks: every other region's clock against ours.
        shelf: what was written, for readers; None when nothing is.
    """

    def __init__(self, config: BrokerConfig, *, clock: Clock, region_name: Callable[[int], str]) -> None:
        boot_id = uuid.uuid4().hex[:12]
        self._config = config
        self._clock = clock
        self._region_name = region_name
        self._regions: Callable[[], dict[int, str]] = lambda: {
            int(number): name for name, number in config.region_numbers().items()
        }
        self._prober: Prober | None = None
        self._expiries: ExpiryWatch | None = None
        self.clocks = BrokerClocks(
            region=config.region_number,
            broker=config.broker_id,
            regions=lambda: [RegionNumber(number) for number in self._regions()],
            region_name=region_name,
            clock=clock,
            override_us=config.clock_error_us if config.clock_error_us >= 0 else None,
        )
        self.recorder = Recorder(
            region=config.region,
            broker=config.broker_id,
            boot_id=boot_id,
            region_name=region_name,
            settings=TraceSettings(
                directory=Path(config.trace_dir) if config.trace_dir else None,
                roll_period_s=config.trace_roll_ms / 1000,
                rows_per_s_max=config.trace_rows_per_s_max,
                retention_ms=config.trace_retention_ms,
                retention_bytes=config.trace_retention_bytes,
            ),
            clock_ns=clock.wall_ns,
            correction=self.clocks.correction,
        )
        self.clocks.keep = self.recorder.keep
        self.shelf = _shelf(config)

    def count(self, *, kafka: KafkaCounters, metrics: BrokerMetrics) -> None:
        """Write down what these counters count, and show what it costs."""
        self.recorder.outcome_totals = RequestOutcomes(kafka=kafka, metrics=metrics).totals
        self._register(metrics.registry)

    def _register(self, registry: CollectorRegistry) -> None:
        registry.register(TraceCollector(self.recorder))
        registry.register(ClockCollector(self.clocks, region_name=self._region_name))

    def start(self) -> None:
        """Begin to record; before anything can be committed."""
        self.recorder.start()

    def follow(self, core: BrokerCore) -> None:
        """Begin to ask clocks, to probe and to watch; the core runs."""
        controller = core.controller
        self._regions = lambda: {int(row.number): row.name for row in controller.topology().data_regions}
        self.clocks.start(core.links)
        if not self.recorder.is_writing:
            return
        self._expiries = ExpiryWatch(self.recorder, core.streams.values)
        self._expiries.start()
        if not self._config.probes:
            return
        self._prober = Prober(
            cluster=core.cluster,
            recorder=self.recorder,
            clock=self._clock,
            regions=lambda: self._regions(),
            ensure_topic=controller.ensure_internal_topic,
            estimate=self.clocks.offset_to,
        )
        self._prober.start()

    async def stop(self) -> None:
        """Stop asking, probing and watching; before the core stops."""
        self.clocks.stop()
        if self._expiries is not None:
            self._expiries.stop()
        if self._prober is not None:
            await self._prober.stop()

    async def close(self) -> None:
        """Write what is left; after the core has stopped."""
        await self.recorder.close()


def _shelf(config: BrokerConfig) -> TraceShelf | None:
    if not config.trace_dir:
        return None
    from mesh.tracing.shelf import TraceShelf  # Arrow: 40 MiB that a broker without traces has no use for

    return TraceShelf(Path(config.trace_dir), region=config.region, broker=config.broker_id)
