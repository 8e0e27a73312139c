"""Which failover policies are in force: a topic is taken only from a home that is known to acknowledge under a lease.

`failover=auto` binds both sides: brokers of the home acknowledge only while they hold a lease, and control may move the
home once no lease is left. A home that was cut off before it heard of the change still acknowledges without one.

Rule 1: every renewal of a lease says which policies its broker follows: a digest over (topic id, definition index) of
        the topics with failover=auto that it knows.
Rule 2: a region obeys once each of its brokers has said the digest of what control has. The leader commits the index of
        the newest definition then: all that was defined up to it is obeyed there, whoever leads control later.
Rule 3: a topic whose policy became `auto` at an index is failed over only from regions that obey up to that index. One
        that was made with `auto` waits for nothing: who has not heard of it acknowledges nothing of it.
Rule 4: a broker that is down counts, too: it may only be slow, and alone with its records. One that was removed does
        not.
Rule 5: coordinators are bound by any topic with `auto`, and were there before it was made. So they are failed over only
        from regions that obey up to an index at which a topic became `auto`, or was defined last, that is so since. A
        topic that was made with `auto` and changed later counts from its change: when it was made is not known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Final, Protocol

from georelay.ids import BrokerId, RegionNumber
from region.controller.mesh_rows import RegionRow
from region.controller.topic import TopicDefinition
from region.homes.levels import is_coordination, needs_lease

DIGEST_BYTES: Final = 8  # says whether two are the same; nobody attacks it
DIGEST_CHARS: Final = 2 * DIGEST_BYTES
TOLD_MAX: Final = 64 * 999  # brokers of a mesh


class Policies(Protocol):
    """What control has committed about topics that fail over by themselves."""

    def digest(self) -> str:
        """Return the digest of the topics with failover=auto now."""

    def index(self) -> int:
        """Return the index of the newest definition."""

    def auto_since(self, topic_id: bytes) -> int:
        """Return at which index a topic's policy became `auto`, 0 when it was made so."""

    def newest_auto(self) -> int:
        """Return the highest index at which the policy of a topic became `auto`, 0 without one."""

    def coordinators_since(self) -> int | None:
        """Return from which index on coordinators need a lease for certain (rule 5), None while they need none."""

    def brokers(self, region: RegionNumber) -> Collection[BrokerId]:
        """Return the brokers of a region, those included that are down."""


class Definitions(Protocol):
    """The part "definitions" of control's state."""

    @property
    def index(self) -> int:
        """Return the index of the newest definition."""

    def topics(self) -> Iterable[TopicDefinition]:
        """Return the live topics."""

    def auto_since(self, topic_id: bytes) -> int:
        """Return at which index a topic's policy became `auto`, 0 when it was made so."""

    def newest_auto(self) -> int:
        """Return the highest index at which the policy of a topic became `auto`, 0 without one."""


class Regions(Protocol):
    """The part "regions" of control's state."""

    def row(self, number: int) -> RegionRow | None:
        """Return a region by its number."""


class ControlPolicies:
    """Implements Policies over the parts of control's state."""

    def __init__(self, definitions: Definitions, regions: Regions) -> None:
        self._definitions = definitions
        self._regions = regions
        self._looked_at = -1
        self._digest = ""
        self._coordinators_since: int | None = None
        self.auto_since = definitions.auto_since
        self.newest_auto = definitions.newest_auto

    def digest(self) -> str:
        """Return the digest of the topics with failover=auto now."""
        self._look()
        return self._digest

    def coordinators_since(self) -> int | None:
        """Return from which index on coordinators need a lease for certain, None while they need none."""
        self._look()
        return self._coordinators_since

    def _look(self) -> None:
        if self._looked_at == self.index():
            return
        self._looked_at = self.index()
        topics = [topic for topic in self._definitions.topics() if needs_lease(topic)]
        self._digest = policies_digest(topics)
        self._coordinators_since = min(
            (self.auto_since(topic.topic_id) or topic.index for topic in topics), default=None
        )

    def index(self) -> int:
        """Return the index of the newest definition."""
        return self._definitions.index

    def brokers(self, region: RegionNumber) -> Collection[BrokerId]:
        """Return the brokers that a region reported."""
        row = self._regions.row(region)
        return () if row is None else row.brokers


class Obedience:
    """What brokers told this leader of control. What follows from it is committed by the part "homes"."""

    def __init__(self, policies: Policies | None) -> None:
        self._policies = policies
        self._told: dict[BrokerId, str] = {}

    def clear(self) -> None:
        """Forget what was told: this broker begins to lead, or leads no more."""
        self._told.clear()

    def told(self, broker: BrokerId, digest: str) -> None:
        """Follow a renewal. A digest names one state of the definitions, so an old one never speaks for a newer."""
        if broker in self._told or len(self._told) < TOLD_MAX:
            self._told[broker] = digest

    def newly_obeyed(self, region: RegionNumber, *, so_far: int) -> int | None:
        """Return up to which index a region obeys policies, None when that is nothing beyond `so_far` that matters."""
        policies = self._policies
        if policies is None or max(policies.newest_auto(), policies.coordinators_since() or 0) <= so_far:
            return None
        brokers = policies.brokers(region)
        digest = policies.digest()
        if not brokers or any(self._told.get(broker) != digest for broker in brokers):
            return None
        return policies.index()

    def is_in_force(self, topic: TopicDefinition, *, obeyed: int) -> bool:
        """Return whether a topic may be failed over from a region that obeys policies up to an index."""
        if self._policies is None:
            return True
        if not is_coordination(topic):
            return self._policies.auto_since(topic.topic_id) <= obeyed
        since = self._policies.coordinators_since()
        return since is not None and since <= obeyed


def policies_digest(topics: Iterable[TopicDefinition]) -> str:
    """Return what a broker says of the topics that it knows: 16 hexadecimal digits."""
    rows = sorted(topic.topic_id + topic.index.to_bytes(8, "big") for topic in topics if needs_lease(topic))
    return hashlib.blake2b(b"".join(rows), digest_size=DIGEST_BYTES).hexdigest()
