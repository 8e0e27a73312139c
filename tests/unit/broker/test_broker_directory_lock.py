"""A broker that starts while a report seals its traces waits for the moment that takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from georelay.ids import BrokerId
from region.app import LOCK_WAIT_S, Broker
from region.config import BrokerConfig
from region.log.data_directory import DataDirectory, held_while_idle


async def test_a_broker_starts_though_its_directory_is_held_for_a_moment(
    make_config: Callable[[], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BrokerConfig.model_validate(make_config())
    data_dir = Path(config.data_dir)
    DataDirectory.open(data_dir, mesh_id=config.mesh_id, broker_id=BrokerId(1001)).close()
    with ExitStack() as held:
        assert held.enter_context(held_while_idle(data_dir))
        waits: list[float] = []

        def let_go(seconds: float) -> None:
            waits.append(seconds)
            held.close()

        monkeypatch.setattr(time, "sleep", let_go)
        broker = Broker(config)
    assert len(waits) == 1
    assert LOCK_WAIT_S >= 5
    broker.core.close_files()
