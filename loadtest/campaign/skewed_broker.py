"""The shipping broker with a clock that is wrong by as much as its region's: `--clocks FILE --config FILE`.

FILE of the clocks is JSON, region -> milliseconds. The configuration of a development mesh says that every broker reads
one clock; that line is left out, so that offsets and bounds are measured. The rest is `python -m region.faults`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Final

SAME_CLOCK: Final = "clock_error_us ="


def prepared(config: Path, clocks: dict[str, int]) -> tuple[Path, Path]:
    """Write configuration and control file of a broker beside its own configuration, and return their paths."""
    text = config.read_text(encoding="utf-8")
    region = str(tomllib.loads(text)["region"])
    skewed, control = config.with_suffix(".skewed.toml"), config.with_suffix(".faults.json")
    lines = [line for line in text.splitlines() if not line.startswith(SAME_CLOCK)]
    skewed.write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = {"version": 1, "generation": 1, "wall_step_ms": clocks.get(region, 0)}
    control.write_text(json.dumps(settings), encoding="utf-8")
    return skewed, control


def main() -> None:
    """Become the broker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clocks", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    options = parser.parse_args()
    config, control = prepared(options.config, json.loads(options.clocks.read_text(encoding="utf-8")))
    words = ["-P", "-m", "region.faults", "broker", "--break-things"]
    words += ["--config", str(config), "--control", str(control)]
    os.execv(sys.executable, (sys.executable, *words))  # noqa: S606 - our own words


if __name__ == "__main__":
    main()
