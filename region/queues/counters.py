"""What the queues of one broker count beside the replicated counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class QueueCounters:
    """Of all queues led here since the broker started. `leases_refused`: requests that named a lease that was over."""

    delivered: int = 0
    acknowledged: int = 0
    rejected: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    leases_expired: int = 0
    leases_refused: int = 0
    consumers_lost: int = 0
    records_expired: int = 0
    records_skipped: int = 0
    room_refusals: int = 0
