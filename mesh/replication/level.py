"""What a publish asks of the home: a durability, until when, and whether to refuse it before it is stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from georelay.durability import Durability

DEADLINE_MS: Final = 30_000  # of a geo level without one
DEADLINE_MS_MAX: Final = 300_000
_DEADLINE_BITS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedLevel:
    """A durability as it travels from the broker that was asked to the home.

    Args:
        durability: counted by the home: how many regions hold the topic is its knowledge.
        deadline_ms: 1..300000, from when the home's leader takes the batch; later it is answered as pending.
        needs_live: refuse it before it is stored while fewer than the asked regions are reached, as Kafka's acks=all.
        as_topic: at least what the topic's min.insync.regions says where the home takes the batch: who asks from
            another region may not have heard yet that it was raised.
    """

    durability: Durability = Durability.REGION
    deadline_ms: int = DEADLINE_MS
    needs_live: bool = False
    as_topic: bool = False

    @property
    def is_geo(self) -> bool:
        """Return whether more than the home is asked for."""
        return self.durability.is_geo

    @property
    def may_wait(self) -> bool:
        """Return whether the home may have to wait for other regions, as far as whoever asks can tell."""
        return self.is_geo or self.as_topic

    @property
    def shared(self) -> AskedLevel:
        """Return the level under which publishes of nearly the same patience share what is kept for a level.

        The deadline goes up to four significant bits: at most 12.5 % later, and fewer than 150 of them exist.
        """
        shift = self.deadline_ms.bit_length() - _DEADLINE_BITS
        if not self.is_geo or shift <= 0:
            return self
        rounded_ms = (self.deadline_ms + (1 << shift) - 1) >> shift << shift
        return replace(self, deadline_ms=min(rounded_ms, DEADLINE_MS_MAX))


REGION_LEVEL: Final = AskedLevel()
