"""A sample of the fuzz run of the text protocol in every test run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DRIVER = Path(__file__).with_name("fuzz_text.py")


def test_five_thousand_mutated_conversations_break_no_rule_of_the_text_protocol() -> None:
    command = [sys.executable, str(DRIVER), "--inputs", "5000", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 violations" in done.stdout
