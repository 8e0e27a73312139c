"""`georelay-sla` and `python -m sla`."""

from __future__ import annotations

import sys

from sla import cli


def main() -> None:
    """Run the command line and leave with its exit code, with no JVM left behind."""
    code = cli.main()
    if "pyspark" in sys.modules:  # only a command that ran Spark has paid for the import
        from sla.session import stop_java

        stop_java()
    sys.exit(code)


if __name__ == "__main__":
    main()
