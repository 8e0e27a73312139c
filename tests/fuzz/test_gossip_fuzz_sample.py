"""A sample of the fuzz run of gossip in every test run; `make fuzz` is the long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_five_thousand_mutated_packets_and_blobs_raise_only_the_errors_of_gossip() -> None:
    command = [sys.executable, "-m", "tests.fuzz.fuzz_gossip", "--inputs", "5000", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=200)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 violations" in done.stdout
