"""`python -m loadtest.history FILE...`: judge a recorded history; exit code 0 valid, 1 not valid, 2 not readable."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from loadtest.history.checker_core import check
from loadtest.history.history_file import read_history
from loadtest.history.operation import HistoryError


def main(arguments: list[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.history",
        description="Judge a recorded history: the files of all processes of one workload together.",
        epilog="The form of the files is described in loadtest/history/history_file.py.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        verdict = check(read_history(options.files))
    except (HistoryError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(verdict.describe())
    return 0 if verdict.is_valid else 1


if __name__ == "__main__":
    sys.exit(main())
