"""A world of clients, regions and routes in ticks of ten seconds, in which the shipping cores choose regions.

Nothing here decides: estimates come from ClientBook, choices from choose(), what is shed from ShedLoop. The world knows
the true round trips, and measures what the choices cost.

Rule 1: the true round trip is a distance on a map plus what a route adds at a time; samples add jitter and spikes.
Rule 2: clients ask every 30 s +- 20 %, and at once (in the next tick) when their region died.
Rule 3: each client asks the gateway that is nearest by the map, as it would by anycast, unless a scenario says
        otherwise.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from gateway.routing.choosing_core import Asked, Candidate, RegionState, choose
from gateway.routing.client_book_core import ClientBook, ClientKey, Observation
from gateway.routing.distance_core import Leg
from mesh.distance.kernel_sample import KernelSample
from mesh.distance.shed_core import SHED_MAX, ShedLoop
from mesh.distance.spread_core import hash_share

TICK_S = 10
ASK_EVERY_S = 30.0
PROBE_EVERY_S = 60.0
SERVICE_MS = 1.0
BACKLOG_MS_MAX = 400.0

Adds = Callable[[float, int, str], float]  # ms that a route adds: time, client, region
Holds = Callable[[float, str], bool]


def nothing_added(_s: float, _client: int, _region: str) -> float:
    """Return 0: every route is as long as the map says."""
    return 0.0


def never(_s: float, _region: str) -> bool:
    """Return False."""
    return False


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What happens. Times are seconds of the world; regions are at `places` of the map, in milliseconds.

    Args:
        near: share of clients that live near each region. border: every client lives between the first two regions.
        head_room: capacity of a region by the load that its own clients make; `small`: of some regions instead.
        dead, gray, silent: at a time, of a region: nobody answers; work takes long; its load is not heard of.
        cut_off: at a time: the gateway of a region hears nobody but itself. one_gateway: every client asks this one.
        adds: what routes add. spikes: share of samples that are late. lies: clients below this share claim 1 ms to all.
        prefix_size: clients with one address prefix, who live at different places.
    """

    name: str
    places: Mapping[str, tuple[float, float]]
    near: Mapping[str, float] = field(default_factory=dict)
    border: bool = False
    head_room: float = 2.0
    small: Mapping[str, float] = field(default_factory=dict)
    dead: Holds = never
    gray: Holds = never
    silent: Holds = never
    cut_off: Holds = never
    adds: Adds = nothing_added
    spikes: float = 0.03
    jitter_ms: float = 2.0
    lies: float = 0.0
    prefix_size: int = 1
    one_gateway: str = ""


