"""`georelay topics list|create|delete|describe`; the commands that change a topic are in topic_changes."""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from georelay.cli import topic_changes
from georelay.cli.asking import Where, ask, listed, region_query
from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption
from georelay.cli.printing import print_json, print_line, print_listing, print_outcome, print_table
from georelay.limits import PARTITIONS_PER_TOPIC_MAX

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC")]
COLUMNS: Final = ("name", "partitions", "replication_factor", "homes", "home")
PARTITION_COLUMNS: Final = ("partition", "leader", "replicas", "log start", "high watermark", "epoch", "moving")


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        help="List, create, describe, change and delete topics.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command(name="list")(_list)
    group.command(name="create")(_create)
    group.command(name="delete")(_delete)
    group.command(name="describe")(_describe)
    topic_changes.register(group)
    app.add_typer(group, name="topics")


def _list(
    gateway: GatewayOption = "", endpoints: EndpointsOption = "", user: UserOption = "", as_json: JsonOption = False
) -> None:
    """List every topic."""
    answer = ask(Where(gateway, endpoints, user), "GET", "/v1/topics")
    print_listing(listed(answer, "topics"), COLUMNS, dict, as_json=as_json)


def _create(
    topic: TopicArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", min=0, max=PARTITIONS_PER_TOPIC_MAX, help="0: the mesh's default.")
    ] = 0,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", min=0, max=5, help="Brokers per region; 0: the mesh's default.")
    ] = 0,
    homes: Annotated[
        str, typer.Option("--homes", metavar="one|every", help="Who sequences: one region or each.")
    ] = "one",
    home: Annotated[str, typer.Option("--home", metavar="REGION", help="With homes=one; default: the nearest.")] = "",
    retention_ms: Annotated[int, typer.Option("--retention-ms", min=0, help="0: the mesh's default.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help=f"{topic_changes.SETTINGS_HELP}; may be repeated."),
    ] = None,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Create a topic."""
    if homes not in ("one", "every"):
        raise CommandFailed(f"--homes {homes!r} is neither one nor every", exit_code=EXIT_USAGE)
    wanted = {
        "name": topic,
        "partitions": partitions,
        "replication_factor": replication_factor,
        "homes": homes,
        "home": home,
        "retention_ms": retention_ms,
        **topic_changes.parse_settings(settings or ()),
    }
    body = {name: value for name, value in wanted.items() if value}
    answer = ask(Where(gateway, endpoints, user), "POST", "/v1/topics", body)
    print_outcome(answer, f"created topic {topic}", as_json=as_json)


def _delete(
    topic: TopicArgument,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete a topic with all its records, in every region."""
    answer = ask(Where(gateway, endpoints, user), "DELETE", f"/v1/topics/{quote(topic, safe='')}")
    print_outcome(answer, f"deleted topic {topic}", as_json=as_json)


def _describe(
    topic: TopicArgument,
    region: Annotated[str, typer.Option("--region", metavar="R", help="As this region has it, not the nearest.")] = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show a topic and its partitions.

    Leaders, replicas and what moves are those inside one region. Offsets are a dash where the broker that answers holds
    no replica.
    """
    where, path = Where(gateway, endpoints, user), f"/v1/topics/{quote(topic, safe='')}"
    answer = ask(where, "GET", path, query=region_query(region))
    if as_json:
        print_json(answer)
        return
    rows = answer.pop("partition_states", None)
    for name, value in answer.items():
        print_line(f"{name}: {value}")
    if isinstance(rows, list) and rows:
        print_table(PARTITION_COLUMNS, [partition_line(row) for row in rows])


def partition_line(row: dict[str, Any]) -> dict[str, str]:
    """Return the texts of one partition; what the broker that was asked does not know is a dash. Pure."""
    leader = row.get("leader", -1)
    return {
        "partition": str(row.get("partition", "")),
        "leader": "-" if leader in (-1, None) else str(leader),
        "replicas": ",".join(map(str, row.get("replicas", ()))) or "-",
        "log start": str(row.get("log_start", "-")),
        "high watermark": str(row.get("high_watermark", "-")),
        "epoch": str(row.get("epoch", "-")),
        "moving": moving_text(row),
    }


def moving_text(row: dict[str, Any]) -> str:
    """Return where a partition's replicas go, such as "to 1002,1003; 1003 lacks 77 entries"; empty when settled."""
    if row.get("is_settled", True):
        return ""
    behind = row.get("behind_entries") or {}
    parts = [f"to {','.join(map(str, row.get('wanted', ())))}"]
    for learner in row.get("learners", ()):
        lacks = behind.get(str(learner))
        parts.append(f"{learner} catches up" if lacks is None else f"{learner} lacks {lacks} entries")
    return "; ".join(parts)
