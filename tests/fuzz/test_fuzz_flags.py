"""Every driver of `make fuzz` has the same flags, and says so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRIVERS = sorted(path.stem for path in Path(__file__).parent.glob("fuzz_*.py"))


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_driver_says_what_it_takes(driver: str) -> None:
    command = [sys.executable, "-m", f"tests.fuzz.{driver}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--inputs" in done.stdout
    assert "--seed" in done.stdout


def test_make_fuzz_runs_every_driver() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\nfuzz:")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"-m tests\.fuzz\.(\w+) --inputs \$\(FRAMES\) --seed \$\(SEED\)", recipe)) == DRIVERS
