"""Where the Kafka clients of this broker go while operators drain its region for clients. Pure.

Every Kafka client goes where Metadata says that the leaders are. So brokers of a region that is drained answer with the
brokers and leaders of another region, and refuse to be leaders themselves: no client has to know that there are
regions, and one that begins at a broker of the drained region is led on as well (docs/adr/0049-clients-leave.md).

Rule 1: only what the other region leads as well is left to it. What it does not have, a region's own stream of a topic
        with homes=every among it, is served here as before.
Rule 2: nobody is sent before the other region has said who leads there, nor for long after it last did.
Rule 3: clients leave one after the other over SPREAD_S, by name and address, in the order that gateways keep as well.
        Metadata and the rest answer a client alike, so each of them sees the partitions move once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from georelay.ids import RegionNumber
from mesh.distance.spread_core import has_to_leave
from region.controller.topic import Homes, TopicView
from region.kafka.operator_views import BrokerInfo


class ClientDrain:
    """What Kafka's handlers ask. `own`: name of this region. `version` changes with the answers."""

    def __init__(self, own: str, *, monotonic_s: Callable[[], float]) -> None:
        self.version = 0
        self._own = own
        self._monotonic_s = monotonic_s
        self._since_s: float | None = None  # when the other region first said who leads there
        self.heading: RegionNumber | None = None  # the region that clients are to go to; None: they stay
        self._region = ""
        self._brokers: tuple[BrokerInfo, ...] = ()
        self._leaders: Mapping[bytes, Sequence[int]] = {}

    @property
    def is_open(self) -> bool:
        """Return whether clients are sent away now."""
        return bool(self._brokers)

    def sends(self, client: str) -> bool:
        """Return whether this client (`client_key`) is sent away now: its turn has come (rule 3)."""
        if not self._brokers or self._since_s is None:
            return False
        return has_to_leave(client, self._own, self._monotonic_s() - self._since_s)

    @property
    def region(self) -> str:
        """Return the name of the region that they are sent to."""
        return self._region

    @property
    def brokers(self) -> Sequence[BrokerInfo]:
        """Return the brokers there; () while clients stay."""
        return self._brokers

    def head_for(self, region: RegionNumber | None) -> None:
        """Send clients to a region once it has said who leads there; None: they stay."""
        if region != self.heading:
            self.heading, self._since_s = region, None
            self.stay()

    def took(self, region: str, brokers: Sequence[BrokerInfo], leaders: Mapping[bytes, Sequence[int]]) -> None:
        """Take in what the other region says.

        Args:
            brokers: those that run. leaders: topic id -> broker per partition; one that is not among them is none.
        """
        known = {broker.id for broker in brokers}
        led = {topic: tuple(broker if broker in known else -1 for broker in row) for topic, row in leaders.items()}
        said = (region, tuple(brokers), led)
        if said != (self._region, self._brokers, self._leaders):
            self._region, self._brokers, self._leaders = said
            self.version += 1
            if self._since_s is None and brokers:
                self._since_s = self._monotonic_s()

    def stay(self) -> None:
        """Serve everybody here again, until the other region says more."""
        self.took("", (), {})

    def leader(self, view: TopicView, partition: int) -> int | None:
        """Return the broker that clients of a partition are sent to, whose turn has come; None: they stay here."""
        if not self._brokers or view.homes is not Homes.ONE or view.internal:
            return None
        row = self._leaders.get(view.topic_id, ())
        leader = row[partition] if 0 <= partition < len(row) else -1
        return leader if leader > 0 else None
