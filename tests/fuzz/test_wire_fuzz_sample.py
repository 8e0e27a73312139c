"""A sample of the fuzz run in every test run; `make fuzz` is the long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_seven_thousand_mutated_frames_raise_only_the_protocol_error_and_hit_nine_branches_of_ten() -> None:
    command = [sys.executable, "-m", "tests.fuzz.fuzz_wire", "--inputs", "7000", "--seed", "7", "--coverage"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=200)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "decoder branches hit" in done.stdout
    assert "0 violations" in done.stdout
