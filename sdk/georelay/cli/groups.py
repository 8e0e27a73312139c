"""`georelay groups list|describe|reset-offsets|delete`. A group belongs to one region: the nearest, or `--region`."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from georelay.cli.asking import Where, ask, listed, region_query
from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption
from georelay.cli.printing import cell, print_json, print_line, print_listing, print_outcome, print_table, printable

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP")]
RegionOption = Annotated[str, typer.Option("--region", metavar="R", help="Whose group; default: the nearest region's.")]

LIST_COLUMNS: Final = ("group", "state", "type", "members", "lag", "coordinator")
MEMBER_COLUMNS: Final = ("member", "client", "host", "instance", "partitions")
PARTITION_COLUMNS: Final = ("topic", "partition", "committed", "high watermark", "lag", "client", "committed at")
RESET_COLUMNS: Final = ("topic", "partition", "committed", "new offset")
DASH: Final = "-"
_WHOLE: Final = re.compile(r"[0-9]{1,18}")


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        help="List, describe, reset and delete consumer groups.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command(name="list")(_list)
    group.command(name="describe")(_describe)
    group.command(name="reset-offsets")(_reset_offsets)
    group.command(name="delete")(_delete)
    app.add_typer(group, name="groups")


def _list(
    state: Annotated[str, typer.Option("--state", metavar="S,...", help="Only these, such as Stable,Empty.")] = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the groups of a region and how many records each is behind."""
    query: dict[str, str | int] = {"states": state} if state else {}
    answer = ask(Where(gateway, endpoints, user), "GET", "/v1/groups", query=query | region_query(region))
    print_listing(listed(answer, "groups"), LIST_COLUMNS, list_line, as_json=as_json)


