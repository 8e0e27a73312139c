"""`georelay orphans list|export|republish|drop`: what a region had stored when the home moved without it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from georelay.cli.asking import Where, ask, listed, region_query
from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption, open_gateway
from georelay.cli.printing import print_json, print_line, print_table
from georelay.client.gateway_http import GatewayHttp, JsonObject

COLUMNS: Final = ("region", "topic", "partition", "epoch", "first", "last", "records", "epochs")
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC")]
PartitionArgument = Annotated[int, typer.Argument(metavar="PARTITION")]
EpochArgument = Annotated[int, typer.Argument(metavar="EPOCH", help="That cut the branch off, as `list` prints it.")]
RegionOption = Annotated[str, typer.Option("--region", metavar="R", help="Which region's; default: the nearest.")]
FromOption = Annotated[
    int, typer.Option("--from-offset", metavar="N", help="Where to begin; default: the first record of the branch.")
]
FORMATS: Final = ("json", "batches")
FIRST: Final = -1


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        help="Records that a region had beyond the start of a new home epoch.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command(name="list")(_list)
    group.command(name="export")(_export)
    group.command(name="republish")(_republish)
    group.command(name="drop")(_drop)
    app.add_typer(group, name="orphans")


def _list(
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Only its branches.")] = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the orphan branches of a region."""
    query = region_query(region) | ({"topic": topic} if topic else {})
    branches = listed(ask(Where(gateway, endpoints, user), "GET", "/v1/orphans", query=query), "branches")
    if as_json:
        print_json(branches)
    else:
        print_table(COLUMNS, [branch_line(row) for row in branches])


def branch_line(row: Any) -> JsonObject:
    """Return the cells of one branch."""
    if not isinstance(row, dict):
        raise CommandFailed("the answer has something else than branches")
    epochs = ", ".join(f"{epoch} from {first}" for epoch, first in row.get("epochs", ()))
    return {name: row.get(name, "-") for name in COLUMNS} | {"epochs": epochs}


def _export(
    topic: TopicArgument,
    partition: PartitionArgument,
    epoch: EpochArgument,
    form: Annotated[
        str, typer.Option("--format", metavar="json|batches", help="One JSON record per line, or Kafka record batches.")
    ] = "json",
    from_offset: FromOption = FIRST,
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
) -> None:
    """Write the records of a branch to standard output."""
    if form not in FORMATS:
        raise CommandFailed(f"--format: 'json' or 'batches', not '{form}'", exit_code=EXIT_USAGE)

    async def copied() -> tuple[int, int]:
        count, offset = 0, from_offset
        async with open_gateway(gateway, endpoints, user) as client:
            while True:
                query = region_query(region) | {"format": form, "offset": offset}
                answer = await client.get(_path(topic, partition, epoch), query)
                rows = answer.get("batches" if form == "batches" else "records")
                following = _following(answer, offset)
                if not isinstance(rows, list):
                    raise CommandFailed("the answer has no records; is the region of another version?")
                for raw in _written(rows, form):
                    sys.stdout.buffer.write(raw)
                count += len(rows)
                if following == offset:
                    return count, following
                offset = following

    count, offset = asyncio.run(copied())
    sys.stdout.buffer.flush()
    _note(f"{count} {'records' if form == 'json' else 'batches'} up to offset {offset}")


def _written(rows: list[Any], form: str) -> Iterator[bytes]:
    for row in rows:
        if form == "json":
            yield json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
            continue
        try:
            yield base64.b64decode(str(row), validate=True)
        except binascii.Error as error:
            raise CommandFailed("the answer has a batch that is not base64") from error


def _republish(
    topic: TopicArgument,
    partition: PartitionArgument,
    epoch: EpochArgument,
    from_offset: FromOption = FIRST,
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Publish the records of a branch again, as new records; the branch stays."""
    done: dict[str, int] = {"published": 0, "left_out": 0, "next_offset": from_offset}

    async def published() -> None:
        async with open_gateway(gateway, endpoints, user) as client:
            while await _piece(client, _path(topic, partition, epoch) + "/republish", done, region):
                pass

    try:
        asyncio.run(published())
    finally:
        if as_json:
            print_json(done)
        else:
            print_line(f"{done['published']} records published, {done['left_out']} left out")
            _note(f"go on with --from-offset {done['next_offset']}")


async def _piece(client: GatewayHttp, path: str, done: dict[str, int], region: str) -> bool:
    """Publish one piece; return whether there is more."""
    offset = done["next_offset"]
    answer = await client.post(path, {"offset": offset}, region_query(region))
    following = _following(answer, offset)
    for name in ("published", "left_out"):
        value = answer.get(name)
        if not isinstance(value, int):
            raise CommandFailed(f"the answer has no number of records {name}; is the region of another version?")
        done[name] += value
    done["next_offset"] = following
    return following != offset


def _drop(
    topic: TopicArgument,
    partition: PartitionArgument,
    epoch: EpochArgument,
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
) -> None:
    """Let a branch, and older ones of the partition, be deleted for ever."""
    where, path = Where(gateway, endpoints, user), _path(topic, partition, epoch)
    answer = ask(where, "DELETE", path, query=region_query(region))
    print_line(f"{answer.get('dropped', 0)} branches dropped")


def _note(text: str) -> None:
    """Tell a person; standard output is for what was asked for."""
    sys.stderr.write(text + "\n")


def _following(answer: JsonObject, offset: int) -> int:
    following = answer.get("next_offset")
    if not isinstance(following, int) or following < offset:
        raise CommandFailed("the answer does not say where the branch goes on; is the region of another version?")
    return following


def _path(topic: str, partition: int, epoch: int) -> str:
    return f"/v1/orphans/{quote(topic, safe='')}/{partition}/{epoch}"
