"""What homes need from the broker around them; the composition root hands it in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from georelay.fields import JsonObject
from georelay.ids import RegionNumber


class Control(Protocol):
    """Mesh control, as one broker sees it (region.control.mesh_control.MeshControl)."""

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads control."""

    async def propose(self, part: str, command: JsonObject) -> JsonObject:
        """Commit a command at the leader; return the outcome once it is applied here.

        Raises:
            NotLeader, Unavailable: not committed. OutcomeUnknown. The refusal of the part.
        """

    async def call(self, method: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        """Ask the leader, from any broker. Raises ControlUnavailable, or what the leader raised."""


class ConfirmLeader(Protocol):
    """Says whether this broker still leads control."""

    async def __call__(self) -> None:
        """Return once a majority of the voters confirmed, after the call, that this broker leads control.

        Raises:
            NotLeader, Unavailable: it may not.
        """


class AskRegion(Protocol):
    """Asks any broker of a region, the own one included."""

    async def __call__(
        self, region: RegionNumber, method: str, body: JsonObject, *, timeout_s: float
    ) -> Mapping[str, Any]:
        """Return the answer; raises GeorelayError."""
