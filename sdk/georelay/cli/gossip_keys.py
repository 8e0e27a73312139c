"""`georelay keys generate|list|install|use|remove`: the keys that encrypt a pool, and their rotation without a stop.

Rotation: install the new key (N of N members), use it, and remove the old one days later, when nobody is failed that
could come back with the old key alone.

Rule 1: keys are shown by the beginning of their SHA-256, never whole; `install` reads one from a file.
Rule 2: a command that not every living member did ends with 1 and names those that did not.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from georelay.cli.asking import ask
from georelay.cli.failure import EXIT_ERROR, CommandFailed
from georelay.cli.location import EndpointsOption, GatewayOption, JsonOption, UserOption
from georelay.cli.printing import print_json, print_line, print_table
from georelay.client.gateway_http import JsonObject

KEY_BYTES: Final = 32
FILE_BYTES_MAX: Final = 64 * 1024
COLUMNS: Final = ("key", "members", "primary of")

PoolOption = Annotated[str, typer.Option("--pool", metavar="lan|wan", help="Default: lan, where there is one.")]
RegionOption = Annotated[
    str, typer.Option("--region", metavar="R", help="Ask a broker of this region; default: the nearest.")
]
FingerprintArgument = Annotated[str, typer.Argument(metavar="KEY", help="As `georelay keys list` shows it.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Rotate the keys of a gossip pool.", no_args_is_help=True, rich_markup_mode=None)
    group.command(name="generate")(_generate)
    group.command(name="list")(_list)
    group.command(name="install")(_install)
    group.command(name="use")(_use)
    group.command(name="remove")(_remove)
    app.add_typer(group, name="keys")


def _generate(
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="Written with mode 0600; must not exist.")],
) -> None:
    """Make a keyring file with one new key; asks no broker."""
    text = json.dumps([base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()])
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(f"{text}\n")
    except FileExistsError as error:
        raise CommandFailed(f"{file} exists; a pool without its keys is lost, so it is not replaced") from error
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}") from error
    print_line(f"wrote {file} (keyring_file of [gossip.lan] or [gossip.wan]; every member of the pool needs the same)")


def _list(
    pool: PoolOption = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
    as_json: JsonOption = False,
) -> None:
    """Ask every member which keys it has."""
    answer = _ask((gateway, endpoints, user), pool, region, None)
    if as_json:
        print_json(answer)
    else:
        print_table(COLUMNS, key_lines(answer))
    _check(answer)


def _install(
    file: Annotated[
        Path, typer.Option("--file", metavar="FILE", help="Its first key; `georelay keys generate` makes one.")
    ],
    pool: PoolOption = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
) -> None:
    """Give every member a key that it reads with from now on."""
    _change((gateway, endpoints, user), pool, region, "install", _first_key(file))


def _use(
    key: FingerprintArgument,
    pool: PoolOption = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
) -> None:
    """Let every member write with a key that it has."""
    _change((gateway, endpoints, user), pool, region, "use", key)


def _remove(
    key: FingerprintArgument,
    pool: PoolOption = "",
    region: RegionOption = "",
    gateway: GatewayOption = "",
    endpoints: EndpointsOption = "",
    user: UserOption = "",
) -> None:
    """Take a key away from every member; the one in use stays."""
    _change((gateway, endpoints, user), pool, region, "remove", key)


def _change(location: tuple[str, str, str], pool: str, region: str, action: str, key: str) -> None:
    answer = _ask(location, pool, region, {"action": action, "key": key})
    print_line(f"{action} {answer['key']}: {answer['done']} of {answer['members']} members")
    _check(answer)


def key_lines(answer: JsonObject) -> list[dict[str, Any]]:
    """Return the table rows of a list of keys. Pure."""
    members = answer.get("members", 0)
    return [
        {
            "key": row.get("fingerprint", ""),
            "members": f"{row.get('members', 0)} of {members}",
            "primary of": row.get("primary_of", 0),
        }
        for row in answer.get("keys") or ()
    ]


def _check(answer: JsonObject) -> None:
    """Refuse to call it done when somebody did not do it."""
    faults: dict[str, str] = answer.get("faults") or {}
    if answer["done"] >= answer["members"] and not faults:
        return
    named = "; ".join(f"{name}: {text}" for name, text in sorted(faults.items()))
    silent = answer["members"] - answer["answered"]
    raise CommandFailed(
        "; ".join(part for part in (named, f"{silent} members did not answer" if silent > 0 else "") if part),
        exit_code=EXIT_ERROR,
    )


def _ask(location: tuple[str, str, str], pool: str, region: str, body: object) -> JsonObject:
    query = {**({"pool": pool} if pool else {}), **({"region": region} if region else {})}
    return ask(location, "GET" if body is None else "POST", "/v1/gossip/keys", body, query)


def _first_key(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            keys = json.loads(opened.read(FILE_BYTES_MAX))
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{file} is not a keyring file: {error}") from error
    if not isinstance(keys, list) or not keys or not isinstance(keys[0], str):
        raise CommandFailed(f"{file} is not a keyring file: a JSON list of base64 keys is wanted")
    return keys[0]
