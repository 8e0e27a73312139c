"""Makes loadtest/data/orders.ndjson: the order events of a small web shop, the same on every machine.

`python -m loadtest.orders > loadtest/data/orders.ndjson`. An order lives through the events placed, paid,
packed, shipped and delivered (or cancelled), so that order within a key can be checked by a reader.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

ORDERS = 5_200
OPEN_ORDERS_MAX = 400
LIFE = ("placed", "paid", "packed", "shipped", "delivered")
COUNTRIES = ("US", "CA", "DE", "FR", "PL", "SG", "JP", "IN", "AU", "BR")
CANCELLED_SHARE = 0.08
FIRST_UNIX_MS = 1_790_000_000_000


def events(seed: int = 7) -> Iterator[dict[str, Any]]:
    """Yield the events in the order in which they happened."""
    rng = random.Random(seed)
    waiting: list[tuple[int, list[str]]] = []
    next_order, now_ms = 1, FIRST_UNIX_MS
    while next_order <= ORDERS or waiting:
        if next_order <= ORDERS and ((len(waiting) < OPEN_ORDERS_MAX and rng.random() < 0.25) or not waiting):
            life = list(LIFE) if rng.random() > CANCELLED_SHARE else [*LIFE[: rng.randint(1, 3)], "cancelled"]
            waiting.append((next_order, life))
            row = len(waiting) - 1
            next_order += 1
        else:
            row = rng.randrange(len(waiting))
        order, life = waiting[row]
        now_ms += rng.randint(5, 2_000)
        yield {
            "key": f"order-{order:05d}",
            "event": life.pop(0),
            "at_ms": now_ms,
            "country": COUNTRIES[order % len(COUNTRIES)],
            "total_cents": 500 + (order * 7919) % 90_000,
        }
        if not life:
            waiting.pop(row)


if __name__ == "__main__":
    for event in events():
        sys.stdout.write(json.dumps(event, separators=(",", ":")) + "\n")
