"""`georelay home show|move|failover`: which region sequences a topic's partitions, and moving that.

Rule 1: a planned move loses nothing; publishers wait for about two round trips between the regions.
Rule 2: `failover` is for a home that does not answer. It keeps what enough regions acknowledged, or is refused; what
        the lost region acknowledged alone becomes an orphan branch there. `--accept-loss` goes on with fewer answers.
Rule 3: what has begun goes on when the command is ended; `georelay home show` says what became of it.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from georelay.cli.asking import Where, ask, rows_of
from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption, open_gateway
from georelay.cli.printing import print_json, print_line, print_table
from georelay.client.gateway_http import GatewayHttp, JsonObject

COLUMNS: Final = ("topic", "partition", "home", "epoch", "since offset", "moving")
STAGES: Final = {
    "begun": "its turn",
    "sealing": "{regions} to close the log",
    "following": "{regions} to get all records",
    "promising": "{missing} more of {regions} to promise",
    "fencing": "the leases of {regions} to end",
    "ending": "mesh control to decide",
}
FAILED_COLUMNS: Final = ("topic", "partition", "why")
FOLLOW_S: Final = 0.5
SHOWN_MAX: Final = 20
EXIT_NOT_ALL: Final = 1
PartitionOption = Annotated[list[int] | None, typer.Option("--partition", metavar="N", help="Only this one; again.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Show and move the homes of topics.", no_args_is_help=True, rich_markup_mode=None)
    group.command(name="show")(_show)
    group.command(name="move")(_move)
    group.command(name="failover")(_failover)
    app.add_typer(group, name="home")


def _show(
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]")] = "",
    region: Annotated[str, typer.Option("--region", metavar="R", help="Only what this region is home of.")] = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show which region sequences each partition, since which offset, and what is being moved."""
    query = {name: value for name, value in (("topic", topic), ("region", region)) if value}
    answer = ask(Where(gateway, endpoints, user), "GET", "/v1/homes", query=query)
    if as_json:
        print_json(answer)
        return
    rows = rows_of(answer, "homes")
    columns = (*COLUMNS, "failover") if any("failover" in row for row in rows) else COLUMNS
    print_table(columns, [home_line(row) for row in rows])
    if answer.get("is_all") is False:
        print_line("(there are more: name a topic or a region)")


def _move(
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]")] = "",
    region: Annotated[str, typer.Argument(metavar="[REGION]", help="The new home. With TOPIC '-': see --from.")] = "",
    to: Annotated[str, typer.Option("--to", metavar="R", help="The new home, where it is not the argument.")] = "",
    partition: PartitionOption = None,
    home: Annotated[str, typer.Option("--from", metavar="R", help="With '-': all that this region is home of.")] = "",
    groups_of: Annotated[
        str, typer.Option("--groups-of", metavar="R", help="The groups of this region, instead of a topic.")
    ] = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Move the home of a topic, or of a region's consumer groups, to another region, as planned: nothing is lost."""
    target = to or region
    if not target or (to and region):
        raise CommandFailed("name the new home once: TOPIC REGION, or --to REGION", exit_code=EXIT_USAGE)
    if (topic == "-") != bool(home) or bool(topic) == bool(groups_of):
        raise CommandFailed("name a topic, or '-' and --from REGION, or --groups-of REGION", exit_code=EXIT_USAGE)
    body: dict[str, object] = {"to": target}
    body |= {"groups_of": groups_of} if groups_of else {"from": home} if home else {"topic": topic}
    if partition:
        body["partitions"] = partition
    _carry_out("/v1/homes/move", body, (gateway, endpoints, user), as_json)


