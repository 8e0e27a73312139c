"""What the commands of `georelay-sla` have in common: option types, defaults and how progress is shown.

Rule 1: a wrong argument is one line with exit code 2, never a usage text of twenty lines.
Rule 2: nothing here loads Spark, pandas or numpy: `--help` and wrong arguments answer at once.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn, Protocol

from rich.console import Console
from rich.text import Text

from sla.errors import NoTraces, UsageError
from sla.sources.layout import Period
from sla.sources.location import KNOWN_SCHEMES, Location
from sla.spark_properties import read_properties

TRACES_DEFAULT: Final = "traces"
TRACES_OF_MESH: Final = "georelay-data/traces"  # where `georelay up` writes them
TRACES_VARIABLE: Final = "GEORELAY_TRACES"
ROLLUPS_NAME: Final = "rollups"
PLAIN_WIDTH_CHARS: Final = 160  # of output that is not a terminal
PROGRESS_EVERY_S: Final = 10  # a line, where no line can be drawn over
SECONDS_MAX: Final = 10 * 366 * 86_400
SETTLE_S_MAX: Final = 24 * 3_600  # later rows of an hour are not looked for
_URI: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})([smhd])")
_SECONDS_OF: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

OnStep = Callable[[str], None]


class Subparsers(Protocol):
    """What `add_subparsers` returns."""

    def add_parser(self, name: str, *, help: str, description: str | None = None) -> argparse.ArgumentParser:
        """Return the parser of a new command."""


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise UsageError(f"{message} (see {self.prog} --help)")


def add_traces(parser: argparse.ArgumentParser) -> None:
    """Add `--traces` and `--rollups`."""
    parser.add_argument(
        "--traces",
        metavar="URI",
        help="directory or s3://, gs://, abfs:// URI the brokers' files are in (default: "
        f"${TRACES_VARIABLE}, else ./{TRACES_DEFAULT}, else ./{TRACES_OF_MESH} of `georelay up`)",
    )
    parser.add_argument(
        "--rollups", metavar="DIR", help=f"directory of the roll-ups (default: {ROLLUPS_NAME} beside the traces)"
    )


def add_spark(parser: argparse.ArgumentParser) -> None:
    """Add `--master` and `--conf`."""
    parser.add_argument("--master", default="local[2]", help="Spark master (default: local[2])")
    parser.add_argument(
        "--conf", type=setting, action="append", default=[], metavar="K=V", help="Spark setting, repeatable"
    )
    parser.add_argument(
        "--properties-file",
        type=_settings_file,
        action="extend",
        dest="conf",
        metavar="FILE",
        help="file of Spark settings, such as secret.conf of a cluster; what is secret in it no process list shows",
    )


def add_period(parser: argparse.ArgumentParser) -> None:
    """Add `--from`, `--to` and `--last`."""
    parser.add_argument("--from", dest="start", type=moment, metavar="TIME", help="ISO 8601, UTC when without a zone")
    parser.add_argument("--to", dest="end", type=moment, metavar="TIME", help="first moment that is not counted")
    parser.add_argument("--last", type=duration_s, metavar="LENGTH", help="such as 24h or 30d, up to now")


def period_of(arguments: argparse.Namespace, now_s: Callable[[], float] = time.time) -> Period:
    """Return the period that was asked for.

    Raises:
        UsageError: the ends contradict each other, or are more than ten years apart; an open end is now.
    """
    start, end = arguments.start, arguments.end
    if arguments.last is not None:
        if start is not None or end is not None:
            raise UsageError("--last goes up to now: give it, or --from and --to")
        end = datetime.datetime.fromtimestamp(int(now_s()) // 60 * 60, tz=datetime.UTC)
        start = end - datetime.timedelta(seconds=arguments.last)
    if start is not None and end is not None and start >= end:
        raise UsageError("--from must be before --to")
    if start is not None:
        last = datetime.datetime.fromtimestamp(now_s(), tz=datetime.UTC) if end is None else end
        if (last - start).total_seconds() > SECONDS_MAX:
            raise UsageError(f"{start.date()} to {last.date()}: 10 years at most; give a shorter period")
    return Period(start=start, end=end)


def traces_of(arguments: argparse.Namespace) -> str:
    """Return where the traces are: what was said, else what the environment says, else the first default there is.

    Raises:
        UsageError: a URI of a scheme that nobody reads.
        NoTraces: nobody said it, and none of the defaults is there.
    """
    said = arguments.traces or os.environ.get(TRACES_VARIABLE)
    if said:
        scheme = _URI.match(said)
        if scheme is not None and scheme[1] not in KNOWN_SCHEMES:
            known = ", ".join(KNOWN_SCHEMES)
            raise UsageError(f"--traces {said}: unknown scheme {scheme[1]!r}; write a directory or {known}://")
        return str(said)
    for found in (TRACES_DEFAULT, TRACES_OF_MESH):
        if Path(found).exists():
            return found
    raise NoTraces(
        f"no traces: neither {TRACES_DEFAULT} nor {TRACES_OF_MESH} (of `georelay up`) is in this directory; "
        "say with --traces where they are"
    )


def beside_traces(traces: str, name: str) -> Path:
    """Return a directory beside the traces; below the working directory when these are in an object store."""
    root = _directory(traces)
    return Path(name) if root is None else root.resolve().parent / name


def rollups_of(arguments: argparse.Namespace) -> str:
    """Return the directory of the roll-ups.

    Raises:
        UsageError: it cannot be one; or the traces are in an object store and nobody said where the roll-ups go.
        NoTraces: nobody said where the traces are, either.
    """
    if arguments.rollups is not None:
        root = _directory(arguments.rollups)
        if root is None:
            where = "a directory, mounted on every machine of a cluster"
            raise UsageError(f"--rollups must be {where}, not {arguments.rollups}")
        if root.exists() and not root.is_dir():
            raise UsageError(f"--rollups must be a directory, but {root} is a file")
        return str(root)
    traces = traces_of(arguments)
    if _directory(traces) is None:
        raise UsageError("the traces are in an object store: say with --rollups DIR where the roll-ups go")
    return str(beside_traces(traces, ROLLUPS_NAME))


def _directory(where: str) -> Path | None:
    """Return the path of a directory or file:// URI, None for any other URI."""
    scheme = _URI.match(where)
    if scheme is None:
        return Path(where)
    return Path(Location.open(where).root) if scheme[1] == "file" else None


