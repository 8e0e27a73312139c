"""A sample of the fuzz run of links in every test run; `make fuzz` is the long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_four_thousand_mutated_frames_are_decoded_or_refused_and_links_live_on_or_close() -> None:
    command = [sys.executable, "-m", "tests.fuzz.fuzz_links", "--inputs", "4000", "--seed", "11"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=200)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 violations" in done.stdout
