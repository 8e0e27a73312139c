"""The command line `georelay-sla`. Spark is imported only by a command that has something to do with it.

Exit codes: 0 pass, 1 breach, 2 usage, 3 inconclusive or no data, 4 Spark, Java, the file system or this program
failed, 130 interrupted.

Rule 1: 1 is a verdict. Whatever nobody thought of ends with 4, where Python by itself would end with 1.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from typing import Final

from georelay.errors import GeorelayError
from sla.commands import cluster, doctor, generate, live, report, ship, traces
from sla.commands.arguments import OneLineParser
from sla.errors import JobFailed, NoTraces, UsageError

_ROOMS: Final = (report, live, traces, ship, generate, cluster, doctor)  # each has `register(commands)`
PROGRAM: Final = "georelay-sla"
INTERRUPTED: Final = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. An error is one line on standard error."""
    given = list(sys.argv[1:] if argv is None else argv)
    return guarded(given[0] if given else PROGRAM, lambda: _run(given))


def guarded(what: str, call: Callable[[], int]) -> int:
    """Return what a call returns, or the exit code of what it raised, said in one line.

    Args:
        what: names in that line what went on.
    """
    try:
        return call()
    except (NoTraces, UsageError, JobFailed) as error:
        return _fail(str(error), error.exit_status)
    except (GeorelayError, OSError) as error:
        return _fail(str(error), JobFailed.exit_status)
    except ModuleNotFoundError as error:
        return _fail(f"{what}: {error}; `{PROGRAM} doctor` says what to install", JobFailed.exit_status)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except Exception as error:  # noqa: BLE001 (said in full, in a file; Python's own exit code means a missed target)
        return _fail_by_mistake(what, error)


def _run(given: list[str]) -> int:
    arguments = _parser().parse_args(given)
    status: int = arguments.run(arguments)
    return status


def _fail(text: str, status: int) -> int:
    sys.stderr.write(f"{PROGRAM}: {' '.join(text.split())}\n")
    return status


def _fail_by_mistake(what: str, error: Exception) -> int:
    """Say that the mistake is ours, and keep the traceback in a file: it may not happen a second time."""
    found = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    text = f"{what}: a mistake of {PROGRAM} itself, nothing was judged: {found}"
    trace = "".join(traceback.format_exception(error))
    try:
        descriptor, path = tempfile.mkstemp(prefix=f"{PROGRAM}-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(trace)
    except OSError:
        status = _fail(f"{text} (traceback: below)", JobFailed.exit_status)
        sys.stderr.write(trace)
        return status
    return _fail(f"{text} (traceback: {path})", JobFailed.exit_status)


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog=PROGRAM,
        description="Judge what the brokers of a mesh measured against its targets.",
        epilog="exit codes: 0 pass, 1 breach, 2 usage, 3 inconclusive or no data, 4 Spark, Java, the file system or "
        "this program failed, 130 interrupted",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for room in _ROOMS:
        room.register(commands)
    return parser
