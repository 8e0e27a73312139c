"""The world of geo acknowledgements: three regions of three brokers; leaders are killed under publishes that wait.

Runs the shipping BrokerCore. The home stays where it is. What it holds, at every step:

- acknowledged-too-early: a publish that was acknowledged at k regions is committed in k regions at that moment.
- shown-too-early: no replica shows a record that fewer regions have than its topic asks for, unless it was shown
  already when the topic asked for fewer.
- shown-went-back: a leader that knows what was shown, and the topic's newest settings, shows no less.
- shown-undecided: readers of committed records are shown no more than others.

Once everything works again: what the worlds of homes hold (tests.sim.homes_world).
"""

from __future__ import annotations

import random
from typing import Any, Final

from georelay.durability import Durability
from georelay.errors import GeorelayError
from georelay.ids import BrokerId, RegionNumber, region_of
from mesh.replication.level import AskedLevel
from region.controller.topic import Homes, TopicSpec
from tests.sim.clockwork import NS_PER_MS
from tests.sim.core_life import CoreLife
from tests.sim.homes_world import TOPIC, HomesWorld, Publisher
from tests.sim.limits import small_limits
from tests.sim.mesh_world import MeshSettings, ordered_sets
from tests.sim.violation import Violation

STEPS: Final = 12
HOME: Final = RegionNumber(1)


class GeoPublisher(Publisher):
    """Asks for one number of regions, and holds the home to it."""

    def __init__(self, world: GeoWorld, number: int, rng: random.Random) -> None:
        super().__init__(world, number, rng)
        self._geo_world = world
        regions = 1 + number % 3
        self._level = AskedLevel(durability=Durability(regions), deadline_ms=1_000, needs_live=rng.random() < 0.3)

    def _answered(self, attempt: int, producer: int, sequence: int, answer: Any) -> None:
        if not isinstance(answer, Exception) and not answer.is_pending and self._level.is_geo:
            self._geo_world.check_acknowledged(answer, self._level.durability.regions)
        super()._answered(attempt, producer, sequence, answer)


