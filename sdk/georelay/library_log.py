"""What the SDK has to say: a library is silent until its application asks.

Rule 1: an application that has configured structlog, as brokers and gateways do, gets the events there, with their
        values as fields.
Rule 2: everybody else gets them from the standard library's logger `georelay`, which has a NullHandler: nothing is
        printed until the application sets up `logging`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

_STANDARD: Final = logging.getLogger("georelay")
_STANDARD.addHandler(logging.NullHandler())


class LibraryLog:
    """Says events, named `noun.verb_past`, with values."""

    def debug(self, event: str, **values: object) -> None:
        """Say what only a search for a fault wants to know."""
        self._say(logging.DEBUG, event, values)

    def info(self, event: str, **values: object) -> None:
        """Say what happened."""
        self._say(logging.INFO, event, values)

    def warning(self, event: str, **values: object) -> None:
        """Say what somebody should look at."""
        self._say(logging.WARNING, event, values)

    def error(self, event: str, **values: object) -> None:
        """Say what failed."""
        self._say(logging.ERROR, event, values)

    @staticmethod
    def _say(level: int, event: str, values: dict[str, object]) -> None:
        structlog: Any = sys.modules.get("structlog")  # who has configured it has imported it
        if structlog is not None and structlog.is_configured():
            getattr(structlog.get_logger(), logging.getLevelName(level).lower())(event, **values)
        elif _STANDARD.isEnabledFor(level):
            _STANDARD.log(level, "%s", " ".join([event, *(f"{name}={value!r}" for name, value in values.items())]))


log: Final = LibraryLog()
