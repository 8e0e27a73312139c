"""`georelay subscribe`: prints records as they are committed, each partition in its order.

Rule 1: a position is never reset silently: an offset that is not there ends the command with its reason.
Rule 2: while a region or the gateway is away the command waits and goes on where it was.
Rule 3: of a topic that every region is home of (homes=every) the streams of all regions are read by their qualified
names: an offset of one stream means nothing in another, and the plain name is another stream in every region.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption, open_gateway
from georelay.client.gateway_http import GatewayError, GatewayHttp
from georelay.errors import Retry

NAMED_STARTS: Final = ("earliest", "latest")
WAIT_MS: Final = 1_000  # per long poll
RECORDS_PER_REQUEST: Final = 1_000
PAUSE_S: Final = 0.5  # between attempts while the mesh is away


class _Output:
    """Prints records of all partitions; knows when enough is enough."""

    def __init__(self, *, as_json: bool, records_max: int | None) -> None:
        self._as_json = as_json
        self._left = records_max
        self.last_record_at = time.monotonic()
        self.done = asyncio.Event()

    def show(self, place: dict[str, Any], records: list[dict[str, Any]]) -> None:
        """Print the records of one answer; `place` goes in front of each as JSON."""
        for record in records:
            if self.done.is_set():
                return
            line = json.dumps({**place, **record}, ensure_ascii=False) if self._as_json else _text(record)
            sys.stdout.write(line + "\n")
            if self._left is not None:
                self._left -= 1
                if self._left == 0:
                    self.done.set()
        if records:
            self.last_record_at = time.monotonic()
            sys.stdout.flush()


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="subscribe")(_subscribe)


def _subscribe(
    topic: Annotated[
        str,
        typer.Argument(metavar="TOPIC", help="Topic to read."),
    ],
    start: Annotated[
        str, typer.Option("--from", metavar="earliest|latest|OFFSET", help="Where to begin in every partition.")
    ] = "latest",
    region: Annotated[str, typer.Option("--region", metavar="R", help="Read in this region, not the nearest.")] = "",
    partition: Annotated[int, typer.Option("--partition", metavar="P", min=-1, help="One partition; -1: all.")] = -1,
    records_max: Annotated[int, typer.Option("--max", metavar="N", min=0, help="End after N records; 0: never.")] = 0,
    idle_exit: Annotated[
        float, typer.Option("--idle-exit", metavar="SECONDS", min=0, help="End after that long without a record.")
    ] = 0.0,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print the records of TOPIC as they are committed.

    Of a topic that every region is home of (homes=every) the records of all regions are merged, each region's in its
    order; REGION.TOPIC reads one region's only.
    """
    offset = _start_offset(start)
    asyncio.run(
        _read_all(
            topic,
            offset,
            region=region,
            partition=partition,
            output_options=(as_json, records_max or None),
            idle_exit_s=idle_exit or None,
            location=(gateway, endpoints, user),
        )
    )


def _start_offset(start: str) -> str | int:
    if start in NAMED_STARTS:
        return start
    if start.isascii() and start.isdigit() and len(start) < 19:
        return int(start)
    raise CommandFailed(f"--from {start!r} is none of earliest, latest or an offset", exit_code=EXIT_USAGE)


async def _read_all(
    topic: str,
    offset: str | int,
    *,
    region: str,
    partition: int,
    output_options: tuple[bool, int | None],
    idle_exit_s: float | None,
    location: tuple[str, str, str],
) -> None:
    as_json, records_max = output_options
    output = _Output(as_json=as_json, records_max=records_max)
    query: dict[str, str | int] = {"region": region} if region else {}
    async with open_gateway(*location) as client:
        described = await client.get(f"/v1/topics/{quote(topic, safe='')}", query)
        wanted = _partitions(described, topic, partition)
        names = await _stream_names(client, described, topic)
        tasks = {
            asyncio.create_task(_read(client, name, number, offset, query, output, is_merged=len(names) > 1))
            for name in names
            for number in wanted
        }
        tasks.add(asyncio.create_task(_wait_enough(output)))
        if idle_exit_s is not None:
            tasks.add(asyncio.create_task(_wait_idle(output, idle_exit_s)))
        try:
            finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in finished:
            task.result()


def _partitions(described: dict[str, Any], topic: str, partition: int) -> list[int]:
    count = described.get("partitions")
    if not isinstance(count, int):
        raise CommandFailed("the gateway's answer has no partitions; is it of another version?")
    if partition >= count:
        raise CommandFailed(f"topic {topic} has partitions 0..{count - 1}, not {partition}")
    return [partition] if partition >= 0 else list(range(count))


async def _stream_names(client: GatewayHttp, described: dict[str, Any], topic: str) -> list[str]:
    """Return the names to read: one for every region when the topic is each region's own (rule 3)."""
    if described.get("homes") != "every":
        return [topic]
    resolved = await client.get("/v1/resolve", {})
    regions = [str(row["region"]) for row in resolved["regions"]]
    return [topic] if topic.partition(".")[0] in regions else [f"{region}.{topic}" for region in regions]


async def _read(
    client: GatewayHttp,
    topic: str,
    partition: int,
    offset: str | int,
    query: dict[str, str | int],
    output: _Output,
    *,
    is_merged: bool,
) -> None:
    """Read one partition until cancelled."""
    path = f"/v1/topics/{quote(topic, safe='')}/records"
    place = {"topic": topic, "partition": partition} if is_merged else {"partition": partition}
    while True:
        # A named position is first turned into an offset, so that nothing between two attempts is lost.
        wait_ms = 0 if offset in NAMED_STARTS else WAIT_MS
        try:
            position = {**query, "partition": partition, "offset": offset, "max": RECORDS_PER_REQUEST}
            answer = await client.get(path, position, wait_ms=wait_ms)
        except GatewayError as error:
            if error.retry not in (Retry.LATER, Retry.REFRESH) or error.code == "UNKNOWN_TOPIC":
                raise
            await asyncio.sleep(PAUSE_S)
            continue
        output.show(place, answer["records"])
        offset = int(answer["next_offset"])


async def _wait_enough(output: _Output) -> None:
    await output.done.wait()


async def _wait_idle(output: _Output, idle_exit_s: float) -> None:
    while (left_s := output.last_record_at + idle_exit_s - time.monotonic()) > 0:  # noqa: ASYNC110
        await asyncio.sleep(left_s)


def _text(record: dict[str, Any]) -> str:
    """Return the value as text; what is not UTF-8 stays base64, null is an empty line."""
    return str(record.get("value") or record.get("value_b64") or "")
