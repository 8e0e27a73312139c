"""`georelay pki init|issue|rotate|show`: the certificates of a mesh, made on this machine; nothing is sent anywhere."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.cli.location import JsonOption
from georelay.cli.printing import print_json, print_line, print_table

DIRECTORY: Final = "pki"
COLUMNS: Final = ("name", "subject", "hosts", "ends", "issued by", "trusted")
KINDS: Final = ("broker", "gateway", "client")

DirOption = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the authority and its files are.")]
DaysOption = Annotated[int, typer.Option("--days", min=1, max=3_650, help="How long it is valid.")]


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help="Make and renew the certificates of a mesh.", no_args_is_help=True, rich_markup_mode=None)
    group.command(name="init")(_init)
    group.command(name="issue")(_issue)
    group.command(name="rotate")(_rotate)
    group.command(name="show")(_show)
    app.add_typer(group, name="pki")


def _init(
    mesh: Annotated[str, typer.Option("--mesh", metavar="ID", help="mesh_id of the brokers' configuration.")],
    directory: DirOption = Path(DIRECTORY),
    days: DaysOption = 3_650,
    permit: Annotated[
        list[str] | None,
        typer.Option("--permit", metavar="DOMAIN|NETWORK", help="Sign for these hosts only; may be repeated."),
    ] = None,
) -> None:
    """Make an authority.

    Whoever has ca-1.key can make certificates that the mesh trusts: keep it off the brokers.
    """
    from georelay.pki.directory import BUNDLE, PkiDirectory

    pki = PkiDirectory.create(directory, mesh_id=mesh, days=days, permitted=tuple(permit or ()))
    print_line(f"made {pki.path / 'ca-1.crt'}; give out {pki.path / BUNDLE}")


def _issue(
    kind: Annotated[str, typer.Argument(metavar="broker|gateway|client")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="A broker's id (1001), a gateway's or a user's name.")],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="DNS name or address it listens on; may be repeated."),
    ] = None,
    directory: DirOption = Path(DIRECTORY),
    days: DaysOption = 397,
    renew: Annotated[bool, typer.Option("--renew", help="Replace a certificate that is there.")] = False,
) -> None:
    """Issue a certificate with a new key."""
    from georelay.pki.directory import PkiDirectory

    if kind not in KINDS:
        raise CommandFailed(f"{kind!r} is neither broker, gateway nor client", exit_code=EXIT_USAGE)
    hosts = tuple(host or ())
    if kind == "client" and hosts:
        raise CommandFailed("--host: a client does not listen", exit_code=EXIT_USAGE)
    pki = PkiDirectory.open(directory)
    if kind == "broker":
        if not name.isdecimal() or not 1_001 <= int(name) <= 32_767_999:
            raise CommandFailed(f"{name!r} is not the id of a broker, such as 1001", exit_code=EXIT_USAGE)
        path = pki.issue_broker(int(name), hosts=hosts, days=days, renew=renew)
    elif kind == "gateway":
        path = pki.issue_gateway(name, hosts=hosts, days=days, renew=renew)
    else:
        path = pki.issue_client(name, days=days, renew=renew)
    print_line(f"issued {path} and {path.with_suffix('.key').name}")


def _rotate(
    directory: DirOption = Path(DIRECTORY),
    days: DaysOption = 3_650,
    reissue: Annotated[bool, typer.Option("--reissue", help="Step 2: issue all certificates anew.")] = False,
    finish: Annotated[bool, typer.Option("--finish", help="Step 3: trust the old authority no more.")] = False,
) -> None:
    """Change the authority without a moment of distrust, in three steps.

    1 rotate (old and new are trusted), 2 rotate --reissue, 3 rotate --finish. Wait after each step until every process
    has the new files; the metric georelay_tls_reloads counts.
    """
    from georelay.pki.directory import BUNDLE, PkiDirectory

    if reissue and finish:
        raise CommandFailed("--reissue and --finish are two steps", exit_code=EXIT_USAGE)
    pki = PkiDirectory.open(directory)
    if reissue:
        names = pki.reissue()
        print_line(f"issued anew: {', '.join(names) or 'nothing, all are of the newest authority'}")
    elif finish:
        pki.finish()
        print_line(f"{pki.path / BUNDLE} holds the newest authority only")
    else:
        number = pki.rotate(days=days)
        print_line(f"made ca-{number}.crt; {pki.path / BUNDLE} holds both: give it to every process, then --reissue")


def _show(directory: DirOption = Path(DIRECTORY), as_json: JsonOption = False) -> None:
    """List the certificates and when they end."""
    from georelay.pki.directory import PkiDirectory

    now = datetime.datetime.now(datetime.UTC)
    rows = PkiDirectory.open(directory).listed()
    if as_json:
        print_json(
            [
                {
                    "name": row.name,
                    "subject": row.subject,
                    "hosts": list(row.hosts),
                    "not_after": row.not_after.isoformat(),
                    "issuer": row.issuer,
                    "trusted": row.trusted,
                }
                for row in rows
            ]
        )
        return
    lines = [
        {
            "name": row.name,
            "subject": row.subject,
            "hosts": " ".join(row.hosts),
            "ends": f"{row.not_after:%Y-%m-%d} ({(row.not_after - now).days} days)",
            "issued by": f"ca-{row.issuer}" if row.issuer else "somebody else",
            "trusted": "yes" if row.trusted else "NO",
        }
        for row in rows
    ]
    print_table(COLUMNS, lines)
