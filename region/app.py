"""The composition root of a broker process: its core, and the listeners that clients use.

The listeners start last and stop first: nobody is answered by a part that is not there.
"""

from __future__ import annotations

import asyncio
import gc
import random
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from georelay.clock import Clock, SystemClock
from georelay.credentials import Credentials
from georelay.ids import RegionNumber
from mesh.listening.listeners import Listeners
from mesh.tracing.recorder import Recorder, TraceSettings
from region.broker.core import BrokerCore
from region.broker.edge import Edge
from region.broker.guard import Guard
from region.broker.health import read_health
from region.broker.link_metrics import LinkCollector
from region.broker.local_cluster import LocalCluster
from region.broker.security_metrics import SecurityCollector
from region.broker.storage_metrics import StorageCollector
from region.config import BROKER_LISTENERS, CLIENT_LISTENERS, BrokerConfig
from region.log.filesystem import FileSystem, OsFileSystem

log = structlog.get_logger()

GC_THRESHOLDS: Final = (20_000, 20, 50)
COLD_READERS: Final = 2  # threads; a third would only wait for the same disk


class Broker:
    """One broker process."""

    def __init__(
        self, config: BrokerConfig, *, clock: Clock | None = None, file_system: FileSystem | None = None
    ) -> None:
        self.config = config
        clock = clock or SystemClock()
        listeners = Listeners(config.tls, config.limits, names=CLIENT_LISTENERS, mutual=BROKER_LISTENERS)
        self._region_names = {number: name for name, number in config.region_numbers().items()}
        self._executor = ThreadPoolExecutor(COLD_READERS, thread_name_prefix="cold-read")
        self._recorder = Recorder(
            region=config.region,
            broker=config.broker_id,
            boot_id=uuid.uuid4().hex[:12],
            region_name=self._region_name,
            settings=TraceSettings(
                directory=Path(config.trace_dir) if config.trace_dir else None,
                roll_period_s=config.trace_roll_ms / 1000,
                clock_error_us=config.clock_error_us if config.clock_error_us >= 0 else None,
            ),
            clock_ns=clock.wall_ns,
        )
        self.core = BrokerCore(
            config,
            clock=clock,
            rng=random.Random(),
            file_system=file_system or OsFileSystem(),
            executor=self._executor,
            recorder=self._recorder,
            listeners=listeners,
        )
        credentials = Credentials.load(config.users_file or None)
        self._guard = Guard(config, controller=self.core.controller, credentials=credentials, clock=clock)
        self._edge = Edge(
            listen=config.listen,
            cluster=self.core.cluster,
            credentials=credentials,
            guard=self._guard,
            recorder=self._recorder,
            clock=clock,
            region_name=self._region_name,
            health=lambda: read_health(self.core),
            limits=config.limits,
            listeners=listeners,
            coordinators=self.core.coordinators,
            group_counters=self.core.group_counters,
            queue_counters=self.core.queues.counters,
            bindings=self.core.queues.bindings,
            routing=self.core.queues.routing,
        )
        metrics = self._edge.metrics.registry
        metrics.register(
            StorageCollector(
                flusher=self.core.flusher, host=self.core.host, budget=self.core.budget, recorder=self._recorder
            )
        )
        metrics.register(SecurityCollector(self._guard, book=lambda: self.core.controller.state.security))
        metrics.register(LinkCollector(sessions=self.core.links.snapshot, region_name=self._region_name))

    @property
    def cluster(self) -> LocalCluster:
        """Return what the services of this broker ask."""
        return self.core.cluster

    @property
    def failed(self) -> asyncio.Future[str]:
        """Return what resolves with the reason when this broker must end."""
        return self.core.failed

    def _region_name(self, number: int) -> str:
        return self._region_names.get(RegionNumber(number), f"region-{number}")

    async def start(self) -> None:
        """Recover, join the region and serve.

        Raises:
            OSError: an address is taken. GeorelayError: data directory or configuration.
        """
        self._recorder.start()
        await self.core.start()
        await self._edge.start()
        # What start-up made lives for ever: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        # Records are freed by reference counts; cycles are rare, and looking for them every 700 objects is not free.
        gc.set_threshold(*GC_THRESHOLDS)
        listen = self.config.listen
        log.info("broker.started", region=self.config.region, broker=self.config.broker_id, kafka=listen.kafka)

    async def stop(self) -> None:
        """Stop serving, then storing."""
        await self._edge.stop()
        self._guard.close()
        await self.core.stop()
        await self._recorder.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self.core.close_files()
        log.info("broker.stopped", broker=self.config.broker_id)
