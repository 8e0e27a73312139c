"""Leases as clients carry them: texts that name queue, record and delivery, and mean nothing once that is over.

Rule: clients may say anything. What could not have been given is refused before it becomes a command: a delivery count
of 0 means a record that nobody had, and only the leader itself says something about those.
A lease also names its generation: the home epoch of the queue's coordinator, and that of the record's partition, which
the queue followed then. Where both are the first, they are left out, as in leases of before queues moved.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from georelay.errors import BadRequest
from georelay.fields import INT64_MAX
from georelay.limits import PARTITIONS_PER_TOPIC_MAX
from region.queues.queue_core import FIRST_EPOCH, Claim
from region.queues.state_core import Generation

LEASE_CHARS_MAX: Final = 80
FIRST_GENERATION: Final[Generation] = (FIRST_EPOCH, FIRST_EPOCH)
_NUMBERS: Final = r"([0-9a-f]{1,16})\.([0-9a-f]{1,8})\.([0-9a-f]{1,16})\.([0-9a-f]{1,8})"
_LEASE: Final = re.compile(rf"{_NUMBERS}(?:\.([0-9a-f]{{1,8}})\.([0-9a-f]{{1,8}}))?")


class Lease(NamedTuple):
    """What the text of a lease says. `made_us` is when its queue was made."""

    made_us: int
    claim: Claim
    generation: Generation


def lease_text(lease: Lease) -> str:
    """Return the text of a lease."""
    claim = lease.claim
    text = f"{lease.made_us:x}.{claim.partition:x}.{claim.offset:x}.{claim.deliveries:x}"
    if lease.generation == FIRST_GENERATION:
        return text
    home_epoch, cut_epoch = lease.generation
    return f"{text}.{home_epoch:x}.{cut_epoch:x}"


def read_lease(text: object) -> Lease:
    """Return what a lease's text says (BadRequest: no lease)."""
    found = _LEASE.fullmatch(text) if isinstance(text, str) and len(text) <= LEASE_CHARS_MAX else None
    if found is None:
        raise BadRequest("leases: holds something that is no lease")
    made_us, partition, offset, deliveries, home_epoch, cut_epoch = (
        int(number, 16) if number else FIRST_EPOCH for number in found.groups()
    )
    if not deliveries or partition >= PARTITIONS_PER_TOPIC_MAX or offset > INT64_MAX:
        raise BadRequest("leases: holds one that was never given")
    return Lease(made_us, Claim(partition, offset, deliveries), (home_epoch, cut_epoch))
