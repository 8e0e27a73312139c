"""Which brokers hold the replicas of a group: the least loaded ones, counted, never drawn by lot.

Rule 1: pure and deterministic; every broker that replays the same commands gets the same voters.
Rule 2: with groups only ever added, no two brokers differ by more than one replica.
Rule 3: the first voter is the preferred leader; it is the chosen broker that leads the fewest groups.
"""

from __future__ import annotations

from collections.abc import Iterable

from georelay.ids import BrokerId


class ReplicaLoad:
    """Replicas and preferred leaderships per broker of one region."""

    def __init__(self, brokers: Iterable[BrokerId] = ()) -> None:
        self._held: dict[BrokerId, int] = {}
        self._led: dict[BrokerId, int] = {}
        self.admit(brokers)

    def admit(self, brokers: Iterable[BrokerId]) -> None:
        """Make brokers eligible for new groups; those that are eligible already stay as they are."""
        for broker in sorted(brokers):
            self._held.setdefault(broker, 0)
            self._led.setdefault(broker, 0)

    def choose(self, replication_factor: int) -> tuple[BrokerId, ...]:
        """Return min(replication_factor, brokers) distinct voters and count them as taken."""
        assert self._held, "no broker is eligible"
        assert replication_factor >= 1, replication_factor
        ranked = sorted(self._held, key=lambda broker: (self._held[broker], self._led[broker], broker))
        chosen = ranked[:replication_factor]
        first = min(chosen, key=lambda broker: (self._led[broker], broker))
        voters = (first, *sorted(broker for broker in chosen if broker != first))
        for broker in voters:
            self._held[broker] += 1
        self._led[first] += 1
        return voters

    def release(self, voters: tuple[BrokerId, ...]) -> None:
        """Give back what `choose` took for a group that is gone."""
        for broker in voters:
            self._held[broker] -= 1
            assert self._held[broker] >= 0, (broker, self._held[broker])
        self._led[voters[0]] -= 1

    def replicas(self) -> dict[BrokerId, int]:
        """Return replicas held per broker."""
        return dict(self._held)

    def leaderships(self) -> dict[BrokerId, int]:
        """Return groups per broker that prefer it as leader."""
        return dict(self._led)
