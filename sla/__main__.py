"""`georelay-sla` and `python -m sla`."""

from __future__ import annotations

import sys

from sla import cli


def main() -> None:
    """Run the command line and leave with its exit code, with no JVM left behind."""
    code = cli.main()
    if "pyspark" in sys.modules:  # only a command that ran Spark has paid for the import
        code = cli.guarded("stopping Java", _without_java) or code
    sys.exit(code)


def _without_java() -> int:
    from sla.session import stop_java

    stop_java()
    return 0


if __name__ == "__main__":
    main()
