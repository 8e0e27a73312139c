"""Where members are in Vivaldi's space, as far as this one has pinged them (serf-wire 2.8). Pure."""

from __future__ import annotations

from collections import Counter

from mesh.gossip.codec import decode_coordinate, encode_coordinate
from mesh.gossip.coordinate_core import Coordinate, CoordinateClient
from mesh.gossip.faults import CodecError, CoordinateFault
from mesh.gossip.randomness import Randomness


class SerfMap:
    """Own coordinate, and those of others at their last ping. me: own name."""

    def __init__(self, *, me: str, rng: Randomness, counts: Counter[str]) -> None:
        self._me = me
        self._client = CoordinateClient(rng=rng)
        self._seen: dict[str, Coordinate] = {}
        self._counts = counts

    @property
    def own(self) -> Coordinate:
        """Return where this member is."""
        return self._client.coordinate

    def payload(self) -> bytes:
        """Return the own coordinate as acknowledgements carry it."""
        return encode_coordinate(self._client.coordinate)

    def pinged(self, name: str, rtt_s: float, payload: bytes) -> None:
        """Learn from one round trip; what cannot be true is counted and dropped."""
        if not payload:
            return
        try:
            other = decode_coordinate(payload)
            self._client.update(name, other, rtt_s)
        except (CodecError, CoordinateFault):
            self._counts["coordinate_refused"] += 1
            return
        self._seen[name] = other

    def rtt_s(self, first: str, second: str) -> float | None:
        """Return the estimated round trip between two members, None while one was never pinged."""
        if first == second:
            return 0.0
        one, other = self._of(first), self._of(second)
        return None if one is None or other is None else one.distance_s(other)

    def forget(self, name: str) -> None:
        """Forget a member that was erased."""
        self._seen.pop(name, None)
        self._client.forget(name)

    def _of(self, name: str) -> Coordinate | None:
        return self._client.coordinate if name == self._me else self._seen.get(name)
