"""Where the gateway is and how it is trusted: the flags that every command has, and their order of precedence.

--gateway, then --endpoints, then GEORELAY_GATEWAY, then ./georelay-endpoints.json as `georelay up` writes it.
--ca, --cert and --key are added to every command that has --gateway (`add_tls_options`); the file that
`georelay up --tls` writes names its authority itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.client.gateway_http import GatewayHttp
from georelay.client.gateway_question import GatewayPlace
from georelay.errors import ConfigError

if TYPE_CHECKING:
    from georelay.tls import TlsContexts

GATEWAY_VARIABLE: Final = "GEORELAY_GATEWAY"
USER_VARIABLE: Final = "GEORELAY_USER"
TOKEN_VARIABLE: Final = "GEORELAY_TOKEN"  # noqa: S105 - a bearer token, where no user is named
ENDPOINTS_FILE: Final = "georelay-endpoints.json"
ENDPOINTS_VERSION: Final = 1
ENDPOINTS_BYTES_MAX: Final = 1024 * 1024

GatewayOption = Annotated[
    str, typer.Option("--gateway", metavar="URL", help=f"Gateway, http://host:port (or {GATEWAY_VARIABLE}).")
]
EndpointsOption = Annotated[
    str, typer.Option("--endpoints", metavar="FILE", help="File written by `georelay up --endpoints FILE`.")
]
UserOption = Annotated[
    str,
    typer.Option(
        "--user",
        metavar="NAME:PASSWORD",
        help=f"When the mesh has users (or {USER_VARIABLE}); @FILE reads it from a file, @- from standard input.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def open_gateway(gateway: str, endpoints: str, user: str) -> GatewayHttp:
    """Return a client of the gateway that `gateway_place` returns, and raise as it does; needs a running event loop."""
    place = gateway_place(gateway, endpoints, user)
    return GatewayHttp(place.url, user=place.user, token=place.token, tls=place.tls)


def gateway_place(gateway: str, endpoints: str, user: str) -> GatewayPlace:
    """Return the gateway that the flags and the environment name.

    Raises:
        CommandFailed: nothing names a gateway, or something does so wrongly.
    """
    url = gateway_url(gateway, endpoints, environ=os.environ, directory=Path())
    tls = _tls_of(url, gateway, endpoints)
    credentials = user or os.environ.get(USER_VARIABLE, "")
    if credentials:
        from georelay.credentials import given_credentials  # only where there are some: it is slow to import

        try:
            credentials = ":".join(given_credentials(credentials))
        except ConfigError as error:
            raise CommandFailed(str(error), exit_code=EXIT_USAGE) from None
    return GatewayPlace(url, credentials, os.environ.get(TOKEN_VARIABLE, ""), tls)


@dataclass(slots=True)
class TlsFiles:
    """What --ca, --cert and --key of the running command named; "" where they did not."""

    ca: str = ""
    cert: str = ""
    key: str = ""


TLS_FILES: Final = TlsFiles()  # of this process: it runs one command


def add_tls_options(command: Any) -> None:
    """Give --ca, --cert and --key to every command below `command` that has --gateway."""
    for below in getattr(command, "commands", {}).values():
        add_tls_options(below)
    gateway = next((option for option in command.params if option.name == "gateway"), None)
    if gateway is None:
        return
    texts = {
        "ca": "Authorities to trust (PEM); default: the system's.",
        "cert": "Own certificate (PEM), if the mesh wants one.",
        "key": "Its key (PEM).",
    }
    for name, text in texts.items():
        option = copy(gateway)  # of the class that this typer uses
        option.name, option.opts, option.secondary_opts = f"tls_{name}", [f"--{name}"], []  # KEY is an argument of some
        option.metavar, option.help, option.default = "FILE", text, ""
        option.expose_value, option.callback = False, partial(_note_file, name)
        command.params.append(option)


def _note_file(name: str, _context: Any, _option: Any, value: str | None) -> None:
    setattr(TLS_FILES, name, value or "")


def _tls_of(url: str, gateway: str, endpoints: str) -> TlsContexts | None:
    files = TLS_FILES
    if not url.startswith("https://"):
        if files.ca or files.cert:
            raise CommandFailed(f"--ca and --cert are for https://, not for {url}", exit_code=EXIT_USAGE)
        return None
    from georelay.tls import client_contexts

    if bool(files.cert) != bool(files.key):
        raise CommandFailed("--cert and --key belong together", exit_code=EXIT_USAGE)
    ca = files.ca or ("" if gateway else _ca_of_endpoints(endpoints))
    ca_path, cert, key = (Path(text) if text else None for text in (ca, files.cert, files.key))
    return client_contexts(ca=ca_path, cert=cert, key=key)


def _ca_of_endpoints(endpoints: str) -> str:
    """Return the authority that the endpoints file names, "" when it names none or was not used."""
    path = Path(endpoints or ("" if os.environ.get(GATEWAY_VARIABLE) else ENDPOINTS_FILE) or os.devnull)
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(ENDPOINTS_BYTES_MAX) or b"{}")
    except (OSError, ValueError):
        return ""  # gateway_url has said what is wrong with it
    ca = document.get("ca") if isinstance(document, dict) else None
    return ca if isinstance(ca, str) else ""


def gateway_url(gateway: str, endpoints: str, *, environ: Mapping[str, str], directory: Path) -> str:
    """Return the gateway's URL (CommandFailed as above)."""
    if gateway:
        return _checked(gateway, "--gateway")
    if endpoints:
        return _from_endpoints(Path(endpoints))
    if environ.get(GATEWAY_VARIABLE):
        return _checked(environ[GATEWAY_VARIABLE], GATEWAY_VARIABLE)
    if (directory / ENDPOINTS_FILE).exists():
        return _from_endpoints(directory / ENDPOINTS_FILE)
    raise CommandFailed(
        f"which mesh? give --gateway URL, --endpoints FILE or {GATEWAY_VARIABLE} (`georelay up` prints the URL)",
        exit_code=EXIT_USAGE,
    )


def _checked(url: str, source: str) -> str:
    try:
        parts = urlsplit(url)
        valid = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path in ("", "/") and parts.port != 0
        )
    except ValueError:  # a port that is no number
        valid = False
    if not valid:
        raise CommandFailed(f"{source}: {url!r} is not http://host:port", exit_code=EXIT_USAGE)
    return url.rstrip("/")


def _from_endpoints(path: Path) -> str:
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(ENDPOINTS_BYTES_MAX))
    except FileNotFoundError as error:
        raise CommandFailed(
            f"endpoints file {path} does not exist; `georelay up` writes it when the mesh is ready"
        ) from error
    except OSError as error:
        raise CommandFailed(f"endpoints file {path}: {error.strerror}") from error
    except ValueError as error:
        raise CommandFailed(f"endpoints file {path} is not JSON") from error
    if not isinstance(document, dict) or document.get("version") != ENDPOINTS_VERSION:
        raise CommandFailed(f"endpoints file {path} is not one of `georelay up` (version {ENDPOINTS_VERSION})")
    gateway = document.get("gateway")
    addresses = gateway.get("http") if isinstance(gateway, dict) else None
    if not isinstance(addresses, list) or not addresses or not isinstance(addresses[0], str):
        raise CommandFailed(f"endpoints file {path} names no gateway address under gateway.http")
    address = addresses[0]
    scheme = "https" if document.get("ca") else "http"
    return _checked(address if "://" in address else f"{scheme}://{address}", f"endpoints file {path}")
