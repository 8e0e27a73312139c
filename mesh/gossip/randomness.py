"""What the cores of gossip ask of a source of randomness: `random.Random` is one, and tests hand in a seeded one."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Randomness(Protocol):
    """The methods of `random.Random` that are used."""

    def random(self) -> float:
        """Return a number in [0, 1)."""
        ...

    def randrange(self, stop: int, /) -> int:
        """Return an integer in [0, stop)."""
        ...

    def shuffle(self, x: MutableSequence[Any], /) -> None:
        """Shuffle in place."""
        ...

    def sample(self, population: Sequence[T], k: int) -> list[T]:
        """Return `k` different elements."""
        ...
