"""The shipping broker with a disk and a clock that can be broken: `--config FILE`, as `georelay up` starts brokers.

What is broken stands in the control file beside the configuration (loadtest.chaos.control_file). The rest is
`python -m region.faults`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from loadtest.chaos.control_file import ControlFile


def control_path(config: Path) -> Path:
    """Return the control file of a broker's configuration."""
    return config.with_suffix(".faults.json")


def main() -> None:
    """Become the broker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    config: Path = parser.parse_args().config
    control = control_path(config)
    if not control.exists():
        ControlFile(control)
    words = ["-P", "-m", "region.faults", "broker", "--break-things"]
    words += ["--config", str(config), "--control", str(control)]
    os.execv(sys.executable, (sys.executable, *words))  # noqa: S606 - our own words


if __name__ == "__main__":
    main()
