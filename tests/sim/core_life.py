"""One life of a whole broker without its edge: the shipping BrokerCore over a simulated machine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from georelay.errors import GeorelayError
from georelay.ids import BrokerId, GroupId
from mesh.replication.mesh_links import MeshLinks
from region.broker import core_parts as core_module
from region.broker.core import BrokerCore
from region.config import BrokerConfig
from region.controller.commands import FEATURE_LEVEL_MAX
from region.multiraft.host import Host
from region.multiraft.watchdog import Watchdog
from tests.sim.clockwork import PowerCut, SimClock, SimExecutor, SimLoop
from tests.sim.disk import SimDisk
from tests.sim.flushing import SimFlusher
from tests.sim.host_watch import HostWatch
from tests.sim.link_carrier import LinkCarrier
from tests.sim.named_records import DRAIN_PERIOD_S, NamedRecords, NamingRecorder
from tests.sim.network import Network, SimTransport
from tests.sim.patching import replaced

MESH_ID: Final = "sim"
RETENTION_EVERY_MS: Final = 400  # the shipping interval is longer than a world lasts


class CoreLife:
    """From the start of a broker process to its crash or stop; the same surface as sim_broker.Life."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        loop: SimLoop,
        clock: SimClock,
        disk: SimDisk,
        network: Network,
        carrier: LinkCarrier,
        rng: random.Random,
        on_started: Callable[[BrokerId], None],
        on_failed: Callable[[BrokerId, str], None],
        power_cut: Callable[[], None],
        named: NamedRecords,
        level: int = FEATURE_LEVEL_MAX,
    ) -> None:
        """Begin a life; `level`: the highest feature level that this version of the broker knows."""
        self._recorder = NamingRecorder(config.region_number, named, wall_ns=clock.wall_ns)
        self.level = level
        self.me = config.broker_id
        self.loop = loop
        self.clock = clock
        self.disk = disk
        self.core: BrokerCore | None = None
        self.serving = False
        self.watch = HostWatch()
        self._executor = SimExecutor(loop)
        self.seen: dict[GroupId, Any] = {}  # groups whose recovery the ledger has looked at
        self._config = config
        self._network = network
        self._carrier = carrier
        self._rng = rng
        self._on_started = on_started
        self._on_failed = on_failed
        self._power_cut = power_cut
        self._main: asyncio.Future[None] | None = None

    @property
    def host(self) -> Host | None:
        """Return the host, None before it was made."""
        return None if self.core is None else self.core.host

    @property
    def refused(self) -> dict[GroupId, str]:
        """Return the groups whose log cannot be used, and why."""
        return {} if self.core is None else self.core.groups.refused

    @property
    def streams(self) -> dict[GroupId, Any]:
        """Return the streams by group."""
        return {} if self.core is None else dict(self.core.streams)

    def begin(self) -> None:
        """Start the process (called in a turn of its loop)."""
        self._main = asyncio.ensure_future(self._run(), loop=self.loop)

    async def _run(self) -> None:
        try:
            await self._start()
        except PowerCut:
            self._power_cut()
        except (GeorelayError, OSError) as error:
            self._on_failed(self.me, f"start: {error}")

    async def _start(self) -> None:
        with replaced(core_module, "FEATURE_LEVEL_MAX", self.level):
            core = self.core = self._make_core()
        self.watch.follow(core.host)
        # It would be a third of all events, and virtual time has no stalls to measure.
        core.host.watchdog = Watchdog(clock=self.clock, every_ms=0)
        core.housekeeping.retention._interval_ms = RETENTION_EVERY_MS
        core.failed.add_done_callback(lambda failed: self._failed(failed.result()))
        self.loop.call_later(DRAIN_PERIOD_S, self._drain)
        await core.start()
        self.serving = True
        self._on_started(self.me)

    def _make_core(self) -> BrokerCore:
        loop, network = self.loop, self._network
        return BrokerCore(
            self._config,
            clock=self.clock,
            rng=self._rng,
            file_system=self.disk,
            executor=self._executor,
            recorder=self._recorder,
            make_flusher=partial(SimFlusher, loop=loop, disk=self.disk, power_cut=self._power_cut, rng=self._rng),
            make_transport=partial(make_transport, network, loop),
            make_links=partial(
                MeshLinks,
                dial=lambda target: self._carrier.dial(self.me, loop, target.address),
                make_listener=lambda accept: self._carrier.listener(self.me, loop, accept),
            ),
        )

    def _drain(self) -> None:
        self._recorder.drain()
        self.loop.call_later(DRAIN_PERIOD_S, self._drain)

    def _failed(self, reason: str) -> None:
        self.serving = False
        self._on_failed(self.me, reason)

    def stop(self, done: Callable[[], None]) -> None:
        """Stop cleanly (called in a turn of its loop); `done` follows."""
        self.serving = False
        self._main = asyncio.ensure_future(self._stop(done), loop=self.loop)

    async def _stop(self, done: Callable[[], None]) -> None:
        assert self.core is not None
        await self.core.stop()
        self.core.close_files()
        self._recorder.drain(final=True)
        done()


def make_transport(
    network: Network,
    loop: SimLoop,
    *,
    me: BrokerId,
    disk: bytes,
    peers: dict[BrokerId, Any],
    receiver: Any,
    rng: random.Random,
    registered_disk: Callable[[BrokerId], str | None],
    **_: Any,
) -> SimTransport:
    """Return a transport that admits brokers by their registered disks, as the shipping one does."""
    import uuid

    def admits(peer: BrokerId, shown: bytes) -> bool:
        registered = registered_disk(peer)
        return registered is None or registered == str(uuid.UUID(bytes=shown))

    transport = SimTransport(network, loop, me=me, disk=disk, peers=peers, receiver=receiver, rng=rng, admits=admits)
    transport.peers.update(peers)
    return transport


def config_of(region: int, broker: int, *, regions: int, brokers: int, data: Path, tick_ms: int) -> BrokerConfig:
    """Return the configuration of one broker of a mesh of `regions` times `brokers`."""

    def address(of_region: int, of_broker: int, port: int) -> str:
        return f"127.0.0.1:{10_000 + of_region * 1_000 + of_broker * 10 + port}"

    return BrokerConfig.model_validate(
        {
            "mesh_id": MESH_ID,
            "region": f"r{region}",
            "broker": broker,
            "data_dir": str(data),
            "definitions_home": "r1",
            "tick_ms": tick_ms,
            "listen": {
                name: address(region, broker, port)
                for port, name in enumerate(("kafka", "grpc", "peers", "link", "admin"))
            },
            "regions": [
                {
                    "name": f"r{each}",
                    "number": each,
                    "brokers": [
                        {"number": row, "peers": address(each, row, 2), "link": address(each, row, 3)}
                        for row in range(1, brokers + 1)
                    ],
                }
                for each in range(1, regions + 1)
            ],
        }
    )
