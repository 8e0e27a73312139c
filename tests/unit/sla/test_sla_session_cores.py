"""How many cores a master of one machine takes: shuffles are cut by it."""

from __future__ import annotations

import os

import pytest

from sla.session import local_cores


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[2]", 2),
        ("local[4,3]", 4),
        ("local[*]", os.cpu_count()),
        ("local-cluster[2,1,1024]", None),
        ("spark://127.0.0.1:7077", None),
        ("yarn", None),
    ],
)
def test_only_a_master_within_one_process_has_cores_of_its_own(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores
