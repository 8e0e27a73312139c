"""`georelay-sla` and `python -m sla`."""

from __future__ import annotations

import sys

from sla import cli


def main() -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(cli.main())


if __name__ == "__main__":
    main()
