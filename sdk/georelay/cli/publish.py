"""`georelay publish`: every line of a file becomes a record, in order.

Rule 1: one request at a time, or two requests could overtake each other.
Rule 2: a request is repeated only when its records were surely not stored; after an unknown outcome the command
stops and names the lines, because only the user can decide whether a duplicate or a gap is worse.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final
from urllib.parse import quote

import typer

from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.cli.line_reader import read_ahead
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption, open_gateway
from georelay.cli.record_lines import KeyRule, LineBatch
from georelay.client.gateway_http import GatewayError, GatewayHttp
from georelay.errors import Outcome, Retry
from georelay.limits import REST_RECORDS_MAX

if TYPE_CHECKING:
    from rich.progress import Progress

RETRY_FOR_S: Final = 30.0  # longer than an election or a restart of a broker
RETRY_PAUSE_S_MAX: Final = 2.0


@dataclass(slots=True)
class _Sum:
    """What has been acknowledged: first and last offset per partition."""

    records: int = 0
    partitions: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, partition: int, offset: int) -> None:
        first, last = self.partitions.get(partition, (offset, offset))
        self.partitions[partition] = (min(first, offset), max(last, offset))
        self.records += 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="publish")(_publish)


def _publish(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to publish to.")],
    file: Annotated[str, typer.Argument(metavar="[FILE|-]", help="One record per line; - is standard input.")] = "-",
    key_field: Annotated[
        str, typer.Option("--key-field", metavar="NAME", help="Lines are JSON objects; this field is the key.")
    ] = "",
    key_separator: Annotated[str, typer.Option("--key-separator", metavar="SEP", help="A line is KEY SEP VALUE.")] = "",
    batch: Annotated[
        int,
        typer.Option("--batch", min=1, max=REST_RECORDS_MAX, help="Records per request; 1 sends every line at once."),
    ] = 500,
    region: Annotated[
        str,
        typer.Option("--region", metavar="R", help="Enter the mesh in this region; with homes=every also its home."),
    ] = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Publish every line of FILE as one record."""
    if key_field and key_separator:
        raise CommandFailed("--key-field and --key-separator exclude each other", exit_code=EXIT_USAGE)
    rule = KeyRule(field=key_field or None, separator=key_separator or None)
    started = time.monotonic()
    with _open(file) as source:
        total = asyncio.run(
            _publish_all(source, topic, rule, batch=batch, region=region, location=(gateway, endpoints, user))
        )
    seconds = time.monotonic() - started
    if as_json:
        partitions = {str(p): {"first": first, "last": last} for p, (first, last) in sorted(total.partitions.items())}
        print(json.dumps({"topic": topic, "records": total.records, "partitions": partitions}))  # noqa: T201
    else:
        sys.stderr.write(f"published {total.records} records to {topic} in {seconds:.1f} s\n")


@contextlib.contextmanager
def _open(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        # Not sys.stdin: a thread that waits in it would block the end of the interpreter.
        with open(sys.stdin.fileno(), "rb", closefd=False) as piped:
            yield piped
        return
    try:
        opened = Path(file).open("rb")  # noqa: SIM115  closed below
    except OSError as error:
        raise CommandFailed(f"cannot read {file}: {error.strerror}") from error
    with opened:
        yield opened


async def _publish_all(
    source: BinaryIO, topic: str, rule: KeyRule, *, batch: int, region: str, location: tuple[str, str, str]
) -> _Sum:
    total = _Sum()
    path = f"/v1/topics/{quote(topic, safe='')}/records"
    async with open_gateway(*location) as client:
        with _progress(source) as progress:
            async for lines in read_ahead(source, rule, records_max=batch):
                for stored in await _store(client, path, lines, region, total.records):
                    total.add(stored["partition"], stored["offset"])
                if progress is not None:
                    progress.advance(progress.task_ids[0], lines.size_bytes)
    return total


async def _store(
    client: GatewayHttp, path: str, lines: LineBatch, region: str, acknowledged: int
) -> list[dict[str, int]]:
    """Publish one batch; keeps trying for RETRY_FOR_S while it is surely not stored."""
    query: dict[str, str | int] = {"region": region} if region else {}
    until, pause_s = time.monotonic() + RETRY_FOR_S, 0.1
    while True:
        try:
            answer = await client.post(path, lines.records, query)
        except GatewayError as error:
            if error.outcome is Outcome.UNKNOWN:
                raise CommandFailed(
                    f"lines {lines.first_line}-{lines.last_line} may or may not be stored ({error});"
                    f" the {acknowledged} before them are, nothing after them was sent"
                ) from error
            began = acknowledged > 0 or error.code != "UNREACHABLE"
            if not began or error.retry not in (Retry.LATER, Retry.REFRESH) or error.code == "UNKNOWN_TOPIC":
                raise
            if time.monotonic() + pause_s > until:
                raise CommandFailed(
                    f"{error} (gave up after {RETRY_FOR_S:.0f} s; {acknowledged} records are stored)"
                ) from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_PAUSE_S_MAX)
            continue
        return _stored(answer, len(lines.records))


def _stored(answer: dict[str, object], expected: int) -> list[dict[str, int]]:
    records = answer.get("records")
    if not isinstance(records, list) or len(records) != expected:
        raise CommandFailed("the gateway's answer does not name an offset for every record; is it of another version?")
    return records


@contextlib.contextmanager
def _progress(source: BinaryIO) -> Iterator[Progress | None]:
    """Show bytes done on stderr when that is a terminal; the total is known for files only. Else None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("publishing"),
        SpinnerColumn(),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task("publish", total=_size_bytes(source))
        yield progress


def _size_bytes(source: BinaryIO) -> int | None:
    try:
        return Path(source.name).stat().st_size if isinstance(source.name, str) else None
    except (OSError, AttributeError):
        return None
