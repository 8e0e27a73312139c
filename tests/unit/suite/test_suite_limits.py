"""What holds for every test of this project: none runs for ever, and none depends on how the suite was started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RULES = Path(__file__).parents[2] / "conftest.py"
CONFTEST = """
import suite_rules
suite_rules.END_S_MAX = 1.5
from suite_rules import *
"""
INI = "[pytest]\ntimeout = 300\n"
HANGING = """
import time, pytest

@pytest.mark.timeout(0.5)
def test_first():
    try:
        time.sleep(300)
    finally:
        time.sleep(300)

def test_second():
    print("never reached")
"""
INTERRUPTED = """
import signal

def test_signal():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""
IGNORING = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "suite_rules.py").write_text(RULES.read_text())
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(INI)
    return tmp_path


def run(suite: Path, text: str, *before: str) -> subprocess.CompletedProcess[str]:
    (suite / "test_it.py").write_text(text)
    command = [*before, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_it.py"]
    return subprocess.run(command, cwd=suite, capture_output=True, text=True, timeout=120, check=False)


def test_a_test_that_outlives_its_own_timeout_ends_its_process_with_the_stacks_of_all_threads(suite: Path) -> None:
    done = run(suite, HANGING)
    assert done.returncode == 1
    assert "Timeout (0:00:02)!" in done.stderr
    assert "in test_first" in done.stderr
    assert "passed" not in done.stdout


def test_tests_are_interrupted_as_usual_where_the_shell_lets_them_ignore_it(suite: Path) -> None:
    done = run(suite, INTERRUPTED, sys.executable, "-c", IGNORING)
    assert done.returncode == 0, done.stdout
