"""A core of region eu on a made-up clock."""

from __future__ import annotations

import pytest

from mesh.tracing.recorder_core import RecorderCore

REGIONS = {1: "us", 2: "eu"}


@pytest.fixture
def core() -> RecorderCore:
    return RecorderCore(region="eu", broker=2001, first_session=100, region_name=REGIONS.__getitem__)
