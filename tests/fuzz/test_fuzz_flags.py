"""Every driver of `make fuzz` has the same flags, and says so."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRIVERS = sorted(path.stem for path in Path(__file__).parent.glob("fuzz_*.py"))


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_driver_says_what_it_takes(
    driver: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [driver, "--help"])
    monkeypatch.delitem(sys.modules, f"tests.fuzz.{driver}", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"tests.fuzz.{driver}", run_name="__main__")
    assert not ended.value.code
    said = capsys.readouterr().out
    assert "--inputs" in said
    assert "--seed" in said


def test_make_fuzz_runs_every_driver() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\nfuzz:")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"-m tests\.fuzz\.(\w+) --inputs \$\(FRAMES\) --seed \$\(SEED\)", recipe)) == DRIVERS
