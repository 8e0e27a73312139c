"""A figure that brokers do not keep is not 0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from loadtest.bench import mesh_asks

MESH: Any = SimpleNamespace(endpoints={"regions": {"us": {"admin": ["one", "two"]}}})


def test_a_metric_is_that_of_every_broker_and_one_that_there_is_not_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {"one": b"# HELP syncs of a disk\nsyncs 7.0\nsyncs_more 1\n", "two": b"syncs 0.0\n"}
    monkeypatch.setattr(mesh_asks, "ask", lambda *_, address: told[address])
    assert mesh_asks.metric(MESH, "us", "syncs") == [7.0, 0.0]
    with pytest.raises(LookupError, match="two has no metric syncs_more"):
        mesh_asks.metric(MESH, "us", "syncs_more")
