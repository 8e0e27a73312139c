"""How the clients of a benchmark are told to connect."""

from __future__ import annotations

import pytest

from loadtest.bench.client_settings import PLAIN, VARIABLE, environment, from_environment


def test_a_client_process_gets_the_settings_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = environment({"sasl.username": "ann"})
    monkeypatch.setenv(VARIABLE, given[VARIABLE])
    assert from_environment() == {"sasl.username": "ann"}


def test_without_settings_a_client_speaks_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert from_environment() == {}
    assert environment(PLAIN)[VARIABLE] == "{}"
