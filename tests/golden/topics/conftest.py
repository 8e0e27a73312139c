"""The stream bench of the unit tests, for entries as a leader writes them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

_UNIT = Path(__file__).parents[2] / "unit" / "topics" / "conftest.py"


@pytest.fixture(scope="session")
def make_bench() -> Any:
    spec = importlib.util.spec_from_file_location("topics_bench_golden", _UNIT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.StreamBench
