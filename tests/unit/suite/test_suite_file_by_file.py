"""Processes that collect a file when it is handed to them report what one process does that collects all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

INI = """
[pytest]
addopts = --import-mode=importlib
markers = slow: later
asyncio_default_fixture_loop_scope = function
"""
CONFTEST = """
import pytest
pytest_plugins = ["tests.file_by_file"]

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    yield 1
"""
IMPORTED = """
import os, pytest
with open(os.environ["IMPORTED"], "a") as out:
    out.write(__file__ + chr(10))
"""
FILES = {
    "test_cases.py": """
@pytest.mark.parametrize("case", ["good", "bad"])
def test_case(case, shared):
    assert case == "good"

class TestOfAClass:
    def test_method(self):
        pass

@pytest.mark.slow
def test_slow():
    assert False
""",
    "test_fixtures.py": """
@pytest.fixture
def never():
    raise OSError("no set-up")

@pytest.fixture
def once():
    yield
    raise OSError("no tear-down")

def test_set_up(never):
    pass

def test_tear_down(once):
    pass
""",
    "test_unreadable.py": "raise OSError('no import')\n",
    "one/test_first.py": "def test_first(shared):\n    pass\n",
    "one/test_none.py": "@pytest.mark.slow\ndef test_none():\n    assert False\n",
    "two/test_other.py": "def test_other(shared):\n    pass\n",
}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(INI)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(IMPORTED + text)
    return tmp_path


def run(suite: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[list[str], list[str]]:
    """Return what became of the tests, and the files that were imported."""
    imported = suite / "imported"
    imported.unlink(missing_ok=True)
    monkeypatch.setenv("IMPORTED", str(imported))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # what this suite was started with
    command = [sys.executable, "-m", "pytest", "-rA", "-q", "-m", "not slow", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=suite, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    outcomes = [line for line in done.stdout.splitlines() if line.startswith(("PASSED", "FAILED", "ERROR"))]
    return sorted(outcomes), sorted(imported.read_text().splitlines())


def test_files_handed_out_end_as_in_one_process_and_each_is_imported_once(
    suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, _ = run(suite, monkeypatch, "--continue-on-collection-errors", "-p", "no:xdist")
    assert len(alone) == 9, alone
    handed_out = ("--dist", "loadfile", "--no-loadscope-reorder")
    assert run(suite, monkeypatch, "-n", "1", *handed_out)[0] == alone
    beside, imported = run(suite, monkeypatch, "-n", "2", *handed_out)
    assert beside == alone
    assert imported == sorted(str(suite / name) for name in FILES)