class GeoWorld(HomesWorld):
    """Brokers of three regions, one partition with one home."""

    def __init__(self, seed: int, settings: MeshSettings | None = None) -> None:
        super().__init__(seed, settings or MeshSettings(brokers=3))
        self.insync = self.rng.choice((2, 2, 3))
        self.alters = self.rng.random() < 0.4
        self._committed = dict.fromkeys(self.regions, 0)  # what a replica of the region ever knew to be committed
        self._shown = dict.fromkeys(self.regions, 0)  # by a leader that knew
        self._shown_anywhere = 0
        self._newest_settings = 0  # index of the definition

    # --- what is held at every step -------------------------------------------------------------------

    def look_at(self, broker: BrokerId, life: CoreLife) -> None:
        """Follow what this broker knows to be committed, and judge what it shows."""
        super().look_at(broker, life)
        stream = life.core.cluster.stream(TOPIC, 0) if life.serving and life.core is not None else None
        if stream is None or stream.geo is None:
            return
        region = region_of(broker)
        self._committed[region] = max(self._committed[region], stream.high_watermark)
        end, regions = int(stream.visible_end), stream.geo.min_insync_regions
        if end > max(self._held_by(regions), self._shown_anywhere):
            raise Violation("shown-too-early", f"{broker} shows {end} for {regions} regions: {self._committed}")
        self._shown_anywhere = max(self._shown_anywhere, end)
        if stream.last_stable_offset > end:
            raise Violation("shown-undecided", f"{broker} shows {stream.last_stable_offset} as decided, {end} at all")
        assert life.core is not None
        definition = life.core.controller.state.topic_by_id(stream.key.topic_id)
        index = 0 if definition is None else definition.index
        self._newest_settings = max(self._newest_settings, index)
        if stream.is_leader and stream.is_visible_end_known:
            if end < self._shown[region] and index == self._newest_settings:
                raise Violation("shown-went-back", f"{broker} shows {end}, {self._shown[region]} was shown before")
            self._shown[region] = max(self._shown[region], end)

    def check_acknowledged(self, answer: Any, regions: int) -> None:
        """Hold the home to its word. Raises Violation."""
        self.mark(f"geo.reached_{regions}")
        if answer.base_offset >= self._held_by(regions):
            raise Violation("acknowledged-too-early", f"{answer.base_offset} for {regions} regions: {self._committed}")

    def _held_by(self, regions: int) -> int:
        return sorted(self._committed.values(), reverse=True)[regions - 1]

    # --- the run --------------------------------------------------------------------------------------

    def run(self) -> None:
        """Play the seed. Raises Violation."""
        with small_limits(self), ordered_sets(self):
            for broker in self.brokers:
                self.start(broker)
            self._until(self._unready, 30_000, "not-ready")
            self._until(self._uncontrolled, 60_000, "not-ready")
            self._create(TOPIC, Homes.ONE)
            self._until(self._unserved, 30_000, "not-ready")
            self.publishers = [GeoPublisher(self, number, self.fork()) for number in range(1, 7)]
            for _ in range(STEPS):
                self._wait_ms(self.rng.randrange(200, 1_500))
                self.rng.choice((*(self._kill_leader,) * 3, self._cut_off, self._alter, self._raise_behind_a_cut))()
            self.network.unblock_all()
            self._until(self._unready, 30_000, "not-ready")
            self.stops_publishing = True
            self._until(self._unsettled, self.settings.heal_ms, "not-live")
            self._until(self._unshown, 30_000, "not-shown")
            self._compare()

    def _create(self, name: str, homes: Homes) -> None:
        life = self._any_life()
        spec = TopicSpec(name=name, partitions=1, homes=homes, home="r1")
        spec = spec.with_settings({"min.insync.regions": str(self.insync)})
        life.loop.run_now(lambda: life.loop.create_task(self._create_topic(life, spec)))

    def _kill_leader(self) -> None:
        self._kill_leader_of(self.rng.choice((HOME, HOME, *self.regions)))

    def _kill_leader_of(self, region: RegionNumber) -> None:
        leaders = [
            broker
            for broker in self._of(region)
            if (life := self.lives.get(broker)) is not None
            and life.serving
            and (stream := life.core.cluster.stream(TOPIC, 0)) is not None
            and stream.is_leader
        ]
        for broker in leaders:
            back_ms = self.rng.randrange(200, 3_000)
            self.crash(broker, power=self.rng.random() < 0.5, restart_ns=back_ms * NS_PER_MS)
            self.mark("geo.home_leader_killed" if region == HOME else "geo.mirror_leader_killed")

    def _cut_off(self) -> None:
        self.network.unblock_all()
        if self.rng.random() < 0.7:
            self._cut(HOME, self.rng.choice([region for region in self.regions if region != HOME]))
            self.mark("geo.mirror_cut_off")

    def _raise_behind_a_cut(self) -> None:
        """Ask for all regions while one lacks what was shown; then another broker leads, and hears that region."""
        if not self.alters:
            return
        self._alter_to(1)
        self._wait_ms(300)
        self.network.unblock_all()
        self._cut(HOME, self.rng.choice([region for region in self.regions if region != HOME]))
        self._wait_ms(1_000)
        self._alter_to(3)
        self._wait_ms(500)
        self._kill_leader_of(HOME)
        self.network.unblock_all()
        self.mark("geo.raised_behind_a_cut")

    def _alter(self) -> None:
        if self.alters:
            self._alter_to(self.rng.choice((1, 2, 3)))

    def _alter_to(self, regions: int) -> None:
        lives = [life for life in self.lives.values() if life.serving]
        if not lives:
            return
        life = self.rng.choice(lives)
        wanted = {"min.insync.regions": str(regions)}

        async def alter() -> None:
            assert life.core is not None
            try:
                await life.core.cluster.alter_topic(TOPIC, wanted)
                self.mark("geo.altered")
            except GeorelayError as error:
                self.mark(f"geo.alter.{type(error).__name__}")

        life.loop.run_now(lambda: life.loop.create_task(alter()))

    def _unshown(self) -> Any:
        """Yield who still hides something: nobody is stuck once all regions have everything."""
        for region in self.regions:
            for stream in self.replicas(TOPIC, region):
                if stream.is_leader and (not stream.is_visible_end_known or stream.visible_end < stream.high_watermark):
                    yield f"the leader in region {region} shows {stream.visible_end} of {stream.high_watermark}"
