"""What operators do to a mesh while everything else goes wrong: drain, move, delete, expire, and take back."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from georelay.errors import GeorelayError
from georelay.ids import BrokerId, RegionNumber, region_of
from tests.sim.clockwork import NS_PER_MS

if TYPE_CHECKING:
    from tests.sim.mesh_world import MeshWorld

PACE_MS: Final = (400, 1_500)
AGAIN_MS: Final = 500
SCRATCH: Final = "scratch"  # a topic that comes and goes, and nobody publishes to


class Operator:
    """Gives orders at brokers drawn by chance; an order may fail, or be carried out although its answer is lost."""

    def __init__(self, world: MeshWorld, rng: random.Random, *, moves_replicas: bool) -> None:
        """Begin; without `moves_replicas` every group keeps three voters, and so bears the loss of a disk."""
        self._world = world
        self._rng = rng
        self._stopped = False
        self._drained: dict[RegionNumber, BrokerId] = {}
        self._pace_ms = rng.choice(PACE_MS)
        orders: list[Callable[[], None]] = [
            *((self._drain_or_add, self._reassign) if moves_replicas else ()),
            self._delete_records,
            self._limit_retention,
            self._make_or_delete_topic,
        ]
        self._orders = [order for order in orders if rng.random() < 0.6]
        if self._orders:
            self._later(self._pace_ms)

    def _later(self, delay_ms: int) -> None:
        self._world.clockwork.after(delay_ms * NS_PER_MS, self._give)

    def _give(self) -> None:
        if self._stopped:
            return
        self._rng.choice(self._orders)()
        self._later(int(self._pace_ms * (0.3 + 1.4 * self._rng.random())) + 1)

    def stop(self) -> None:
        """Give no new orders, and take back the brokers that were drained."""
        self._stopped = True
        for region in list(self._drained):
            self._add_back(region)

    def _at(self, region: RegionNumber | None, name: str, order: Callable[[Any], Awaitable[Any]]) -> bool:
        """Give an order at a broker of a region; False when none of it serves."""
        lives = [
            life
            for broker, life in self._world.lives.items()
            if life.serving and (region is None or region_of(broker) == region)
        ]
        if not lives:
            return False
        life = self._rng.choice(lives)
        self._world.note("order", life.me, name)
        life.loop.run_now(lambda: life.loop.create_task(self._do(life, name, order)))
        return True

    async def _do(self, life: Any, name: str, order: Callable[[Any], Awaitable[Any]]) -> None:
        try:
            await order(life.core.cluster)
        except GeorelayError as error:
            self._world.mark(f"order.{name}.refused")
            self._world.note("order refused", name, repr(error))
        else:
            self._world.mark(f"order.{name}")

    # --- orders ---------------------------------------------------------------------------------------

    def _drain_or_add(self) -> None:
        region = self._rng.choice(self._world.regions)
        if region in self._drained:
            broker = self._drained.pop(region)
            self._at(region, "add", lambda cluster: cluster.add_broker(broker, ""))
            self._drained[region] = broker  # until it is known to be back; see `is_done`
            return
        broker = self._rng.choice([broker for broker in self._world.brokers if region_of(broker) == region])
        self._drained[region] = broker
        self._at(region, "drain", lambda cluster: cluster.drain_broker(broker))

    def _add_back(self, region: RegionNumber) -> None:
        broker = self._drained[region]
        if self._is_active(broker):
            del self._drained[region]
            return
        self._at(region, "add", lambda cluster: cluster.add_broker(broker, ""))
        self._world.clockwork.after(AGAIN_MS * NS_PER_MS, self._add_back, region)

    def _is_active(self, broker: BrokerId) -> bool:
        states = [
            record.state.value
            for other, life in self._world.lives.items()
            if region_of(other) == region_of(broker) and life.serving
            if (record := life.core.controller.state.records.get(broker)) is not None
        ]
        return bool(states) and all(state == "active" for state in states)

    @property
    def is_done(self) -> bool:
        """Return whether every broker takes replicas again."""
        return not self._drained

    def _reassign(self) -> None:
        region = self._rng.choice(self._world.regions)
        brokers = [broker for broker in self._world.brokers if region_of(broker) == region]
        voters = self._rng.sample(brokers, self._rng.choice((1, 2, 3, 3)))
        name = self._rng.choice(self._world.local_names(region))
        self._at(region, "reassign", lambda cluster: cluster.reassign(name, 0, voters))

    def _delete_records(self) -> None:
        name, home = self._rng.choice(self._world.streams_wanted())
        leaders = [stream for stream in self._world.replicas(name, home) if stream.is_leader]
        if not leaders:
            return
        before = self._rng.randint(0, leaders[0].high_watermark)
        local = name.rpartition(".")[2]
        self._at(home, "delete_records", lambda cluster: cluster.delete_records(local, 0, before))

    def _limit_retention(self) -> None:
        settings = {"retention.bytes": str(self._rng.choice((-1, 5_000, 50_000)))}
        name = self._rng.choice(("orders", "events"))
        self._at(None, "alter_topic", lambda cluster: cluster.alter_topic(name, settings))

    def _make_or_delete_topic(self) -> None:
        if self._rng.random() < 0.5:
            self._at(None, "delete_topic", lambda cluster: cluster.delete_topic(SCRATCH))
        else:
            self._at(None, "create_topic", lambda cluster: cluster.ensure_topic(SCRATCH))
