"""The group of nodes of tests/unit/raft, for random schedules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

_PATH = Path(__file__).parents[2] / "unit" / "raft" / "conftest.py"


@pytest.fixture(scope="session")
def cluster_class() -> Any:
    name = "raft_cluster_for_properties"
    spec = importlib.util.spec_from_file_location(name, _PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module.Cluster
