"""The same in-memory region as the Kafka tests use (loaded by path: test folders are not packages)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location(
    "kafka_fakes", Path(__file__).resolve().parents[1] / "kafka" / "conftest.py"
)
assert _SPEC is not None and _SPEC.loader is not None
_FAKES = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_FAKES)

cluster = _FAKES.cluster
credentials = _FAKES.credentials
recorder = _FAKES.recorder
