"""What holds for every unit test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.tracing import memory_file


@pytest.fixture(scope="session", autouse=True)
def no_memory_folder() -> Iterator[None]:
    """Keep open rows in the folders of the tests, which are removed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(memory_file, "MEMORY_FOLDER", Path("/nowhere"))
        yield
