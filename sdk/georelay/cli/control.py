"""`georelay control status|recover`: who holds mesh control's log, and a new beginning from one survivor.

Rule: recover asks for the mesh id, because it is only right when the majority of control is gone for good.
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from georelay.cli.asking import Where, ask, region_query, rows_of
from georelay.cli.failure import EXIT_ERROR, EXIT_USAGE, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption
from georelay.cli.printing import print_json, print_line, print_outcome, print_table
from georelay.client.gateway_http import JsonObject

COLUMNS: Final = ("region", "broker", "replica", "role", "alive", "leader")
RegionNameOption = Annotated[str, typer.Option("--region", metavar="R", help="Ask a broker of this region.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        help="Show mesh control; begin it anew when its majority is gone.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command(name="status")(_status)
    group.command(name="recover")(_recover)
    app.add_typer(group, name="control")


def _status(
    region: RegionNameOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show who votes in mesh control, and who leads it.

    Ends with 1 when the asked region reaches no majority, or when there is an alarm.
    """
    answer = ask(Where(gateway, endpoints, user), "GET", "/v1/control", query=region_query(region))
    if as_json:
        print_json(answer)
    else:
        for line in head_lines(answer):
            print_line(line)
        print_table(COLUMNS, replica_lines(answer))
    alarms = list(answer.get("alarms") or [])
    if alarms or not answer.get("has_majority"):
        raise CommandFailed("; ".join([*alarms, *_alone(answer)]), exit_code=EXIT_ERROR)


def _recover(
    region: Annotated[str, typer.Option("--region", metavar="R", help="The region whose replica survived.")],
    mesh_id: Annotated[
        str, typer.Option("--confirm", metavar="MESH_ID", help="The mesh id: the other voters are gone for good.")
    ] = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Begin a new generation of mesh control from the replica of one region.

    Only when the majority of its voters is gone for good. What only they knew is lost; voters of the old generation
    that come back are overwritten.
    """
    if not mesh_id:
        raise CommandFailed(
            "add --confirm MESH_ID: this begins mesh control anew from one region", exit_code=EXIT_USAGE
        )
    where, body = Where(gateway, endpoints, user), {"confirm": mesh_id}
    answer = ask(where, "POST", "/v1/control/recover", body, {"region": region})
    told = f"mesh control has generation {answer['generation']} from now on, id {answer['control_id']}"
    print_outcome(answer, told, as_json=as_json)


def head_lines(answer: JsonObject) -> list[str]:
    """Return what is said above the table. Pure."""
    if not answer.get("generation"):
        return ["this mesh has no mesh control yet: the definitions home orders topics and users"]
    leader = answer.get("leader", -1)
    return [
        f"mesh {answer.get('mesh_id', '?')}, control generation {answer['generation']}, id {answer['control_id']}",
        f"index {answer['index']}, leader {'unknown' if leader == -1 else leader}",
        *_deletions(answer.get("deletions")),
    ]


def _deletions(told: object) -> list[str]:
    """Say which regions hold back that deletions are forgotten; nothing while all follow."""
    held_back_by = told.get("held_back_by") if isinstance(told, dict) else None
    if not isinstance(told, dict) or not isinstance(held_back_by, list) or not held_back_by:
        return []
    return [
        f"remembers {told.get('topics')} deleted topics and {told.get('security')} deleted users, lists, quotas and "
        f"bindings: {', '.join(str(name) for name in held_back_by)} did not follow all yet"
    ]


def replica_lines(answer: JsonObject) -> list[dict[str, object]]:
    """Return the lines of the table. Pure."""
    names = {row["number"]: row["name"] for row in rows_of(answer, "regions")}
    return [
        {
            "region": names.get(row["region"], row["region"]),
            "broker": row["broker"],
            "replica": row["replica"],
            "role": row["role"],
            "alive": "?" if row.get("alive") is None else "yes" if row["alive"] else "no",
            "leader": "*" if row["broker"] == answer.get("leader") else "",
        }
        for row in rows_of(answer, "replicas")
    ]


def _alone(answer: JsonObject) -> list[str]:
    return [] if answer.get("has_majority") else [str(answer.get("error", "no majority of mesh control answers"))]
