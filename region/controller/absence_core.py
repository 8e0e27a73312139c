"""How long brokers have not been heard, by the clock of one controller leader. Pure: the time is handed in.

A new leader knows nothing: it starts to count when it starts to look, so a broker is declared absent late rather than
wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping

from georelay.ids import BrokerId


class AbsenceWatch:
    """Since when each broker has not been heard.

    Args:
        after_s: seconds after which a broker is absent; 0 or less: never.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._silent_since: dict[BrokerId, float] = {}

    def look(self, now_s: float, alive: Mapping[BrokerId, bool]) -> None:
        """Take note of who is heard at `now_s` (monotonic); brokers that are not named are forgotten."""
        self._silent_since = {
            broker: self._silent_since.get(broker, now_s) for broker, is_heard in alive.items() if not is_heard
        }

    def is_absent(self, broker: BrokerId, now_s: float) -> bool:
        """Return whether a broker has been silent for long enough."""
        since = self._silent_since.get(broker)
        return since is not None and self._after_s > 0 and now_s - since >= self._after_s

    def forget(self) -> None:
        """Know nothing again: this broker does not lead any more."""
        self._silent_since.clear()
