"""Leases as clients carry them: texts that name queue, record and delivery, and mean nothing once that is over."""

from __future__ import annotations

import re
from typing import Final

from georelay.errors import BadRequest
from region.queues.queue_core import Claim

LEASE_CHARS_MAX: Final = 60
_LEASE: Final = re.compile(r"([0-9a-f]{1,16})\.([0-9a-f]{1,8})\.([0-9a-f]{1,16})\.([0-9a-f]{1,8})")
NOBODYS: Final = Claim(-1, -1, -1)  # of an earlier queue of the same name


def lease_text(made_us: int, claim: Claim) -> str:
    """Return the text of a lease of the queue that was made then."""
    return f"{made_us:x}.{claim.partition:x}.{claim.offset:x}.{claim.deliveries:x}"


def read_lease(text: object, made_us: int) -> Claim:
    """Return what a lease's text names, NOBODYS for a queue that was made at another time (BadRequest: no lease)."""
    found = _LEASE.fullmatch(text) if isinstance(text, str) and len(text) <= LEASE_CHARS_MAX else None
    if found is None:
        raise BadRequest("leases: holds something that is no lease")
    made, partition, offset, deliveries = (int(number, 16) for number in found.groups())
    return Claim(partition, offset, deliveries) if made == made_us and offset < 2**63 else NOBODYS
