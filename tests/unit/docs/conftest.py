"""Paths and small readers that the document tests share."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("sdk/georelay", "mesh", "region", "gateway", "sla", "loadtest", "deploy")
GENERATED = "_pb"


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository's folder."""
    return ROOT


@pytest.fixture(scope="session")
def python_files() -> list[Path]:
    """Return every Python file of the product, generated ones left out."""
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) if GENERATED not in path.parts]
    return [*files, ROOT / "hatch_build.py"]


@pytest.fixture(scope="session")
def documents() -> list[Path]:
    """Return every Markdown file that is tracked or is about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for path in (ROOT / line for line in listed.stdout.splitlines()) if path.exists()]


Rows = Callable[[str], list[list[str]]]


@pytest.fixture(scope="session")
def table_rows() -> Rows:
    """Return a reader: the cells of every table row in a text, heads and rulers left out."""

    def read(text: str) -> list[list[str]]:
        rows: list[list[str]] = []
        for line in text.splitlines():
            if re.fullmatch(r"\|[-:| ]+\|", line):
                rows.pop()  # the head of the table
            elif line.startswith("|"):
                rows.append([cell.strip() for cell in line.strip("|").split("|")])
        return rows

    return read
