"""Which brokers hold the replicas of a group: the least loaded ones, counted, never drawn by lot.

Rule 1: pure and deterministic; every broker that replays the same commands gets the same voters.
Rule 2: with groups only ever added, no two brokers differ by more than one replica.
Rule 3: the first voter is the preferred leader; it is the chosen broker that leads the fewest groups.
"""

from __future__ import annotations

from collections.abc import Iterable

from georelay.ids import BrokerId


class ReplicaLoad:
    """Wanted replicas and preferred leaderships per broker of one region."""

    def __init__(self) -> None:
        self._held: dict[BrokerId, int] = {}
        self._led: dict[BrokerId, int] = {}

    def copy(self) -> ReplicaLoad:
        """Return the same counts, to plan with."""
        other = ReplicaLoad()
        other._held, other._led = dict(self._held), dict(self._led)
        return other

    def choose(self, replication_factor: int, eligible: Iterable[BrokerId]) -> tuple[BrokerId, ...]:
        """Return min(replication_factor, eligible) distinct brokers, the preferred leader first; takes nothing yet."""
        ranked = sorted(eligible, key=self.rank)
        assert ranked, "no broker is eligible"
        assert replication_factor >= 1, replication_factor
        return self.ordered(ranked[:replication_factor])

    def rank(self, broker: BrokerId) -> tuple[int, int, BrokerId]:
        """Return the sorting key of a broker: the least loaded is the lowest."""
        return self.held(broker), self.led(broker), broker

    def ordered(self, chosen: Iterable[BrokerId]) -> tuple[BrokerId, ...]:
        """Return the brokers with the one that leads the fewest groups first, the others by id."""
        brokers = sorted(chosen)
        first = min(brokers, key=lambda broker: (self.led(broker), broker))
        return (first, *(broker for broker in brokers if broker != first))

    def take(self, target: tuple[BrokerId, ...]) -> None:
        """Count a group."""
        self._count(target, 1)

    def release(self, target: tuple[BrokerId, ...]) -> None:
        """Give back what `take` counted."""
        self._count(target, -1)

    def held(self, broker: BrokerId) -> int:
        """Return how many replicas are wanted on a broker."""
        return self._held.get(broker, 0)

    def led(self, broker: BrokerId) -> int:
        """Return how many groups prefer a broker as leader."""
        return self._led.get(broker, 0)

    def _count(self, target: tuple[BrokerId, ...], step: int) -> None:
        for broker in target:
            self._held[broker] = self.held(broker) + step
            assert self._held[broker] >= 0, (broker, self._held[broker])
        if target:
            self._led[target[0]] = self.led(target[0]) + step
