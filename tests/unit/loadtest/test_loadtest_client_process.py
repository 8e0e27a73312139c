"""Clients of a benchmark that do not do what they should are told with their own words."""

from __future__ import annotations

import pytest

from loadtest.bench import client_process
from loadtest.bench.client_process import ClientProcess


def test_a_client_that_says_nothing_is_ended_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot connect waits for ever; so did a comparison."""
    monkeypatch.setattr(client_process, "SECONDS_MAX", 0.1)
    silent = ClientProcess("json.tool")  # waits for an input that does not come
    with pytest.raises(RuntimeError, match=r"^tool: it said nothing for 0.1 s$"):
        silent.said()


def test_a_client_that_failed_is_told_with_its_words() -> None:
    failed = ClientProcess("json.tool", "no such file")
    with pytest.raises(RuntimeError, match="no such file"):
        failed.said()
