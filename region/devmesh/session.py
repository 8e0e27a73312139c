"""One run of a development mesh: from the wish to running processes, an endpoint file, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from georelay.credentials import write_users_file
from georelay.errors import ConfigError, Unavailable
from georelay.tls import client_contexts
from mesh.testbed.bed_process import BedProcess
from region.devmesh import ports
from region.devmesh.bytecode import compile_packages
from region.devmesh.certificates import DevPki, prepare
from region.devmesh.directory import locked, mesh_secret, read_record, replace_file, write_record
from region.devmesh.gossip_keys import prepare_keys
from region.devmesh.nursery import Nursery
from region.devmesh.overrides import parse_overrides, read_overrides
from region.devmesh.placement import hosts_in
from region.devmesh.plan_core import (
    BASE_PORT_DEFAULT,
    READY_TIMEOUT_S,
    MeshPlan,
    MeshRecord,
    check_block,
    check_same_mesh,
    new_record,
    plan,
    port_count,
)
from region.devmesh.process_config import ProcessPaths, broker_toml, endpoints_json, gateway_toml
from region.devmesh.readiness import is_ready
from region.devmesh.supervisor import ChildExit, ChildSpec, Supervisor

PROBE_INTERVAL_S: Final = 0.2
BED_CHECK_S: Final = 0.5
# -P: a folder named `region` in the working directory must not be taken for ours
BROKER_ARGV: Final = (sys.executable, "-P", "-m", "region")
GATEWAY_ARGV: Final = (sys.executable, "-P", "-m", "gateway")
USERS_NAME: Final = "users.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `georelay up` was asked for, checked as far as flags alone can be.

    Args:
        base_port: None keeps the directory's block, or takes 21000 for a new one; 0 the same, but searches.
        endpoints: None is DIR/endpoints.json.
        users: name to password; empty keeps the users that the directory has.
        tls: certificates for every process, made when they are missing.
        gossip: processes find each other through one seed; None: unless links are overridden.
        traces: brokers and gateway write them into the directory.
        num_partitions: of topics that are created without a number.
        bed: the test bed that its processes run in, whose hub this process is in; None: this machine's loopback.
        broker_argv, gateway_argv: programs; `--config FILE` is added.
    """

    regions: tuple[str, ...]
    brokers_per_region: int
    directory: Path
    base_port: int | None = None
    endpoints: Path | None = None
    users: tuple[tuple[str, str], ...] = ()
    restart: bool = False
    tls: bool = False
    gossip: bool | None = None
    traces: bool = True
    num_partitions: int = 1
    bed: BedProcess | None = None
    link_overrides: tuple[str, ...] = ()
    ready_timeout_s: float = READY_TIMEOUT_S
    broker_argv: tuple[str, ...] = BROKER_ARGV
    gateway_argv: tuple[str, ...] = GATEWAY_ARGV


class Progress:
    """What the user sees; the base class shows nothing."""

    def preparing(self, layout: MeshPlan) -> None:
        """Tell how many processes are about to start."""

    def became_ready(self, name: str) -> None:
        """Tell that one process answers /readyz with 200."""

    def all_ready(self, layout: MeshPlan, endpoints: Path, pki: DevPki | None = None) -> None:
        """Tell that the mesh is usable."""

    def line(self, text: str) -> None:
        """Tell of something that happened."""


async def run(options: UpOptions, progress: Progress) -> None:
    """Run a mesh until SIGINT, SIGTERM or SIGHUP.

    Raises:
        ConfigError: a wrong flag, directory or port; nothing was started.
        Unavailable: a process ended or was not ready in time; everything was stopped again.
    """
    options = replace(options, directory=options.directory.absolute())
    with locked(options.directory):
        layout, pki = _prepare(options)
        compile_packages()
        endpoints = (options.endpoints or options.directory / "endpoints.json").absolute()
        _remove_stale(endpoints)
        await _Session(options, layout, endpoints, progress, pki).run(_specs(options, layout))


def _prepare(options: UpOptions) -> tuple[MeshPlan, DevPki | None]:
    """Decide the layout and write every file the processes are started with."""
    directory = options.directory
    record = _record(options)
    layout = plan(record, None if options.bed is None else hosts_in(options.bed, record))
    if options.bed is None:
        ports.require_free(record.base_port, record.port_count)
    overrides = parse_overrides([*read_overrides(directory), *options.link_overrides], plan=layout)
    users_file = directory / USERS_NAME
    if options.users:
        write_users_file(users_file, dict(options.users))
    elif options.bed is not None and not users_file.exists():
        raise ConfigError(
            "--wan: brokers do not listen on loopback and let nobody in unknown: give --user NAME:PASSWORD"
        )
    pki = prepare(directory, layout) if options.tls else None
    if options.gossip and overrides:
        raise ConfigError("--gossip: links would go round --link-override by the addresses that gossip tells")
    gossips = not overrides if options.gossip is None else options.gossip
    paths = ProcessPaths(
        directory=directory,
        users_file=users_file if users_file.exists() else None,
        parent_pid=os.getpid(),
        secret_file=mesh_secret(directory) if pki is None else None,
        pki=pki,
        keys=prepare_keys(directory, layout) if gossips else None,
        congestion_control="" if options.bed is None else options.bed.plan.congestion_control,
        traces=options.traces,
        num_partitions=options.num_partitions,
    )
    write_record(directory, record)
    for broker in layout.brokers:
        text = broker_toml(layout, broker, paths=paths, overrides=overrides)
        replace_file(_config_path(directory, broker.name), text)
    replace_file(_config_path(directory, "gateway"), gateway_toml(layout, paths=paths))
    return layout, pki


