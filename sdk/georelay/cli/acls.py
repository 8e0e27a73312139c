"""`georelay acls add|list|remove`: who may do what, in the whole mesh."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Final

import typer

from georelay.cli.asking import Where, ask
from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption
from georelay.cli.printing import print_line, print_listing

COLUMNS: Final = ("resource", "pattern", "name", "principal", "host", "operation", "permission")


class ResourceWord(enum.StrEnum):
    """What an entry is about."""

    TOPIC = "topic"
    GROUP = "group"
    QUEUE = "queue"
    TRANSACTIONAL_ID = "transactional-id"
    CLUSTER = "cluster"


PrincipalOption = Annotated[str, typer.Option("--principal", metavar="User:NAME", help="User:* is everybody.")]
OperationOption = Annotated[
    list[str],
    typer.Option(
        "--operation",
        metavar="OPERATION",
        help="all, read, write, create, delete, alter, describe, ...; several times.",
    ),
]
ResourceOption = Annotated[ResourceWord, typer.Option("--resource", help="What it is about.")]
NameOption = Annotated[str, typer.Option("--name", metavar="NAME", help="Its name; * is every one.")]
PrefixOption = Annotated[str, typer.Option("--prefix", metavar="PREFIX", help="Every name that begins so.")]
HostOption = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Only from this IP address.")]
DenyOption = Annotated[bool, typer.Option("--deny", help="Forbid instead; that wins over everything.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Who may do what.", no_args_is_help=True, rich_markup_mode=None)
    group.command(name="list")(_list)
    group.command(name="add")(_add)
    group.command(name="remove")(_remove)
    app.add_typer(group, name="acls")


def _list(
    principal: Annotated[str, typer.Option("--principal", metavar="User:NAME", help="Only about this one.")] = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the entries of all access control lists."""
    answer = ask(Where(gateway, endpoints, user), "GET", "/v1/acls")
    rows = [row for row in answer.get("entries", []) if principal in ("", row.get("principal"))]
    print_listing(rows, COLUMNS, dict, as_json=as_json)


def _add(
    principal: PrincipalOption,
    operation: OperationOption,
    resource: ResourceOption,
    name: NameOption = "",
    prefix: PrefixOption = "",
    host: HostOption = "*",
    deny: DenyOption = False,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
) -> None:
    """Add entries, one per operation."""
    entries = entries_of(principal, operation, resource, name=name, prefix=prefix, host=host, is_denied=deny)
    ask(Where(gateway, endpoints, user), "POST", "/v1/acls", {"entries": entries})
    print_line(f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'} added")


def _remove(
    principal: PrincipalOption,
    operation: OperationOption,
    resource: ResourceOption,
    name: NameOption = "",
    prefix: PrefixOption = "",
    host: HostOption = "*",
    deny: DenyOption = False,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
) -> None:
    """Remove exactly these entries; what is not there is no error."""
    entries = entries_of(principal, operation, resource, name=name, prefix=prefix, host=host, is_denied=deny)
    ask(Where(gateway, endpoints, user), "POST", "/v1/acls/remove", {"entries": entries})
    print_line(f"{len(entries)} {'entry' if len(entries) == 1 else 'entries'} removed")


def entries_of(
    principal: str,
    operations: list[str],
    resource: ResourceWord,
    *,
    name: str,
    prefix: str,
    host: str,
    is_denied: bool,
) -> list[dict[str, Any]]:
    """Return the entries of a command line (CommandFailed: it names none, or two things)."""
    if resource is ResourceWord.CLUSTER:
        if name or prefix:
            raise CommandFailed("the cluster has no --name and no --prefix", exit_code=EXIT_USAGE)
        about: dict[str, str] = {}
    elif bool(name) == bool(prefix):
        raise CommandFailed("give --name or --prefix ('--name \"*\"' is every one)", exit_code=EXIT_USAGE)
    else:
        about = {"name": name or prefix, "pattern": "literal" if name else "prefixed"}
    common = {"principal": principal, "host": host, "permission": "deny" if is_denied else "allow"}
    return [
        {"resource": resource.value, "operation": operation.lower().replace("-", "_"), **about, **common}
        for operation in operations
    ]
