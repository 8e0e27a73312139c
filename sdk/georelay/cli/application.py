"""The command tree, the commands other rooms add to it, and the one place where failures become one line.

Rule: a command imports its own room, or its plugin. Help, and a word that nobody knows, import all of them.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Final, Protocol

import typer

from georelay.cli.failure import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE, CommandFailed
from georelay.cli.location import TOKEN_VARIABLE, USER_VARIABLE, add_tls_options
from georelay.client.gateway_http import GatewayError
from georelay.errors import GeorelayError, Unauthenticated

ROOMS: Final[Mapping[str, tuple[str, ...]]] = {  # module of georelay.cli -> the commands that it adds, in help's order
    "publish": ("publish",),
    "subscribe": ("subscribe",),
    "topics": ("topics",),
    "groups": ("groups",),
    "queues": ("queues",),
    "orphans": ("orphans",),
    "bindings": ("bindings",),
    "broker": ("broker",),
    "status": ("status",),
    "pki": ("pki",),
    "users": ("users",),
    "acls": ("acls",),
    "quotas": ("quotas",),
    "clocks": ("clocks",),
    "gossip": ("members", "rtt", "event", "query", "force-leave", "keys"),
    "control": ("control",),
    "region": ("region",),
    "route": ("route",),
    "home": ("home",),
    "audit": ("audit",),
    "audit_log": ("audit-log",),
    "report": ("report",),
}
# What brokers say is for programs: here it is about headers.
SIGN_IN_ADVICE: Final = (
    f"sign in: give --user NAME:PASSWORD (@FILE reads it from a file), or set {USER_VARIABLE} or {TOKEN_VARIABLE}"
)
PLUGIN_GROUP: Final = "georelay.commands"
DISTRIBUTIONS: Final = ("georelay-server", "georelay")  # the server wheel holds the SDK too

# typer brings its own copy of click since 0.2x; its public BadParameter leads to the right base class in both:
# BadParameter -> UsageError -> ClickException.
_CommandLineError: Final[type[Exception]] = typer.BadParameter.__mro__[2]


class Plugin(Protocol):
    """An entry point of PLUGIN_GROUP."""

    @property
    def name(self) -> str:
        """Name of the entry point."""

    def load(self) -> Callable[[typer.Typer], None]:
        """Return `register(app)`."""


def build_app(plugins: Iterable[Plugin], rooms: Iterable[str] = tuple(ROOMS)) -> typer.Typer:
    """Return the command tree of these rooms; a plugin that cannot be loaded costs one line and its own commands."""
    app = typer.Typer(
        name="georelay",
        help="A geo-distributed mesh of regional message brokers.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_root)
    for room in rooms:
        importlib.import_module(f"georelay.cli.{room}").register(app)
    for plugin in plugins:
        try:
            plugin.load()(app)
        except Exception as error:  # noqa: BLE001  whatever a foreign package does, the other commands work
            reason = (str(error) or type(error).__name__).splitlines()[0]
            _say(f"georelay: command plugin {plugin.name!r} cannot be loaded: {reason}")
    return app


def run(arguments: Sequence[str], plugins: Iterable[Plugin] | None = None) -> int:
    """Run one command line; returns its exit code: 0, 1 error, 2 usage, 130 interrupted."""
    app = _app_for(arguments[0] if arguments else "", plugins)
    try:
        command = typer.main.get_command(app)
        add_tls_options(command)
        code = command(list(arguments), prog_name="georelay", standalone_mode=False)
    except CommandFailed as error:
        _say(f"georelay: {error}")
        return error.exit_code
    except (GatewayError, GeorelayError) as error:
        is_stranger = error.code == Unauthenticated.code and str(error).startswith("sign in")
        _say(f"georelay: {SIGN_IN_ADVICE if is_stranger else error}")
        return EXIT_ERROR
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return EXIT_ERROR
    except _CommandLineError as error:
        return _refuse_usage(error)
    return code if isinstance(code, int) else 0


def _app_for(word: str, plugins: Iterable[Plugin] | None) -> typer.Typer:
    """Return the part of the command tree that a command line beginning with `word` needs."""
    room = next((room for room, commands in ROOMS.items() if word in commands), None)
    if room is not None:
        return build_app((), (room,))
    if plugins is None:
        import importlib.metadata

        plugins = importlib.metadata.entry_points(group=PLUGIN_GROUP)
    named = [plugin for plugin in plugins if plugin.name == word]  # ours are named like their command
    return build_app(named, ()) if named else build_app(plugins)


def _refuse_usage(error: BaseException) -> int:
    """Say what is wrong with the command line, in one line; the help for no arguments at all is left whole."""
    text = str(getattr(error, "format_message", lambda: str(error))())
    if type(error).__name__ == "NoArgsIsHelpError":
        _say(text)
        return EXIT_USAGE
    path = getattr(getattr(error, "ctx", None), "command_path", "georelay")
    _say(f"georelay: {' '.join(text.split())} (see `{path} --help`)")
    return EXIT_USAGE


def _say(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"georelay {_version()}")  # noqa: T201
        raise typer.Exit


def _version() -> str:
    import importlib.metadata

    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "(not installed)"


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A geo-distributed mesh of regional message brokers."""
