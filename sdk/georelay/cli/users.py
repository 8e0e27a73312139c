"""`georelay users add|list|password|disable|enable|delete|token|file`: users of the whole mesh, and of a file.

Rule: passwords come from a prompt or from standard input, never from the command line, where others could read them.
"""

from __future__ import annotations

import getpass
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from georelay.cli.asking import Where, ask
from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption
from georelay.cli.printing import print_line, print_listing
from georelay.credentials import PASSWORD_CHARS_MAX, write_users_file
from georelay.errors import ConfigError

COLUMNS: Final = ("name", "state", "expires", "signs in by", "tokens")
SECONDS_PER_DAY: Final = 86_400
DAYS_MAX: Final = 36_500
TOKEN_DAYS_MAX: Final = 366
TOKEN_DAYS: Final = 30

NameArgument = Annotated[str, typer.Argument(metavar="NAME")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Users of the mesh and their tokens.", no_args_is_help=True, rich_markup_mode=None)
    group.command(name="list")(_list)
    group.command(name="add")(_add)
    group.command(name="password")(_password)
    group.command(name="disable")(_disable)
    group.command(name="enable")(_enable)
    group.command(name="delete")(_delete)
    group.command(name="token")(_token)
    group.command(name="file")(_file)
    app.add_typer(group, name="users")


def _list(
    gateway: GatewayOption = "", endpoints: EndpointsOption = "", user: UserOption = "", as_json: JsonOption = False
) -> None:
    """List the users of the mesh (those of a users file are not among them)."""
    users = ask(Where(gateway, endpoints, user), "GET", "/v1/users").get("users", [])
    print_listing(users, COLUMNS, lambda row: user_row(row, time.time()), as_json=as_json)


def _add(
    name: NameArgument,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="It will sign in by token or certificate only.")
    ] = False,
    expires_days: Annotated[int, typer.Option("--expires-days", min=0, max=DAYS_MAX, help="0: it never expires.")] = 0,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
) -> None:
    """Make a user; the password is asked for, or read from standard input."""
    body: dict[str, Any] = {"name": name}
    if not no_password:
        body["password"] = read_password(f"Password of {name}: ")
    if expires_days:
        body["expires_s"] = int(time.time()) + expires_days * SECONDS_PER_DAY
    ask(Where(gateway, endpoints, user), "POST", "/v1/users", body)
    print_line(f"user {name} added; what it may do: `georelay acls list --principal User:{name}`")


def _password(
    name: NameArgument, gateway: GatewayOption = "", endpoints: EndpointsOption = "", user: UserOption = ""
) -> None:
    """Give a user another password, asked for or read from standard input."""
    body = {"password": read_password(f"New password of {name}: ")}
    ask(Where(gateway, endpoints, user), "PATCH", _path(name), body)
    print_line(f"user {name} has a new password; connections that are open stay")


def _disable(
    name: NameArgument, gateway: GatewayOption = "", endpoints: EndpointsOption = "", user: UserOption = ""
) -> None:
    """Let a user sign in no more, by password, token or certificate; its connections end."""
    ask(Where(gateway, endpoints, user), "PATCH", _path(name), {"enabled": False})
    print_line(f"user {name} disabled")


def _enable(
    name: NameArgument, gateway: GatewayOption = "", endpoints: EndpointsOption = "", user: UserOption = ""
) -> None:
    """Let a user sign in again."""
    ask(Where(gateway, endpoints, user), "PATCH", _path(name), {"enabled": True})
    print_line(f"user {name} enabled")


def _delete(
    name: NameArgument, gateway: GatewayOption = "", endpoints: EndpointsOption = "", user: UserOption = ""
) -> None:
    """Delete a user and its tokens; what was granted to its name stays, see `georelay acls list`."""
    ask(Where(gateway, endpoints, user), "DELETE", _path(name))
    print_line(f"user {name} deleted")


def _token(
    name: NameArgument,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="What the token is called.")],
    days: Annotated[int, typer.Option("--days", min=1, max=TOKEN_DAYS_MAX, help="How long it lives.")] = TOKEN_DAYS,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the token instead.")] = False,
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
) -> None:
    """Make a bearer token of a user and print it: nobody can see it again."""
    where = Where(gateway, endpoints, user)
    if delete:
        ask(where, "DELETE", f"{_path(name)}/tokens/{quote(token, safe='')}")
        print_line(f"token {token} of {name} deleted")
        return
    answer = ask(where, "POST", f"{_path(name)}/tokens", {"name": token, "days": days})
    print_line(str(answer["token"]))


def user_row(row: dict[str, Any], now_s: float) -> dict[str, object]:
    """Return the line of a user."""
    expires_s = row.get("expires_s")
    has_expired = expires_s is not None and expires_s <= now_s
    state = "expired" if has_expired else "enabled" if row.get("enabled") else "disabled"
    tokens = [f"{token['name']} until {_day(token['expires_s'])}" for token in row.get("tokens", [])]
    return {
        "name": row.get("name"),
        "state": state,
        "expires": "never" if expires_s is None else _day(expires_s),
        "signs in by": ", ".join(row.get("mechanisms", [])) or "token or certificate only",
        "tokens": "; ".join(tokens) or "-",
    }


def read_password(prompt: str) -> str:
    """Return a password from the terminal (twice the same), or the first line of standard input."""
    if sys.stdin.isatty():
        password = getpass.getpass(prompt)
        if getpass.getpass("Again: ") != password:
            raise CommandFailed("the two passwords differ", exit_code=EXIT_USAGE)
    else:
        password = sys.stdin.readline(PASSWORD_CHARS_MAX + 2).rstrip("\r\n")
    if not password:
        raise CommandFailed("no password was given", exit_code=EXIT_USAGE)
    return password


def _path(name: str) -> str:
    return f"/v1/users/{quote(name, safe='')}"


def _day(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def _file(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Written with mode 0600; must not exist.")],
    name: NameArgument,
) -> None:
    """Write a users_file with one user, who administers the mesh before it has users; asks no broker."""
    if file.exists():
        raise CommandFailed(f"{file} is there already; remove it, or name another file")
    try:
        write_users_file(file, {name: read_password(f"Password of {name}: ")})
    except ConfigError as error:
        raise CommandFailed(str(error), exit_code=EXIT_USAGE) from None
    print_line(f"{file} is written: users_file of every broker, and {name} may do everything")