@dataclass(kw_only=True)
class Client:
    """One of them: where it is, what it uses, when it asks next."""

    number: int
    key: ClientKey
    gateway: str
    region: str = ""
    asks_s: float = 0.0
    probes_s: float = 0.0
    map_ms: dict[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class Outcome:
    """What a scenario cost.

    Regret: ms more than the nearest region that lives; `forced`: the part of clients that their nearest region sheds.
    `over_s`: longest time that a region was over its capacity. `misled`: time share of clients more than 15 ms worse
    off than need be, unshed.
    """

    regret_ms: float
    forced_ms: float
    misled: float
    p99_ms: float
    queue_ms: float
    switches_per_client_hour: float
    over_share: float
    over_s: float
    shed_most: float

    def row(self) -> str:
        """Return the columns of the table, behind the name."""
        return (
            f"{self.regret_ms:6.2f} {self.forced_ms:6.2f} {100 * self.misled:6.2f} {self.queue_ms:6.1f} "
            f"{self.p99_ms:6.0f} {self.switches_per_client_hour:7.3f} {100 * self.over_share:6.2f} "
            f"{self.over_s:6.0f} {self.shed_most:5.2f}"
        )


HEADER = "regret forced misld% queue    p99 moves/h  over% over_s  shed"


class Region:
    """Load, backlog and shedding of one region."""

    def __init__(self, name: str, capacity: float) -> None:
        self.name, self.capacity = name, capacity
        self.loop = ShedLoop()
        self.backlog_ms = 0.0
        self.over_s = self.over_s_most = 0.0
        self.over_ticks = 0
        self.shed_most = 0.0
        self.was_dead = False
        self.returned_s: float | None = None
        self.heard_s = 0.0
        self.heard_shed = 0.0

    def tick(self, load: float, *, gray: bool) -> None:
        busy = load / self.capacity
        self.backlog_ms = min(BACKLOG_MS_MAX, max(0.0, self.backlog_ms + (busy - 1) * 1000 * TICK_S / 10))
        if busy > 1:
            self.over_s += TICK_S
            self.over_ticks += 1
        else:
            self.over_s = 0.0
        self.over_s_most = max(self.over_s_most, self.over_s)
        # A region that works slowly looks busy by how long work takes: the same loop lets its clients go elsewhere.
        self.loop.step(max(busy, 3.0) if gray else busy)
        self.shed_most = max(self.shed_most, self.loop.share)

    def queue_ms(self, load: float, *, gray: bool) -> float:
        busy = min(load / self.capacity, 0.99)
        return SERVICE_MS * busy / (1 - busy) + self.backlog_ms + (120.0 if gray else 0.0)


class World:
    """Plays one scenario. `run` returns what it cost."""

    def __init__(self, scenario: Scenario, *, clients: int, seed: int) -> None:
        self._scenario = scenario
        self._rng = random.Random(seed)
        self._names = tuple(scenario.places)
        self._clients = [self._client(number, clients) for number in range(clients)]
        own = {name: sum(1 for c in self._clients if self._nearest(c) == name) for name in self._names}
        self._regions = {
            name: Region(name, max(1.0, own[name] * scenario.small.get(name, scenario.head_room)))
            for name in self._names
        }
        self._books = {name: ClientBook() for name in self._names}
        for book in self._books.values():
            book.know_regions(self._names)
        self._switches = 0

    def _client(self, number: int, clients: int) -> Client:
        scenario, rng = self._scenario, self._rng
        weights = [scenario.near.get(name, 1.0) for name in self._names]
        home = rng.choices(self._names, weights)[0]
        x, y = scenario.places[home]
        if scenario.border:
            (ax, ay), (bx, by) = (scenario.places[name] for name in self._names[:2])
            place = ((ax + bx) / 2 + rng.uniform(-1, 1), (ay + by) / 2 + rng.uniform(-20, 20))
        else:
            angle, far = rng.uniform(0, 2 * math.pi), rng.expovariate(1 / 15)
            place = (x + far * math.cos(angle), y + far * math.sin(angle))
        prefix = number // scenario.prefix_size
        client = Client(
            number=number,
            key=ClientKey(f"client-{number}", f"10.{prefix >> 8}.{prefix & 255}.{number % 250 + 1}"),
            gateway="",
            asks_s=rng.uniform(0, ASK_EVERY_S),
        )
        last_mile_ms = rng.uniform(1, 8)
        client.map_ms = {name: last_mile_ms + math.dist(place, scenario.places[name]) for name in self._names}
        client.gateway = scenario.one_gateway or self._nearest(client)
        return client

    # --- the truth -------------------------------------------------------------------------------------------

    def _nearest(self, client: Client) -> str:
        return min(self._names, key=client.map_ms.__getitem__)

    def true_ms(self, client: Client, region: str, now_s: float) -> float:
        return client.map_ms[region] + self._scenario.adds(now_s, client.number, region)

    def _sample_ms(self, client: Client, region: str, now_s: float) -> float:
        rtt_ms = self.true_ms(client, region, now_s) + abs(self._rng.gauss(0, self._scenario.jitter_ms))
        return rtt_ms + self._rng.uniform(20, 200) if self._rng.random() < self._scenario.spikes else rtt_ms

    # --- playing ---------------------------------------------------------------------------------------------

    def run(self, hours: float) -> Outcome:
        ticks = int(hours * 3600 / TICK_S)
        regret = forced = misled = queue = 0.0
        latencies: list[float] = []
        for tick in range(ticks):
            now_s = float(tick * TICK_S)
            alive = [name for name in self._names if not self._scenario.dead(now_s, name)]
            self._regions_live(now_s, alive)
            for client in self._clients:
                self._maybe_ask(client, now_s, alive)
            load = dict.fromkeys(self._names, 0)
            for client in self._clients:
                load[client.region] += 1
            for name, region in self._regions.items():
                region.tick(load[name], gray=self._scenario.gray(now_s, name))
            waits = {n: r.queue_ms(load[n], gray=self._scenario.gray(now_s, n)) for n, r in self._regions.items()}
            for client in self._clients:
                ways = {name: self.true_ms(client, name, now_s) for name in alive}
                extra_ms = max(0.0, ways.get(client.region, 0.0) - min(ways.values()))
                if self._lies(client):
                    continue  # it harms itself, which is its affair
                if self._is_shed(client, min(ways, key=ways.__getitem__)):
                    forced += extra_ms
                else:
                    regret += extra_ms
                    misled += extra_ms > 15
                queue += waits[client.region]
                if tick % 6 == 0:
                    latencies.append(ways.get(client.region, 0.0) + waits[client.region])
        turns = ticks * len(self._clients)
        return Outcome(
            regret_ms=regret / turns,
            forced_ms=forced / turns,
            misled=misled / turns,
            p99_ms=sorted(latencies)[int(len(latencies) * 0.99)],
            queue_ms=queue / turns,
            switches_per_client_hour=self._switches / len(self._clients) / hours,
            over_share=max(region.over_ticks for region in self._regions.values()) / ticks,
            over_s=max(region.over_s_most for region in self._regions.values()),
            shed_most=max(region.shed_most for region in self._regions.values()),
        )

    def _lies(self, client: Client) -> bool:
        return client.number < self._scenario.lies * len(self._clients)

    def _is_shed(self, client: Client, nearest: str) -> bool:
        region = self._regions[nearest]
        return client.region != nearest and hash_share(client.key.text, nearest) < min(
            SHED_MAX, region.loop.share + 0.05
        )

    def _regions_live(self, now_s: float, alive: Sequence[str]) -> None:
        for name, region in self._regions.items():
            if name not in alive:
                region.was_dead = True
                region.loop = ShedLoop()
            elif region.was_dead:
                region.was_dead, region.returned_s = False, now_s
            if not self._scenario.silent(now_s, name):
                region.heard_s, region.heard_shed = now_s, region.loop.share

    def _states(self, gateway: str, now_s: float, alive: Sequence[str]) -> list[RegionState]:
        is_cut_off = self._scenario.cut_off(now_s, gateway)
        return [
            RegionState(
                name=name,
                is_ready=name in alive and (name == gateway or not is_cut_off),
                returned_s=region.returned_s,
                shed=region.heard_shed,
                heard_s=region.heard_s,
                capacity=1.0,
            )
            for name, region in self._regions.items()
        ]

    def _maybe_ask(self, client: Client, now_s: float, alive: Sequence[str]) -> None:
        lost = client.region not in alive
        if now_s < client.asks_s and not lost:
            return
        client.asks_s = now_s + ASK_EVERY_S * self._rng.uniform(0.8, 1.2)
        gateway = client.gateway
        if gateway not in alive and not self._scenario.one_gateway:  # anycast: the next one answers
            gateway = min(alive, key=client.map_ms.__getitem__)
        book = self._books[gateway]
        sample_ms = self._sample_ms(client, gateway, now_s)
        book.saw(client.key, KernelSample(srtt_ms=sample_ms, min_rtt_ms=sample_ms, last_ack_s=0), now_s)
        if now_s >= client.probes_s:
            client.probes_s = now_s + PROBE_EVERY_S * self._rng.uniform(0.8, 1.2)
            book.told(client.key, [self._observe(client, name, now_s) for name in alive], now_s)
        legs: dict[str, Leg | None] = {
            name: Leg(rtt_ms=math.dist(self._scenario.places[gateway], self._scenario.places[name]) + 0.3)
            for name in self._names
        }
        estimates = book.estimates(client.key, legs, {}, now_s)
        candidates = [
            Candidate(state=state, estimate=estimates[state.name]) for state in self._states(gateway, now_s, alive)
        ]
        choice = choose(Asked(key=client.key.text, now_s=now_s), candidates, book.memory(client.key, now_s))
        # A client that is told of a region that does not answer takes the next one on its list at once.
        region = next((verdict.name for verdict in choice.ranked if verdict.name in alive), choice.region)
        if client.region and region != client.region and not lost:
            self._switches += 1
        client.region = region

    def _observe(self, client: Client, region: str, now_s: float) -> Observation:
        if self._lies(client):
            return Observation(region=region, rtt_ms=1.0, samples=3)
        samples = [self._sample_ms(client, region, now_s) for _ in range(4)]
        return Observation(region=region, rtt_ms=median(samples[1:]), samples=3)
