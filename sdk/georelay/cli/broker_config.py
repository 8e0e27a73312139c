"""`georelay broker config`: the configuration file of one broker of a mesh on several hosts.

Rule 1: what a broker would refuse is not written: off loopback there are certificates, and clients sign in.
Rule 2: a file that is there is not overwritten.
Rule 3: all files of a mesh are written from the same --region options, so that they agree.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from georelay.cli.failure import EXIT_USAGE, CommandFailed
from georelay.cli.printing import print_line
from georelay.limits import REGION_NAME_CHARS_MAX

LISTENERS: Final = ("kafka", "grpc", "peers", "link", "admin")  # on consecutive ports
BASE_PORT: Final = 9092
PORT_MAX: Final = 65_535
HOSTS_MAX: Final = 99
MESH_ID_CHARS_MAX: Final = 64
_REGION: Final = re.compile(rf"[a-z0-9-]{{1,{REGION_NAME_CHARS_MAX}}}")
_HOST: Final = re.compile(r"[A-Za-z0-9.:-]{1,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMesh:
    """What all files of a mesh share: its regions with the hosts of their brokers, both numbered from 1."""

    mesh_id: str
    regions: tuple[tuple[str, tuple[str, ...]], ...]
    base_port: int = BASE_PORT

    @property
    def is_on_loopback(self) -> bool:
        """Return whether nothing of it is reached from elsewhere."""
        return all(_is_loopback(host) for _, hosts in self.regions for host in hosts)

    def address(self, host: str, listener: str) -> str:
        """Return "host:port" of one listener of a broker on a host."""
        shown = f"[{host}]" if ":" in host else host
        return f"{shown}:{self.base_port + LISTENERS.index(listener)}"


def parse_region(text: str) -> tuple[str, tuple[str, ...]]:
    """Return (name, hosts) of "us=10.0.1.1,10.0.1.2". Raises CommandFailed."""
    name, separator, listed = text.partition("=")
    hosts = tuple(host.strip() for host in listed.split(","))
    if not separator or _REGION.fullmatch(name) is None or not all(map(_HOST.fullmatch, hosts)):
        raise CommandFailed(f"--region: give NAME=HOST,HOST,..., not {text!r}", exit_code=EXIT_USAGE)
    if len(set(hosts)) != len(hosts) or len(hosts) > HOSTS_MAX:
        raise CommandFailed(f"--region: {name} needs 1 to {HOSTS_MAX} hosts, each once", exit_code=EXIT_USAGE)
    return name, hosts


def host_toml(
    mesh: HostMesh, *, region: str, number: int, data_dir: str, pki: str = "", users_file: str = "", trace_dir: str = ""
) -> str:
    """Return the file of broker `number` of `region`."""
    hosts = dict(mesh.regions)[region]
    place = [name for name, _ in mesh.regions].index(region) + 1
    lines = [
        f"mesh_id = {_text(mesh.mesh_id)}",
        f"region = {_text(region)}",
        f"broker = {number}",
        f"data_dir = {_text(data_dir)}",
        f"definitions_home = {_text(mesh.regions[0][0])}",
        *([f"trace_dir = {_text(trace_dir)}"] if trace_dir else []),
        *([f"users_file = {_text(users_file)}"] if users_file else []),
        "",
        "[listen]",
        *(f"{listener} = {_text(mesh.address(hosts[number - 1], listener))}" for listener in LISTENERS),
    ]
    if pki:
        name = f"broker-{place * 1000 + number}"
        lines += ["", "[tls]", f"cert_file = {_text(f'{pki}/{name}.crt')}", f"key_file = {_text(f'{pki}/{name}.key')}"]
        lines += [f"ca_file = {_text(f'{pki}/bundle.crt')}", 'client_auth = "optional"']
    if pki and not users_file:
        lines += ["", "[security]", 'sign_in = "required"']
    for at, (name, others) in enumerate(mesh.regions, start=1):
        rows = ", ".join(_row(mesh, n, host) for n, host in enumerate(others, start=1))
        lines += ["", "[[regions]]", f"name = {_text(name)}", f"number = {at}", f"brokers = [{rows}]"]
    return "\n".join(lines) + "\n"


def config(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Written with mode 0640; one that is there is kept.")],
    broker: Annotated[str, typer.Option("--broker", metavar="REGION/N", help="Whose file: region and place in it.")],
    region: Annotated[
        list[str],
        typer.Option(
            "--region",
            metavar="NAME=HOST,...",
            help="Each region with its brokers' hosts; the same in all files.",
        ),
    ],
    mesh_id: Annotated[str, typer.Option("--mesh-id", metavar="ID", help="The same in all files; stays for ever.")],
    data_dir: Annotated[str, typer.Option("--data-dir", metavar="DIR")] = "/var/lib/georelay",
    pki: Annotated[
        str,
        typer.Option("--pki", metavar="DIR", help="Certificates of `georelay pki` on that host; needed off loopback."),
    ] = "",
    users_file: Annotated[
        str, typer.Option("--users-file", metavar="FILE", help="Users besides those of the mesh.")
    ] = "",
    trace_dir: Annotated[str, typer.Option("--trace-dir", metavar="DIR", help="Where traces are written.")] = "",
    base_port: Annotated[
        int,
        typer.Option("--base-port", min=1024, max=PORT_MAX - len(LISTENERS) + 1, help="Of kafka; others follow."),
    ] = BASE_PORT,
) -> None:
    """Write the configuration of one broker of a mesh on several hosts."""
    regions = tuple(parse_region(text) for text in region)
    if len({name for name, _ in regions}) != len(regions):
        raise CommandFailed("--region: a region is given twice", exit_code=EXIT_USAGE)
    if not 1 <= len(mesh_id) <= MESH_ID_CHARS_MAX:
        raise CommandFailed(f"--mesh-id: 1 to {MESH_ID_CHARS_MAX} characters", exit_code=EXIT_USAGE)
    mesh = HostMesh(mesh_id=mesh_id, regions=regions, base_port=base_port)
    name, number = parse_broker(broker, mesh)
    if not pki and (users_file or not mesh.is_on_loopback):
        raise CommandFailed(
            "--pki: brokers off loopback, and those whose clients sign in, need certificates: `georelay pki init`, and "
            "`georelay pki issue broker ID --host HOST` for each",
            exit_code=EXIT_USAGE,
        )
    text = host_toml(
        mesh, region=name, number=number, data_dir=data_dir, pki=pki, users_file=users_file, trace_dir=trace_dir
    )
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        with os.fdopen(descriptor, "w", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError as error:
        raise CommandFailed(f"{file} is there already; remove it, or name another file") from error
    except OSError as error:
        raise CommandFailed(f"cannot write {file}: {error.strerror}") from error
    print_line(f"{file} is written; on {dict(regions)[name][number - 1]}: georelay-broker --config {file}")


def parse_broker(text: str, mesh: HostMesh) -> tuple[str, int]:
    """Return (region, number) of "us/2". Raises CommandFailed."""
    name, _, number = text.partition("/")
    hosts: Sequence[str] = dict(mesh.regions).get(name, ())
    if not number.isascii() or not number.isdigit() or not 1 <= int(number[:4]) <= len(hosts):
        known = ", ".join(f"{region}/1..{len(hosts)}" for region, hosts in mesh.regions)
        raise CommandFailed(f"--broker: {text!r} is none of {known}", exit_code=EXIT_USAGE)
    return name, int(number)


def _row(mesh: HostMesh, number: int, host: str) -> str:
    peers, link = (_text(mesh.address(host, listener)) for listener in ("peers", "link"))
    return f"{{number = {number}, peers = {peers}, link = {link}}}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _text(value: str) -> str:
    """Return a TOML basic string: JSON's escapes are TOML's, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
