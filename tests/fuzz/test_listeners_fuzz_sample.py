"""A sample of the fuzz run of the listeners in every test run; `make fuzz` is the long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_three_thousand_wounded_inputs_at_every_listener_break_nothing() -> None:
    command = [sys.executable, "-m", "tests.fuzz.fuzz_listeners", "--inputs", "3000", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=200)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("3000 inputs") == 5
    assert "0 violations" in done.stdout