def _describe(
    group: GroupArgument,
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show a group: its members, what each reads, and where the group stands in every partition."""
    answer = ask(Where(gateway, endpoints, user), "GET", _path(group), query=region_query(region))
    if as_json:
        print_json(answer)
        return
    for name in ("group", "state", "protocol", "generation", "coordinator", "lag"):
        print_line(f"{name}: {printable(answer.get(name, DASH))}")
    if answer.get("members"):
        print_line("")
        print_table(MEMBER_COLUMNS, [member_line(row) for row in answer["members"]])
    if answer.get("partitions"):
        print_line("")
        print_table(PARTITION_COLUMNS, [partition_line(row) for row in answer["partitions"]])


def _reset_offsets(
    group: GroupArgument,
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="Whose offsets; plain or qualified name.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", metavar="P", min=0, help="Only this one; may be repeated.")
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record that is kept.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_offset: Annotated[int, typer.Option("--to-offset", metavar="N", help="To this offset.")] = -1,
    to_timestamp: Annotated[
        str,
        typer.Option(
            "--to-timestamp", metavar="T", help="To what was stored since: 2026-01-31T12:00:00Z, or ms since 1970."
        ),
    ] = "",
    shift_by: Annotated[
        str, typer.Option("--shift-by", metavar="+N|-N", help="By so many records, from what is committed.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done (the default).")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it. The group must have no members.")] = False,
    create: Annotated[bool, typer.Option("--create", help="The group may be new.")] = False,
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Set the offsets of a group without members; offsets outside what a partition holds are moved inside."""
    if dry_run and execute:
        raise CommandFailed("--dry-run and --execute exclude each other", exit_code=EXIT_USAGE)
    body = reset_body(
        to_earliest=to_earliest, to_latest=to_latest, to_offset=to_offset, to_timestamp=to_timestamp, shift_by=shift_by
    )
    body |= {"topic": topic, "execute": execute}
    if create:
        body["create"] = True
    if partition:
        body["partitions"] = partition
    where, query = Where(gateway, endpoints, user), region_query(region)
    answer = ask(where, "POST", f"{_path(group)}/reset-offsets", body, query)
    if as_json:
        print_json(answer)
        return
    print_table(RESET_COLUMNS, [reset_line(row) for row in answer.get("partitions") or ()])
    if not execute:
        print_line("nothing was changed; repeat with --execute to set these offsets")


def _delete(
    group: GroupArgument,
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete a group without members and all its offsets."""
    answer = ask(Where(gateway, endpoints, user), "DELETE", _path(group), query=region_query(region))
    print_outcome(answer, f"deleted group {printable(group)}", as_json=as_json)


def reset_body(
    *, to_earliest: bool, to_latest: bool, to_offset: int, to_timestamp: str, shift_by: str
) -> dict[str, Any]:
    """Return where to, as the API wants it (CommandFailed: not exactly one way, or not a number). Pure."""
    ways: list[dict[str, Any]] = []
    if to_earliest:
        ways.append({"to": "earliest"})
    if to_latest:
        ways.append({"to": "latest"})
    if to_offset >= 0:
        ways.append({"to": "offset", "offset": to_offset})
    if to_timestamp:
        ways.append({"to": "timestamp", "timestamp_ms": timestamp_ms(to_timestamp)})
    if shift_by:
        if re.fullmatch(r"[+-]?[0-9]{1,18}", shift_by) is None:
            raise CommandFailed(f"--shift-by {shift_by!r} is not +N or -N", exit_code=EXIT_USAGE)
        ways.append({"to": "shift", "by": int(shift_by)})
    if len(ways) != 1:
        names = "--to-earliest, --to-latest, --to-offset, --to-timestamp and --shift-by"
        raise CommandFailed(f"give exactly one of {names}", exit_code=EXIT_USAGE)
    return ways[0]


def timestamp_ms(text: str) -> int:
    """Return ms since 1970 of a number or an ISO 8601 time with its zone (CommandFailed: neither). Pure."""
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise CommandFailed(f"--to-timestamp {text!r} is no time: {error}", exit_code=EXIT_USAGE) from error
    if moment.tzinfo is None:
        raise CommandFailed(f"--to-timestamp {text!r} has no time zone; add Z or +01:00", exit_code=EXIT_USAGE)
    milliseconds = round(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise CommandFailed(f"--to-timestamp {text!r} is before 1970", exit_code=EXIT_USAGE)
    return milliseconds


def list_line(row: dict[str, Any]) -> dict[str, str]:
    """Return the texts of one group. Pure."""
    return {
        "group": cell(row.get("group", "")),
        "state": str(row.get("state", "")),
        "type": cell(row.get("protocol_type") or DASH),
        "members": str(row.get("members", DASH)),
        "lag": _or_dash(row.get("lag")),
        "coordinator": DASH if row.get("coordinator", -1) in (-1, None) else str(row["coordinator"]),
    }


def member_line(row: dict[str, Any]) -> dict[str, str]:
    """Return the texts of one member. Pure."""
    assigned = row.get("partitions") or {}
    parts = [f"{topic}:{','.join(map(str, partitions))}" for topic, partitions in assigned.items()]
    return {
        "member": cell(row.get("member_id", "")) + (" (leader)" if row.get("is_leader") else ""),
        "client": cell(row.get("client_id") or DASH),
        "host": cell(row.get("client_host") or DASH),
        "instance": cell(row.get("instance_id") or DASH),
        "partitions": cell(" ".join(parts) or DASH),
    }


def partition_line(row: dict[str, Any]) -> dict[str, str]:
    """Return the texts of one partition. Pure."""
    committed_ms = row.get("committed_ms")
    at = DASH if committed_ms is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(committed_ms / 1000))
    return {
        "topic": cell(row.get("topic", "")),
        "partition": str(row.get("partition", "")),
        "committed": _or_dash(row.get("committed")),
        "high watermark": _or_dash(row.get("high_watermark")),
        "lag": _or_dash(row.get("lag")),
        "client": cell(row.get("client_id") or DASH),
        "committed at": at,
    }


def reset_line(row: dict[str, Any]) -> dict[str, str]:
    """Return the texts of one partition whose offset is set. Pure."""
    return {
        "topic": cell(row.get("topic", "")),
        "partition": str(row.get("partition", "")),
        "committed": _or_dash(row.get("committed")),
        "new offset": _or_dash(row.get("new_offset")),
    }


def _or_dash(value: object) -> str:
    return DASH if value is None else str(value)


def _path(group: str) -> str:
    return f"/v1/groups/{quote(group, safe='')}"
