"""A sample of the fuzz run of links in every test run; the driver by itself is the long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DRIVER = Path(__file__).with_name("fuzz_links.py")


def test_four_thousand_mutated_frames_are_decoded_or_refused_and_links_live_on_or_close() -> None:
    command = [sys.executable, str(DRIVER), "--frames", "4000", "--seed", "11"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 violations" in done.stdout
