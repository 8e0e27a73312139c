"""Times of transactions: the operator's limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TIMEOUT_MS_MAX_DEFAULT: Final = 15 * 60 * 1000  # Kafka's transaction.max.timeout.ms
EXPIRY_MS_DEFAULT: Final = 7 * 24 * 60 * 60 * 1000  # Kafka's transactional.id.expiration.ms


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Limits of one broker's coordinators.

    Args:
        timeout_ms_max: largest transaction timeout that a producer may ask for.
        expiry_ms: after which an id without an open transaction is forgotten.
        look_interval_s: between two looks for what has timed out or expired.
    """

    timeout_ms_max: int = TIMEOUT_MS_MAX_DEFAULT
    expiry_ms: int = EXPIRY_MS_DEFAULT
    look_interval_s: float = 1.0
