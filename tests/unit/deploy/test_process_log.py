"""The log lines of brokers and gateways: JSON, with a priority in front where the journal reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from georelay.errors import ConfigError
from georelay.process_log import LEVEL_VARIABLE, configure_log

LEVELS = ("", "debug", "info", "warning", "error")


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """Return what some events become, with standard error being the journal or not."""
    before = structlog.get_config()
    file = tmp_path / "log"

    def say(is_journal: bool, **environment: str) -> list[str]:
        with file.open("w") as stream:
            stat = os.fstat(stream.fileno())
            inode = stat.st_ino if is_journal else stat.st_ino + 1
            configure_log(stream, environment={"JOURNAL_STREAM": f"{stat.st_dev}:{inode}"} | environment)
            log = structlog.get_logger()
            log.debug("controller.not_reached")
            log.info("broker.started", broker=1001)
            log.warning("text.said", text="two\nlines")
            log.critical("broker.failed")
        return file.read_text().splitlines()

    yield say
    structlog.configure(**before)


def test_an_event_is_one_line_of_json_with_its_values(lines: Callable[..., list[str]]) -> None:
    rows = [json.loads(line) for line in lines(False)]
    assert [(row["event"], row["level"]) for row in rows] == [
        ("broker.started", "info"),
        ("text.said", "warning"),
        ("broker.failed", "critical"),
    ]
    assert rows[0]["broker"] == 1001 and rows[0]["timestamp"].endswith("Z")
    assert rows[1]["text"] == "two\nlines"


def test_the_journal_gets_the_same_line_with_its_priority_in_front(lines: Callable[..., list[str]]) -> None:
    rows = lines(True)
    assert [row[:3] for row in rows] == ["<6>", "<4>", "<2>"]
    assert json.loads(rows[0][3:])["event"] == "broker.started"


def test_what_is_below_the_level_that_is_asked_for_is_not_written(lines: Callable[..., list[str]]) -> None:
    said = {level: [json.loads(row)["level"] for row in lines(False, **{LEVEL_VARIABLE: level})] for level in LEVELS}
    every = ["debug", "info", "warning", "critical"]
    assert said == {"": every[1:], "debug": every, "info": every[1:], "warning": every[2:], "error": every[3:]}


def test_a_level_that_is_not_there_is_refused_with_those_that_are(lines: Callable[..., list[str]]) -> None:
    with pytest.raises(ConfigError, match="GEORELAY_LOG_LEVEL must be debug, info, warning, error, not 'loud'"):
        lines(False, **{LEVEL_VARIABLE: "loud"})
