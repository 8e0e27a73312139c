"""`georelay-sla cluster`: a standalone Spark cluster for the jobs, on this machine or one daemon per host."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from rich.table import Table
from rich.text import Text

from sla.cluster.launch import run_master, run_worker
from sla.cluster.lifecycle import ClusterStatus, UpRequest, down, status, up
from sla.cluster.secret import FILE_NAME
from sla.cluster.settings import LOOPBACK, MASTER_PORT, check_cores, check_host, parse_master, parse_memory_mib
from sla.commands import arguments as a
from sla.errors import JobFailed, UsageError
from sla.report.wording import things

DIRECTORY_DEFAULT: Final = "sla-cluster"
_WORKERS_DEFAULT: Final = 2
_MEMORY_DEFAULT: Final = "1024m"


def register(commands: a.Subparsers) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "cluster",
        help="run a Spark cluster for the jobs",
        description="A standalone Spark cluster from the pyspark package. Jobs use it with --master and "
        f"--properties-file DIR/{FILE_NAME}.",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _add_up(actions)
    for name, help_text, run in (
        ("status", "show master and workers; 0 when all that was started can be used, else 4", _status),
        ("down", "end what was started in a directory", _down),
    ):
        action = actions.add_parser(name, help=help_text)
        _add_directory(action)
        action.set_defaults(run=run)
    _add_master(actions)
    _add_worker(actions)


def _add_up(actions: a.Subparsers) -> None:
    parser = actions.add_parser(
        "up",
        help="start master and workers on this machine, or what is missing of them",
        description="Start a master and workers on this machine; what runs already is left alone.",
    )
    _add_directory(parser)
    _add_host(parser)
    _add_ports(parser, "that of the one that runs, else ", None)
    parser.add_argument(
        "--workers", type=int, default=_WORKERS_DEFAULT, help=f"how many at least (default: {_WORKERS_DEFAULT})"
    )
    _add_size(parser)
    parser.set_defaults(run=_up)


def _add_master(actions: a.Subparsers) -> None:
    parser = actions.add_parser(
        "master",
        help="be the master, in the foreground (for a service manager)",
        description=f"Become the master; DIR/{FILE_NAME} is made when it is missing.",
    )
    _add_directory(parser)
    _add_host(parser)
    _add_ports(parser, "", MASTER_PORT)
    parser.set_defaults(run=_master)


def _add_worker(actions: a.Subparsers) -> None:
    parser = actions.add_parser(
        "worker",
        help="be a worker, in the foreground (for a service manager)",
        description="Become a worker of a master, on this host or another.",
    )
    _add_directory(parser)
    parser.add_argument("--master", required=True, metavar="URL", help="spark://HOST:PORT")
    parser.add_argument(
        "--secret", type=Path, metavar="FILE", help=f"copy of the master's file (default: DIR/{FILE_NAME})"
    )
    parser.add_argument("--port", type=int, default=0, help="to listen on (default: any free one)")
    parser.add_argument("--name", default="worker-1", help="one per worker of this host (default: worker-1)")
    _add_host(parser)
    _add_size(parser)
    parser.set_defaults(run=_worker)


def _add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path(os.environ.get("GEORELAY_SLA_CLUSTER", DIRECTORY_DEFAULT)),
        help=f"of secret, process files and logs (default: $GEORELAY_SLA_CLUSTER or ./{DIRECTORY_DEFAULT})",
    )


def _add_host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default=LOOPBACK, help=f"address to listen on (default: {LOOPBACK})")


def _add_ports(parser: argparse.ArgumentParser, words: str, default: int | None) -> None:
    parser.add_argument(
        "--port", type=int, default=default, help=f"of the master, 0: any free one (default: {words}{MASTER_PORT})"
    )
    parser.add_argument(
        "--webui-port", type=int, default=0, help="of the master's page, on loopback only (default: any free one)"
    )


def _add_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cores", type=int, default=1, help="of a worker (default: 1)")
    parser.add_argument(
        "--memory", default=_MEMORY_DEFAULT, help=f"of a worker's executors (default: {_MEMORY_DEFAULT})"
    )


def _up(arguments: argparse.Namespace) -> int:
    request = UpRequest(
        directory=arguments.dir.absolute(),
        host=check_host(arguments.host),
        port=arguments.port,
        web_port=arguments.webui_port,
        workers=arguments.workers,
        cores=check_cores(arguments.cores),
        memory_mib=parse_memory_mib(arguments.memory),
    )
    with a.progress() as on_step:
        found = up(request, on_step)
    _show(found)
    _show_use(found)
    return 0


def _status(arguments: argparse.Namespace) -> int:
    found = status(arguments.dir.absolute())
    if not found.daemons:
        raise JobFailed(f"no cluster was started in {arguments.dir}; `georelay-sla cluster up` starts one")
    _show(found)
    if found.is_whole:
        _show_use(found)
    return 0 if found.is_whole else JobFailed.exit_status


def _down(arguments: argparse.Namespace) -> int:
    with a.progress() as on_step:
        ended = down(arguments.dir.absolute(), on_step)
    names = f": {', '.join(ended)}" if ended else ""
    a.output_console().print(f"{things(len(ended), 'process', 'processes')} ended{names}", highlight=False)
    return 0


def _master(arguments: argparse.Namespace) -> int:
    host = check_host(arguments.host)
    run_master(arguments.dir.absolute(), host=host, port=arguments.port, web_port=arguments.webui_port)


def _worker(arguments: argparse.Namespace) -> int:
    parse_master(arguments.master)
    directory = arguments.dir.absolute()
    if not arguments.name.removeprefix("worker-").isdecimal():
        raise UsageError(f"--name must be worker-NUMBER, not {arguments.name!r}")
    run_worker(
        directory,
        name=arguments.name,
        master=arguments.master,
        secret=arguments.secret or directory / FILE_NAME,
        host=check_host(arguments.host),
        port=arguments.port,
        cores=check_cores(arguments.cores),
        memory_mib=parse_memory_mib(arguments.memory),
    )


def _show(found: ClusterStatus) -> None:
    console = a.output_console()
    table = Table(box=None, pad_edge=False)
    for column in ("daemon", "process", "address", "state", "cores used", "memory used"):
        table.add_column(column)
    workers = {} if found.master is None else {(one.host, one.port): one for one in found.master.workers}
    for daemon in found.daemons:
        address, state = f"{daemon.host}:{daemon.port}", "not running"
        cores = memory = ""
        worker = workers.pop((daemon.host, daemon.port), None)
        if daemon.name in found.running:
            state = "running"
            if daemon.url.endswith(address) and found.master is not None:
                state = found.master.state.lower()
            elif worker is not None:
                state = worker.state.lower()
                cores = f"{worker.cores_used} of {worker.cores}"
                memory = f"{worker.memory_used_mib} of {worker.memory_mib} MiB"
        table.add_row(daemon.name, str(daemon.pid), address, state, cores, memory)
    for worker in workers.values():  # of other hosts, and those that died
        table.add_row(
            "(elsewhere)",
            "",
            f"{worker.host}:{worker.port}",
            worker.state.lower(),
            f"{worker.cores_used} of {worker.cores}",
            f"{worker.memory_used_mib} of {worker.memory_mib} MiB",
        )
    console.print(table)


def _show_use(found: ClusterStatus) -> None:
    use = f"use it: georelay-sla report --master {found.url} --properties-file {found.directory / FILE_NAME}"
    a.output_console().print(Text(use), soft_wrap=True)
