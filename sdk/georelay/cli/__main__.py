"""Entry point of the command `georelay`."""

from __future__ import annotations

import sys

from georelay.cli.application import run


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
