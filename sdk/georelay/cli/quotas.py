"""`georelay quotas set|list`: what a user may use of each broker."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from georelay.cli.asking import Where, ask
from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption
from georelay.cli.printing import print_line, print_listing

COLUMNS: Final = ("principal", "produce bytes/s", "fetch bytes/s", "request %")
PPM_PER_PERCENT: Final = 10_000
BYTES_PER_S_MAX: Final = 10**12
PERCENT_MAX: Final = 10_000.0
UNCHANGED: Final = -1

BytesOption = Annotated[int, typer.Option(min=UNCHANGED, max=BYTES_PER_S_MAX, help="0: no limit; -1: as it is.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="What a user may use of each broker.", no_args_is_help=True, rich_markup_mode=None)
    group.command(name="list")(_list)
    group.command(name="set")(_set)
    app.add_typer(group, name="quotas")


def _list(
    gateway: GatewayOption = "", endpoints: EndpointsOption = "", user: UserOption = "", as_json: JsonOption = False
) -> None:
    """List all quotas."""
    quotas = ask(Where(gateway, endpoints, user), "GET", "/v1/quotas").get("quotas", [])
    print_listing(quotas, COLUMNS, quota_row, as_json=as_json)


def _set(
    principal: Annotated[
        str, typer.Argument(metavar="User:NAME", help="User:* is everybody without a quota of its own.")
    ],
    produce_bytes_per_s: BytesOption = UNCHANGED,
    fetch_bytes_per_s: BytesOption = UNCHANGED,
    request_percent: Annotated[
        float,
        typer.Option(min=UNCHANGED, max=PERCENT_MAX, help="Of one core of a broker. 0: no limit; -1: as it is."),
    ] = UNCHANGED,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
) -> None:
    """Set limits of a principal; what is not named stays."""
    given = {
        "produce_bytes_per_s": produce_bytes_per_s,
        "fetch_bytes_per_s": fetch_bytes_per_s,
        "request_share_ppm": round(request_percent * PPM_PER_PERCENT) if request_percent >= 0 else UNCHANGED,
    }
    limits = {name: value for name, value in given.items() if value != UNCHANGED}
    if not limits:
        raise CommandFailed("name a limit: see `georelay quotas set --help`", exit_code=EXIT_USAGE)
    ask(Where(gateway, endpoints, user), "POST", "/v1/quotas", {"principal": principal, **limits})
    print_line(f"quota of {principal} set")


def quota_row(row: dict[str, Any]) -> dict[str, object]:
    """Return the line of a quota."""
    share = row.get("request_share_ppm")
    return {
        "principal": row.get("principal"),
        "produce bytes/s": row.get("produce_bytes_per_s") or "-",
        "fetch bytes/s": row.get("fetch_bytes_per_s") or "-",
        "request %": "-" if not share else f"{share / PPM_PER_PERCENT:g}",
    }
