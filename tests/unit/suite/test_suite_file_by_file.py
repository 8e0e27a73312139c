"""Processes that collect a file when it is handed to them report what a process does that collects all of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

INI = """
[pytest]
addopts = --import-mode=importlib
markers =
    slow: later
    timeout: of a plugin that is not used here
"""
CONFTEST = """
import os, pytest
pytest_plugins = ["tests.file_by_file"]

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    yield 1

def pytest_runtest_call(item):
    if "::" in item.nodeid:  # a file of which nothing is run is an item too
        with open(os.environ["RUN"], "a") as out:
            out.write(item.nodeid + chr(10))
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
    # a folder of ONE_PROCESS: who runs it goes on with another folder after a file of which no test is wanted
    "tests/interop/test_first.py": "def test_first(shared):\n    pass\n",
    "tests/interop/test_none.py": "@pytest.mark.slow\ndef test_none():\n    assert False\n",
    "other/test_other.py": "def test_other(shared):\n    pass\n",
}
RUN = [
    "other/test_other.py::test_other",
    "test_cases.py::TestOfAClass::test_method",
    "test_cases.py::test_case[bad]",
    "test_cases.py::test_case[good]",
    "test_fixtures.py::test_tear_down",
    "tests/interop/test_first.py::test_first",
]
BAD = [
    "ERROR test_fixtures.py::test_set_up",
    "ERROR test_fixtures.py::test_tear_down",
    "ERROR test_unreadable.py",
    "FAILED test_cases.py::test_case[bad]",
]
UNUSED_PLUGINS = ("cacheprovider", "hypothesispytest", "asyncio", "timeout", "locust")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(INI)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(IMPORTED + text)
    return tmp_path


def test_files_handed_out_report_all_that_one_process_would_and_each_is_imported_once(
    suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported, run = suite / "imported", suite / "run"
    monkeypatch.setenv("IMPORTED", str(imported))
    monkeypatch.setenv("RUN", str(run))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # what this suite was started with
    options = ["-q", "-m", "not slow", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    options += [f"-pno:{name}" for name in UNUSED_PLUGINS]
    command = [sys.executable, "-m", "pytest", *options]
    done = subprocess.run(command, cwd=suite, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert sorted(run.read_text().splitlines()) == RUN
    lines = [line.partition(" - ")[0] for line in done.stdout.splitlines()]
    assert sorted(line for line in lines if line.startswith(("FAILED", "ERROR"))) == BAD
    assert lines[-1].startswith("1 failed, 5 passed, 3 errors in "), done.stdout
    assert sorted(imported.read_text().splitlines()) == sorted(str(suite / name) for name in FILES)
