"""Options every test may use, what no test may leave behind, and which process of pytest-xdist runs which file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import pytest
import structlog

ONE_PROCESS: Final = "tests/sla/"  # the folder whose tests share a JVM: another would start and warm up in vain


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="store golden transcripts instead of comparing")


def scope_of(nodeid: str) -> str:
    """Return what a test is handed out with: its file, or the whole folder of ONE_PROCESS."""
    return ONE_PROCESS if nodeid.startswith(ONE_PROCESS) else nodeid.partition("::")[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest piece of work comes first: what begins last is short, and no process waits long for the other.
    items.sort(key=lambda item: not item.nodeid.startswith(ONE_PROCESS))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = scope_of
    return scheduling


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A test that runs a program in this process configures what later tests look at: put it back."""
    before, disabled = structlog.get_config(), logging.root.manager.disable
    processors = list(before["processors"])  # capture_logs changes the list itself
    yield
    before["processors"][:] = processors
    structlog.configure(**before)
    logging.disable(disabled)
