"""The command line `georelay-sla`. Spark is imported only by a command that has something to do with it.

Exit codes: 0 pass, 1 breach, 2 usage, 3 inconclusive or no data, 4 Spark, Java or file system failed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from georelay.errors import GeorelayError
from sla.commands import cluster, doctor, generate, live, report, traces
from sla.commands.arguments import OneLineParser
from sla.errors import JobFailed, NoTraces, UsageError

_ROOMS: Final = (report, live, traces, generate, cluster, doctor)  # each has `register(commands)`
INTERRUPTED: Final = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. An error is one line on standard error."""
    try:
        arguments = _parser().parse_args(argv)
        status: int = arguments.run(arguments)
    except (NoTraces, UsageError, JobFailed) as error:
        return _fail(error, error.exit_status)
    except (GeorelayError, OSError) as error:
        return _fail(error, JobFailed.exit_status)
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _fail(error: Exception, status: int) -> int:
    sys.stderr.write(f"georelay-sla: {' '.join(str(error).split())}\n")
    return status


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="georelay-sla",
        description="Judge what the brokers of a mesh measured against its targets.",
        epilog="exit codes: 0 pass, 1 breach, 2 usage, 3 inconclusive or no data, 4 Spark, Java or file system failed",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for room in _ROOMS:
        room.register(commands)
    return parser
