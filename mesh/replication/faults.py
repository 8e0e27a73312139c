"""Errors across a link: the same class, code and text arrive at the other end.

An unknown code (of a newer broker) becomes OutcomeUnknown: claiming "not stored" would be a guess.
"""

from __future__ import annotations

from typing import Final

from georelay import errors
from georelay.errors import GeorelayError, NotHome, NotLeader, OutcomeUnknown, Retry
from mesh.replication.frames import Fault

LANE_RESET: Final = "LANE_RESET"  # an earlier batch of the lane failed: this one was not looked at
_CLASSES: Final[dict[str, type[GeorelayError]]] = {
    value.code: value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, GeorelayError) and value is not GeorelayError
}


def to_fault(error: GeorelayError) -> Fault:
    """Return the error as it travels."""
    if isinstance(error, NotLeader):
        return Fault(error.code, str(error), leader=error.leader)
    if isinstance(error, NotHome):
        return Fault(error.code, str(error), epoch=max(error.epoch, 0), home=max(error.home, 0))
    return Fault(error.code, str(error))


def from_fault(fault: Fault) -> GeorelayError:
    """Return the error that arrived; an unknown code of a newer broker leaves the outcome unknown."""
    if fault.code == NotLeader.code:
        return NotLeader(fault.text, leader=fault.leader)
    if fault.code == NotHome.code:
        return NotHome(fault.text, epoch=fault.epoch, home=fault.home)
    known = _CLASSES.get(fault.code)
    return OutcomeUnknown(f"{fault.code}: {fault.text}") if known is None else known(fault.text)


def poisons_lane(error: GeorelayError) -> bool:
    """Return whether later batches of the lane must not overtake the failed one (it may be sent again)."""
    return error.retry is not Retry.NEVER
