"""A sample of the fuzz run of the text protocol in every test run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_five_thousand_mutated_conversations_break_no_rule_of_the_text_protocol() -> None:
    command = [sys.executable, "-m", "tests.fuzz.fuzz_text", "--inputs", "5000", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 violations" in done.stdout
