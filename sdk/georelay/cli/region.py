"""`georelay region list|add|drain|keep|remove`: which regions the mesh has.

Rule 1: a region with homes is neither drained nor removed: move them first (`georelay home move`).
Rule 2: a region that may hold records which no other region has is removed only with --force.
Rule 3: numbers and names are never used again. Every command may be repeated.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from georelay.cli.asking import Where, ask, rows_of
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption
from georelay.cli.printing import print_json, print_line, print_outcome, print_table
from georelay.client.gateway_http import JsonObject
from georelay.ids import REGION_NUMBER_MAX

COLUMNS: Final = ("number", "region", "state", "brokers", "level", "kind", "seeds")
RegionArgument = Annotated[str, typer.Argument(metavar="REGION", help="Its name or its number.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(
        help="List the regions of the mesh; add, drain and remove them.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command(name="list")(_list)
    group.command(name="add")(_add)
    group.command(name="drain")(_drain)
    group.command(name="keep")(_keep)
    group.command(name="remove")(_remove)
    app.add_typer(group, name="region")


def _list(
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the regions that mesh control knows, those that left included."""
    answer = ask(Where(gateway, endpoints, user), "GET", "/v1/regions")
    if as_json:
        print_json(answer)
    else:
        print_table(COLUMNS, region_lines(answer))


def _add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="[a-z0-9-], 1 to 20 characters.")],
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, max=REGION_NUMBER_MAX, help="Never used before.")],
    seeds: Annotated[
        list[str] | None, typer.Option("--seed", metavar="BROKER@HOST:PORT", help="A link address, such as 4001@h:p.")
    ] = None,
    witness: Annotated[bool, typer.Option("--witness", help="It votes in mesh control and stores no topics.")] = False,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Let a region into the running mesh.

    Start its brokers with [control] join = ["<broker>@host:port"] of any region, before or after this.
    """
    body = {"name": name, "number": number, "seeds": list(seeds or []), "witness": witness}
    _show(ask(Where(gateway, endpoints, user), "POST", "/v1/regions", body), as_json, "may join the mesh")


def _drain(
    region: RegionArgument,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Let no home move to a region any more; refused while it is home of something."""
    _show(ask(Where(gateway, endpoints, user), "POST", f"/v1/regions/{region}/drain", {}), as_json, "is draining")


def _keep(
    region: RegionArgument,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Take a drain back."""
    _show(ask(Where(gateway, endpoints, user), "POST", f"/v1/regions/{region}/keep", {}), as_json, "is active")


def _remove(
    region: RegionArgument,
    force: Annotated[bool, typer.Option("--force", help="Also when records are lost with it; says which.")] = False,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Let a drained region leave; stop its brokers afterwards."""
    query = {"force": "true"} if force else {}
    answer = ask(Where(gateway, endpoints, user), "DELETE", f"/v1/regions/{region}", query=query)
    _show(answer, as_json, "left the mesh; stop its brokers")
    lost: Any = answer.get("lost")
    if lost and not as_json:
        print_line("\n".join(["lost with it:", *(f"  {line}" for line in lost)]))


def _show(answer: JsonObject, as_json: bool, what: str) -> None:
    print_outcome(answer, f"region {answer.get('name')} ({answer.get('number')}) {what}", as_json=as_json)


def region_lines(answer: JsonObject) -> list[dict[str, object]]:
    """Return the lines of the table. Pure."""
    return [
        {
            "number": row["number"],
            "region": row["name"],
            "state": row["state"],
            "brokers": ",".join(map(str, row["brokers"])) or "-",
            "level": row["level"] or "?",
            "kind": "witness" if row["witness"] else "data",
            "seeds": " ".join(row["seeds"][:2]) or "-",
        }
        for row in rows_of(answer, "regions")
    ]
