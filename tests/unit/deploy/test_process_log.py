"""The log lines of brokers and gateways: JSON, with a priority in front where the journal reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
import structlog

from georelay.process_log import LogLevel, configure_log


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """Return what some events become, with standard error being the journal or not."""
    before = structlog.get_config()
    file = tmp_path / "log"

    def say(is_journal: bool, level: LogLevel = "info") -> list[str]:
        with file.open("w") as stream:
            stat = os.fstat(stream.fileno())
            inode = stat.st_ino if is_journal else stat.st_ino + 1
            configure_log(level, stream, environment={"JOURNAL_STREAM": f"{stat.st_dev}:{inode}"})
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
    said = {level: [json.loads(row)["level"] for row in lines(False, level)] for level in get_args(LogLevel)}
    every = ["debug", "info", "warning", "critical"]
    assert said == {"debug": every, "info": every[1:], "warning": every[2:], "error": every[3:]}
