"""The shipping broker with a disk and a clock that can be broken: `--config FILE`, as `georelay up` starts brokers.

What is broken stands in the control file beside the configuration (loadtest.load.control_file); it is made when it is
not there. `--clocks FILE`, JSON of region -> milliseconds: the clocks of that region are wrong by as much from the
beginning. The configuration of a development mesh says that every broker reads one clock; that line is left out then,
so that offsets and bounds are measured. `--wires FILE`, JSON of "us-1 us-2" and "us eu-1" -> address: where us-1 dials
instead of at its peer us-2, and every broker of us instead of at the link listener of eu-1, whoever told them where
these are. The rest is `python -m region.faults`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from loadtest.load.control_file import ControlFile

SAME_CLOCK: Final = "clock_error_us ="


def control_path(config: Path) -> Path:
    """Return the control file of a broker's configuration."""
    return config.with_suffix(".faults.json")


def prepared(config: Path, clocks: Mapping[str, float]) -> Path:
    """Make the control file of a broker; return its configuration, another one where clocks are wrong."""
    control = control_path(config)
    if not clocks:
        if not control.exists():
            ControlFile(control)
        return config
    text = config.read_text(encoding="utf-8")
    ControlFile(control).set(wall_step_ms=int(clocks.get(tomllib.loads(text)["region"], 0)))
    skewed = config.with_suffix(".skewed.toml")
    lines = [line for line in text.splitlines() if not line.startswith(SAME_CLOCK)]
    skewed.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return skewed


def wires_of(config: Path, told: Mapping[str, str]) -> dict[str, str]:
    """Return where a broker dials instead of at others, whose configurations are beside its own."""
    wires = {}
    for pair, address in told.items():
        source, target = pair.split()
        if source in (config.stem, config.stem.rpartition("-")[0]):
            document = tomllib.loads(config.with_name(f"{target}.toml").read_text(encoding="utf-8"))
            wires[str(document["listen"]["peers" if source == config.stem else "link"])] = address
    return wires


def main() -> None:
    """Become the broker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--clocks", type=Path)
    parser.add_argument("--wires", type=Path)
    options = parser.parse_args()
    clocks = json.loads(options.clocks.read_text(encoding="utf-8")) if options.clocks else {}
    words = ["-P", "-m", "region.faults", "broker", "--break-things"]
    words += ["--config", str(prepared(options.config, clocks)), "--control", str(control_path(options.config))]
    if options.wires:
        wires = options.config.with_suffix(".wires.json")
        told = json.loads(options.wires.read_text(encoding="utf-8"))
        wires.write_text(json.dumps(wires_of(options.config, told)), encoding="utf-8")
        words += ["--wires", str(wires)]
    os.execv(sys.executable, (sys.executable, *words))  # noqa: S606 - our own words


if __name__ == "__main__":
    main()
