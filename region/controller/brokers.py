"""The life of a broker in its region: states, events and the one table that joins them.

ACTIVE    takes replicas (once it is registered)
DRAINING  keeps what it holds until others hold it; gets nothing new
DRAINED   holds no replica; it may be removed, or added again
ABSENT    not heard for so long that others take over its replicas; comes back by being heard
REMOVED   forgotten; its disk never counts again, its id only after it was added again, as a new life

Rule 1: a wish that the table does not name is refused; nothing changes state in any other way.
Rule 2: a generation counts the lives of a broker: a new disk and an addition after a removal begin a new one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from georelay.fields import Fields, JsonObject
from georelay.ids import BrokerId
from region.controller.registration import ADDRESS_CHARS_MAX, DISK_UUID_CHARS_MAX, BrokerRegistration
from region.controller.topology import BROKER_ID_MAX

GENERATION_MAX: Final = 2**31


class BrokerState(enum.StrEnum):
    """See the module's text."""

    ACTIVE = "active"
    DRAINING = "draining"
    DRAINED = "drained"
    ABSENT = "absent"
    REMOVED = "removed"


class BrokerEvent(enum.Enum):
    """What happens to a broker, by wish or by itself."""

    ADD = "add"
    DRAIN = "drain"
    EMPTIED = "emptied"
    REMOVE = "remove"
    AWAY = "away"
    BACK = "back"
    NEW_DISK = "new_disk"


_STATE: Final = BrokerState
_EVENT: Final = BrokerEvent
TRANSITIONS: Final[Mapping[tuple[BrokerState, BrokerEvent], BrokerState]] = {
    (_STATE.ACTIVE, _EVENT.ADD): _STATE.ACTIVE,
    (_STATE.DRAINING, _EVENT.ADD): _STATE.ACTIVE,
    (_STATE.DRAINED, _EVENT.ADD): _STATE.ACTIVE,
    (_STATE.ABSENT, _EVENT.ADD): _STATE.ABSENT,
    (_STATE.REMOVED, _EVENT.ADD): _STATE.ACTIVE,
    (_STATE.ACTIVE, _EVENT.DRAIN): _STATE.DRAINING,
    (_STATE.DRAINING, _EVENT.DRAIN): _STATE.DRAINING,
    (_STATE.DRAINED, _EVENT.DRAIN): _STATE.DRAINED,
    (_STATE.DRAINING, _EVENT.EMPTIED): _STATE.DRAINED,
    (_STATE.DRAINED, _EVENT.REMOVE): _STATE.REMOVED,
    (_STATE.ABSENT, _EVENT.REMOVE): _STATE.REMOVED,
    (_STATE.REMOVED, _EVENT.REMOVE): _STATE.REMOVED,
    (_STATE.ACTIVE, _EVENT.AWAY): _STATE.ABSENT,
    (_STATE.ABSENT, _EVENT.AWAY): _STATE.ABSENT,
    (_STATE.ACTIVE, _EVENT.BACK): _STATE.ACTIVE,
    (_STATE.ABSENT, _EVENT.BACK): _STATE.ACTIVE,
    (_STATE.ACTIVE, _EVENT.NEW_DISK): _STATE.ACTIVE,
    (_STATE.DRAINING, _EVENT.NEW_DISK): _STATE.DRAINING,
    (_STATE.DRAINED, _EVENT.NEW_DISK): _STATE.DRAINED,
    (_STATE.ABSENT, _EVENT.NEW_DISK): _STATE.ACTIVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRecord:
    """One broker as its region knows it.

    Args:
        generation: counts its lives from 1.
        peers: "host:port" of its peer listener as whoever added it said; "" unknown.
        founding_disk: the disk with which it founded the region, until it registers; "" when it did not.
        registration: what it said about itself, None until it came.
    """

    broker: BrokerId
    state: BrokerState = BrokerState.ACTIVE
    generation: int = 1
    peers: str = ""
    founding_disk: str = ""
    registration: BrokerRegistration | None = None

    @property
    def disk(self) -> str:
        """Return the uuid of the only disk that may speak for this broker, "" while none is known."""
        return self.founding_disk if self.registration is None else self.registration.disk_uuid

    @property
    def peer_address(self) -> str:
        """Return "host:port" of its peer listener, "" while unknown; its own word counts more than others'."""
        own = "" if self.registration is None else self.registration.peers
        return own or self.peers

    @property
    def takes_replicas(self) -> bool:
        """Return whether new replicas may be put on it."""
        return self.state is BrokerState.ACTIVE and self.registration is not None

    @property
    def counts(self) -> bool:
        """Return whether it is part of the region's strength: there, or expected back."""
        return self.state in (BrokerState.ACTIVE, BrokerState.ABSENT) and self.registration is not None

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return {
            "broker": self.broker,
            "state": str(self.state),
            "generation": self.generation,
            "peers": self.peers,
            "founding_disk": self.founding_disk,
            "registration": None if self.registration is None else self.registration.to_json(),
        }

    @classmethod
    def from_json(cls, value: object) -> BrokerRecord:
        """Read the JSON form. Raises FieldError."""
        fields = Fields(value, "broker")
        registration = fields.value("registration")
        record = cls(
            broker=BrokerId(fields.integer("broker", low=1001, high=BROKER_ID_MAX)),
            state=fields.member("state", BrokerState),
            generation=fields.integer("generation", low=1, high=GENERATION_MAX),
            peers=fields.text("peers", chars_max=ADDRESS_CHARS_MAX),
            founding_disk=fields.text("founding_disk", chars_max=DISK_UUID_CHARS_MAX),
            registration=None if registration is None else BrokerRegistration.from_json(registration),
        )
        fields.done()
        return record


def after(state: BrokerState, event: BrokerEvent) -> BrokerState | None:
    """Return the state that follows, None when the table forbids it."""
    return TRANSITIONS.get((state, event))
