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
import pathlib, signal, time, pytest

def test_signal():
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        pathlib.Path("interrupted_as_usual").touch()

@pytest.mark.timeout(0.5)
def test_first():
    try:
        time.sleep(300)
    finally:
        time.sleep(300)

def test_second():
    pathlib.Path("goes_on").touch()
"""
IGNORING = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
)


Ran = tuple[subprocess.CompletedProcess[str], set[str]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run such a suite from a shell that ignores SIGINT; return what it said, and the files its tests made."""
    suite = tmp_path_factory.mktemp("suite")
    (suite / "suite_rules.py").write_text(RULES.read_text())
    (suite / "conftest.py").write_text(CONFTEST)
    (suite / "pytest.ini").write_text(INI)
    (suite / "test_it.py").write_text(HANGING)
    unused = [f"-pno:{name}" for name in ("cacheprovider", "hypothesispytest", "xdist", "asyncio", "locust")]
    command = [sys.executable, "-c", IGNORING, sys.executable, "-m", "pytest", "-q", *unused, "test_it.py"]
    done = subprocess.run(command, cwd=suite, capture_output=True, text=True, timeout=250, check=False)
    return done, {path.name for path in suite.iterdir()}


def test_a_test_that_outlives_its_own_timeout_ends_its_process_with_the_stacks_of_all_threads(ran: Ran) -> None:
    done, made = ran
    assert done.returncode == 1
    assert "Timeout (0:00:02)!" in done.stderr
    assert "in test_first" in done.stderr
    assert "goes_on" not in made


def test_tests_are_interrupted_as_usual_where_the_shell_lets_them_ignore_it(ran: Ran) -> None:
    done, made = ran
    assert "interrupted_as_usual" in made, done.stdout + done.stderr
