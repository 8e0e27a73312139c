"""Coordinators as the services of a broker see them: which broker keeps what, and how it is asked.

Rule 1: a key (group id, transactional id, queue name) belongs to one coordinator for ever: murmur2 of its UTF-8 bytes,
        as Kafka's partitioner, modulo the partitions of the internal topic.
Rule 2: an answer comes from the leader of that coordinator only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from georelay.ids import BrokerId, RegionNumber
from region.coordination.log import CoordinatorLog
from region.coordination.part import CoordinatorPart, JsonObject, Part

INTERNAL_TOPIC: Final = "__georelay_coordinators"
COORDINATORS: Final = 8  # partitions of the internal topic; a key's place depends on it, so it never changes
COORDINATION_LEVEL: Final = 3  # feature level from which a region has coordinators
MOVES_LEVEL: Final = 4  # feature level from which homes move, and commands of parts name home epochs
PRINCIPALS_LEVEL: Final = 7  # feature level of every region from which commands say whose a name is
CALL_TIMEOUT_S: Final = 10.0

MakePart = Callable[[CoordinatorLog], CoordinatorPart]


class RemoteBroker(Protocol):
    """A broker of another region, as Kafka clients reach it."""

    @property
    def broker(self) -> int:
        """Return its id."""

    @property
    def kafka_host(self) -> str:
        """Return its host."""

    @property
    def kafka_port(self) -> int:
        """Return its port."""


class Coordinators(Protocol):
    """The coordinators of this region (RegionCoordinators; InMemoryCoordinators in tests)."""

    def register(self, part: Part, make: MakePart) -> None:
        """Have every coordinator hosted here hold such a part; before the broker starts.

        Raises:
            ValueError: there is one already.
        """

    def partition_of(self, key: str) -> int:
        """Return the coordinator of a key, 0-based."""

    def leader_of(self, key: str, part: Part = Part.GROUPS) -> BrokerId:
        """Return the broker that leads the coordinator of a key, -1 while unknown.

        It is of another region where this one's coordinators were moved there. Creates the internal topic in the
        background where it is absent.
        """

    def elsewhere(self, broker: int) -> RemoteBroker | None:
        """Return how clients reach a broker of another region that `leader_of` has named."""

    async def ready(self, key: str, part: Part = Part.GROUPS) -> BrokerId:
        """Return the same once there is a leader.

        Raises:
            CoordinatorUnavailable: there is none within a few seconds.
        """

    def part_here(self, key: str, part: Part) -> CoordinatorPart:
        """Return the part that answers for a key, when this broker leads its coordinator.

        Raises:
            NotCoordinator: another broker does, or nobody yet. CoordinatorLoading: elected, not caught up yet.
        """

    def parts_here(self, part: Part) -> Iterable[CoordinatorPart]:
        """Return this part of every coordinator that this broker leads, ascending by partition."""

    async def call(
        self,
        part: Part,
        key: str,
        operation: str,
        body: JsonObject,
        *,
        principal: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
        origin: RegionNumber | None = None,
    ) -> JsonObject:
        """Ask the part that answers for a key, here or at another broker; asked again when the leader has changed.

        Args:
            timeout_s: for all tries together; a call that waits for others (join, sync) passes what it needs.
            origin: the region whose coordinators keep it, wherever they are at home; None: whoever has the name.

        Raises:
            what the part raises; CoordinatorUnavailable: no leader within the time; OutcomeUnknown: the answer is lost.
        """

    async def gather(
        self,
        part: Part,
        operation: str,
        body: JsonObject,
        *,
        principal: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> list[JsonObject]:
        """Ask this part of every coordinator; [] while there is no internal topic. Raises as `call`."""
