"""The log of a broker or gateway process: one event a line, as JSON, on standard error.

Rule 1: the same line everywhere. Where standard error is systemd's journal (JOURNAL_STREAM, systemd.exec(5)) it has
        its priority in front, as sd-daemon(3) writes it; the journal takes that off and keeps it as PRIORITY.
Rule 2: what is below the level of the configuration is not written. Events of `debug` come as often as something is
        tried, up to ten times a second; from `info` on they come when something changes.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, Final, Literal, TextIO

import structlog

LogLevel = Literal["debug", "info", "warning", "error"]
_LEVELS: Final[dict[LogLevel, int]] = {
    "debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR,
}  # fmt: skip
PRIORITIES: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}  # syslog(3)


def configure_log(
    level: LogLevel, stream: TextIO | None = None, *, environment: Mapping[str, str] = os.environ
) -> None:
    """Send the events of this process from `level` on to `stream`, standard error when None."""
    stream = sys.stderr if stream is None else stream
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _for_journal if _is_journal(stream, environment) else _as_json,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )


_json: Final = structlog.processors.JSONRenderer()


def _as_json(logger: Any, method: str, event: structlog.typing.EventDict) -> str:
    return str(_json(logger, method, event))


def _for_journal(logger: Any, method: str, event: structlog.typing.EventDict) -> str:
    priority = PRIORITIES.get(str(event.get("level")), PRIORITIES["info"])
    return f"<{priority}>{_as_json(logger, method, event)}"


def _is_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    named = environment.get("JOURNAL_STREAM")
    if not named:
        return False
    try:
        stat = os.fstat(stream.fileno())
    except OSError:  # a stream without a file
        return False
    return named == f"{stat.st_dev}:{stat.st_ino}"