@contextlib.contextmanager
def progress() -> Iterator[OnStep]:
    """Show the steps of a long command on standard error: drawn over on a terminal, else a line now and then."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("") as status:
            yield lambda step: status.update(Text(f"{step} ..."))
        return
    said_at = time.monotonic()

    def say(step: str) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= PROGRESS_EVERY_S:
            said_at = time.monotonic()
            sys.stderr.write(f"georelay-sla: {step} ...\n")

    yield say


def output_console() -> Console:
    """Return the console of standard output."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH_CHARS)


def moment(text: str) -> datetime.datetime:
    """Read an ISO 8601 time."""
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no ISO 8601 time, such as 2025-01-31T12:00") from None
    try:
        return found.replace(tzinfo=datetime.UTC) if found.tzinfo is None else found.astimezone(datetime.UTC)
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time that UTC has a date for") from None


def duration_s(text: str) -> int:
    """Read a length of time such as 90s, 15m, 24h or 30d as seconds."""
    match = _DURATION.fullmatch(text)
    seconds = int(match[1]) * _SECONDS_OF[match[2]] if match else 0
    if not 0 < seconds <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time, such as 90s, 15m, 24h or 30d")
    return seconds


def settle_s(text: str) -> int:
    """Read how long an hour waits for late records, as seconds."""
    seconds = duration_s(text)
    if seconds > SETTLE_S_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than late records are looked for: 24h at most")
    return seconds


def _settings_file(text: str) -> list[tuple[str, str]]:
    return read_properties(Path(text))


def setting(text: str) -> tuple[str, str]:
    """Read a Spark setting."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key, value