def _record(options: UpOptions) -> MeshRecord:
    count = port_count(len(options.regions), options.brokers_per_region)
    if options.base_port:
        check_block(options.base_port, count)
    record = read_record(options.directory)
    if record is not None:
        check_same_mesh(
            record,
            regions=options.regions,
            brokers_per_region=options.brokers_per_region,
            directory=str(options.directory),
        )
        return replace(record, base_port=options.base_port or record.base_port)
    base_port = BASE_PORT_DEFAULT if options.base_port is None else options.base_port
    return new_record(
        mesh_id=uuid.uuid4().hex,
        regions=options.regions,
        brokers_per_region=options.brokers_per_region,
        base_port=base_port or (BASE_PORT_DEFAULT if options.bed is not None else ports.search_block(count)),
    )


def _specs(options: UpOptions, layout: MeshPlan) -> list[ChildSpec]:
    specs = [
        ChildSpec(
            name=broker.name,
            argv=(
                *_entering(options, broker.region),
                *options.broker_argv,
                "--config",
                str(_config_path(options.directory, broker.name)),
            ),
            ready_address=broker.admin,
        )
        for broker in layout.brokers
    ]
    gateway = (*options.gateway_argv, "--config", str(_config_path(options.directory, "gateway")))
    return [*specs, ChildSpec(name="gateway", argv=gateway, ready_address=layout.gateway.http)]


def _entering(options: UpOptions, region: str) -> tuple[str, ...]:
    return () if options.bed is None else options.bed.enter_argv(region)


def _config_path(directory: Path, name: str) -> Path:
    return directory / "config" / f"{name}.toml"


def _remove_stale(endpoints: Path) -> None:
    """Remove what a killed run left, before anybody can take it for ours; and find out early if we cannot write."""
    try:
        endpoints.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"--endpoints: cannot write {endpoints}: {error.strerror}") from error
    if not os.access(endpoints.parent, os.W_OK):
        raise ConfigError(f"--endpoints: the directory {endpoints.parent} is not there or not writable")


class _Session:
    """The running part: children up, endpoint file there, until somebody asks to stop."""

    def __init__(
        self, options: UpOptions, layout: MeshPlan, endpoints: Path, progress: Progress, pki: DevPki | None
    ) -> None:
        self._pki = pki
        self._tls = None if pki is None else client_contexts(ca=pki.ca, name="readiness")
        self._options = options
        self._layout = layout
        self._endpoints = endpoints
        self._progress = progress
        self._nursery = Nursery(options.directory / "logs" / "nursery.log", traces=options.traces)
        self._supervisor = Supervisor(
            options.directory, restart=options.restart, on_exit=self._child_ended, nursery=self._nursery
        )
        self._is_up = False
        self._asked_to_stop = asyncio.Event()
        self._early_exit: asyncio.Future[ChildExit] = asyncio.get_running_loop().create_future()

    async def run(self, specs: list[ChildSpec]) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop_asked)
        try:
            if await self._unless_stopped(self._bring_up(specs)):
                replace_file(self._endpoints, endpoints_json(self._layout, self._pki))
                self._is_up = True
                self._progress.all_ready(self._layout, self._endpoints, self._pki)
                await self._until_asked_to_stop()
        finally:
            self._endpoints.unlink(missing_ok=True)
            await self._supervisor.stop()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)

    async def _until_asked_to_stop(self) -> None:
        bed = self._options.bed
        while not self._asked_to_stop.is_set():
            if bed is not None and not bed.is_running:
                raise Unavailable(f"the test bed {bed.plan.name} has ended")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if bed is None else BED_CHECK_S):
                    await self._asked_to_stop.wait()

    async def _bring_up(self, specs: list[ChildSpec]) -> None:
        self._progress.preparing(self._layout)
        if sum(self._nursery.makes(spec.argv) for spec in specs) > 1:
            await self._nursery.start()
        for spec in specs:
            await self._supervisor.start(spec)
        await self._supervisor.all_started()
        waiting = {spec.name: spec for spec in specs}
        try:
            async with asyncio.timeout(self._options.ready_timeout_s):
                while waiting:
                    await self._probe(waiting)
        except TimeoutError as error:
            logs = self._options.directory / "logs"
            late = ", ".join(waiting)
            raise Unavailable(f"not ready after {self._options.ready_timeout_s:g} s: {late} (logs: {logs})") from error

    async def _probe(self, waiting: dict[str, ChildSpec]) -> None:
        if self._early_exit.done():
            raise Unavailable(self._early_exit.result().describe())
        specs = list(waiting.values())
        for spec, ready in zip(
            specs, await asyncio.gather(*(is_ready(spec.ready_address, self._tls) for spec in specs)), strict=True
        ):
            if ready:
                del waiting[spec.name]
                self._progress.became_ready(spec.name)
        if waiting:
            await asyncio.wait([self._early_exit], timeout=PROBE_INTERVAL_S)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do `work`; return False, with it cancelled, when somebody asks to stop first."""
        working = asyncio.create_task(work)
        stopped = asyncio.create_task(self._asked_to_stop.wait())
        try:
            await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            return False
        finally:
            for task in (working, stopped):
                task.cancel()
            await asyncio.gather(working, stopped, return_exceptions=True)

    def _stop_asked(self) -> None:
        if self._asked_to_stop.is_set():
            self._supervisor.kill()
            return
        self._progress.line("stopping (again to kill)")
        self._asked_to_stop.set()

    def _child_ended(self, ended: ChildExit) -> None:
        line = ended.describe()
        if self._is_up and not self._options.restart:
            line += f"; again: georelay up --data {self._options.directory} --start {ended.name}"
        self._progress.line(line)
        if not self._options.restart and not self._early_exit.done():
            self._early_exit.set_result(ended)
