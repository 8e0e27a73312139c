"""Options every test may use, and what no test may leave behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="store golden transcripts instead of comparing")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A test that runs a program in this process configures what later tests look at: put it back."""
    before, disabled = structlog.get_config(), logging.root.manager.disable
    processors = list(before["processors"])  # capture_logs changes the list itself
    yield
    before["processors"][:] = processors
    structlog.configure(**before)
    logging.disable(disabled)
