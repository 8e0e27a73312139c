"""Health of one broker as seen from here: an Enum and one table, so that a single lost probe changes nothing.

One bad answer only raises a doubt, the second one takes the broker out; coming back takes two good answers.
A refused connection is no weather but a fact (nothing listens there) and counts at once.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class Probe(enum.Enum):
    """What one probe of /readyz found."""

    OK = "ok"  # answered 200
    FAILED = "failed"  # another status, a broken connection or no answer in time
    REFUSED = "refused"  # nothing listens


class Health(enum.Enum):
    """Life of a broker in the eyes of a gateway."""

    UNKNOWN = "unknown"  # not probed yet
    READY = "ready"
    DOUBTED = "doubted"  # one failed probe after READY: still used
    UNREADY = "unready"
    RETURNING = "returning"  # one good probe after UNREADY: not used yet

    @property
    def ready(self) -> bool:
        """Return whether clients are sent to this broker."""
        return self in (Health.READY, Health.DOUBTED)


TRANSITIONS: Final[Mapping[tuple[Health, Probe], Health]] = {
    (Health.UNKNOWN, Probe.OK): Health.READY,
    (Health.UNKNOWN, Probe.FAILED): Health.UNREADY,
    (Health.UNKNOWN, Probe.REFUSED): Health.UNREADY,
    (Health.READY, Probe.OK): Health.READY,
    (Health.READY, Probe.FAILED): Health.DOUBTED,
    (Health.READY, Probe.REFUSED): Health.UNREADY,
    (Health.DOUBTED, Probe.OK): Health.READY,
    (Health.DOUBTED, Probe.FAILED): Health.UNREADY,
    (Health.DOUBTED, Probe.REFUSED): Health.UNREADY,
    (Health.UNREADY, Probe.OK): Health.RETURNING,
    (Health.UNREADY, Probe.FAILED): Health.UNREADY,
    (Health.UNREADY, Probe.REFUSED): Health.UNREADY,
    (Health.RETURNING, Probe.OK): Health.READY,
    (Health.RETURNING, Probe.FAILED): Health.UNREADY,
    (Health.RETURNING, Probe.REFUSED): Health.UNREADY,
}