def _failover(
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]")] = "",
    region: Annotated[str, typer.Option("--region", metavar="R", help="All that this lost region is home of.")] = "",
    partition: PartitionOption = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on although too few regions answer to know everything.")
    ] = False,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Move homes away from a region that does not answer."""
    if bool(topic) == bool(region):
        raise CommandFailed("name a topic, or --region", exit_code=EXIT_USAGE)
    body: dict[str, object] = {"region": region} if region else {"topic": topic}
    if partition:
        body["partitions"] = partition
    _carry_out("/v1/homes/failover", body | {"accept_loss": accept_loss}, (gateway, endpoints, user), as_json)


def _carry_out(path: str, body: dict[str, object], where: tuple[str, str, str], as_json: bool) -> None:
    async def carried_out() -> JsonObject:
        async with open_gateway(*where) as client:
            begun = await client.post(path, body)
            return await _followed(client, str(begun.get("move_id", "")), silent=as_json)

    report = asyncio.run(carried_out())
    if as_json:
        print_json(report)
    else:
        for line in report_lines(report):
            print_line(line)
        refused = rows_of(report, "refused")
        if refused:
            print_table(FAILED_COLUMNS, [{**row, "why": row["text"]} for row in refused[:SHOWN_MAX]])
    if rows_of(report, "refused"):
        raise typer.Exit(EXIT_NOT_ALL)


async def _followed(client: GatewayHttp, move_id: str, *, silent: bool) -> JsonObject:
    """Return the last report of a move; print how far it is, whenever that has changed."""
    told = ""
    while True:
        report = await client.get(f"/v1/homes/moves/{quote(move_id, safe='')}")
        line = progress_line(report)
        if not silent and line != told and not report.get("over"):
            print_line(line)
            told = line
        if report.get("over"):
            return report
        await asyncio.sleep(FOLLOW_S)


def home_line(row: dict[str, Any]) -> dict[str, object]:
    """Return one partition as COLUMNS show it."""
    moving = row.get("moving")
    shown = (
        "-" if moving is None else f"{moving['kind']} to {moving['target'] or '(not chosen)'}, epoch {moving['epoch']}"
    )
    waits = None if moving is None else moving.get("waits")
    if isinstance(waits, dict):
        shown += f": waits for {waiting_line(waits)}"
    named = {name: row[name] for name in ("topic", "partition", "home", "epoch")}
    return {**named, "since offset": row["start"], "moving": shown, "failover": failover_line(row)}


def failover_line(row: dict[str, Any]) -> str:
    """Return whether a home is failed over without an operator."""
    failover = row.get("failover")
    if not isinstance(failover, dict):
        return "manual"
    policy, is_in_force = str(failover.get("policy")), failover.get("in_force")
    if is_in_force is None:
        return f"{policy} (mesh control does not say whether in force)"
    return policy if is_in_force else f"{policy}, not in force: {row['home']} has yet to say that it follows it"


def waiting_line(waits: dict[str, Any]) -> str:
    """Return what an attempt to move a home waits for."""
    missing = max(int(waits.get("needed") or 0) - len(waits.get("promised") or ()), 0)
    stage = STAGES.get(str(waits.get("stage")), str(waits.get("stage")))
    line = stage.format(regions=", ".join(waits.get("regions") or ()), missing=missing)
    return f"{line} ({waits['fault']})" if waits.get("fault") else line


def progress_line(report: JsonObject) -> str:
    """Return how far a move is, and what it waits for."""
    stages = report.get("stages")
    counts = ", ".join(f"{name} {count}" for name, count in sorted(stages.items())) if isinstance(stages, dict) else ""
    waiting = rows_of(report, "waiting")
    why = f"; {waiting[0]['topic']} partition {waiting[0]['partition']}: {waiting[0]['text']}" if waiting else ""
    return f"{_moved_count(report)} of {report.get('streams')} moved{f', {counts}' if counts else ''}{why}"


def report_lines(report: JsonObject) -> list[str]:
    """Return what a person has to know about a move that is over."""
    moved = rows_of(report, "moved")
    count = _moved_count(report)
    lines = [f"moved {count} of {report.get('streams')} partitions"]
    for row in moved[:SHOWN_MAX]:
        where = f"{row['topic']} partition {row['partition']}"
        lines.append(f"  {where}: home {row['home']}, epoch {row['epoch']} from offset {row['start']}")
        if row["kept_level"] > 1:
            lines.append(
                f"    kept: all that {row['kept_level']} regions acknowledged; what fewer did from offset "
                f"{row['start']} on is in the orphan branch of the region that has it"
            )
        if row["accept_loss"]:
            lines.append("    the loss was accepted: fewer regions answered than the topic asks for")
    if count > SHOWN_MAX:
        lines.append(f"  and {count - SHOWN_MAX} more")
    return lines


def _moved_count(report: JsonObject) -> int:
    """Return how many partitions were moved; a report shows only the first of very many."""
    count = report.get("moved_count")
    return count if isinstance(count, int) else len(rows_of(report, "moved"))
