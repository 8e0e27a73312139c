"""The mesh of a campaign: started here, or one that runs; its topics, its processes, and what is broken when."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp

from loadtest.campaign.joined_broker import BesideBroker, JoinedBroker, NewRegion, broker_id
from loadtest.campaign.mesh import COMMAND_S, HTTP_TIMEOUT, CampaignFailed, NotYet, georelay, get_json, until
from loadtest.campaign.phases_core import HEALED
from loadtest.load import homes
from loadtest.load.breakable_broker import control_path
from loadtest.load.campaign import QUEUE_CONSUMER, Campaign, Fault, Topic
from loadtest.load.campaign_file import BREAKABLE
from loadtest.load.control_file import ControlFile
from loadtest.load.faults import STRIKES
from loadtest.load.filler import fill
from loadtest.load.links import PROGRAM, LinkedMesh
from loadtest.load.older_mesh import OlderMesh
from loadtest.load.programs import PROGRAMS, Program
from loadtest.load.replicas import compare, wait_until_settled
from loadtest.load.running_mesh import InventoryMesh, RunningMesh
from loadtest.login import settings_of
from loadtest.mesh_process import MeshProcess
from loadtest.wan.wan_mesh import WanMesh

DRAIN_S: Final = 180
SAMPLE_S: Final = 1.0
LEADER_OF: Final = "leader of "
ANY_OF: Final = "any of "
COORDINATOR_OF: Final = "coordinator of "
HOME_OF: Final = "home of "
QUEUES: Final = {"queue", QUEUE_CONSUMER}  # kinds of readers and programs that make queues
LEADER_S: Final = 60.0
BROKERS_OF_REGION: Final = 1_000  # broker 2001 is the first one of the second region
Mesh = TypeVar("Mesh", bound=MeshProcess)
GONE_S: Final = 10.0
MOVE_S: Final = 1_800


class Stage:
    """A running mesh, as campaigns see it: started here, or a RunningMesh.

    `settings`: how librdkafka signs in. `elsewhere`: the mesh, where an operator's commands break and mend it.
    """

    def __init__(self, folder: Path, mesh: MeshProcess) -> None:
        self.endpoints_file = mesh.endpoints_file
        self.endpoints: Mapping[str, Any] = mesh.endpoints
        self.regions = tuple(self.endpoints["regions"])
        self.settings = settings_of(mesh)
        self.signed_in = {"GEORELAY_USER": ":".join(mesh.user)} if mesh.user else {}  # environment of commands
        self.folder = folder
        self._mesh = mesh
        self.elsewhere = mesh if isinstance(mesh, RunningMesh) and mesh.break_command else None
        self._controls: dict[str, ControlFile] = {}
        self._joined: dict[str, BesideBroker] = {}
        self.one_by_one = asyncio.Lock()  # flips of bits, and upgrades
        self.killed: set[int] = set()  # processes that the campaign ended
        self.programs: dict[str, Program] = {}
        self.may_end: set[str] = set()  # brokers whose disk it takes away
        self.made: list[str] = []  # topics

    async def create(self, campaign: Campaign) -> None:
        """Create the topics of a campaign, and fill those that are to be full. Raises CampaignFailed."""
        self.campaign = campaign
        self.rng = random.Random(campaign.seed)
        for topic in campaign.topics:
            words = ["topics", "create", topic.name, "--partitions", str(topic.partitions)]
            words += ["--homes", topic.homes, *(("--home", topic.home) if topic.home else ())]
            words += [word for name, value in topic.settings.items() for word in ("--set", f"{name}={value}")]
            await self.cli(*words)
            self.made.append(topic.name)
            if topic.brokers:
                await self.place(topic.name, topic.brokers)
            if topic.filled_mb:
                await self._fill(topic)
        (self.folder / "histories").mkdir(exist_ok=True)
        for row in campaign.programs:
            self.programs[row.name] = PROGRAMS[row.kind](self, row)
            await self.programs[row.name].start()

    async def _fill(self, topic: Topic) -> None:
        brokers = self.endpoints["regions"][topic.home or self.regions[0]]["kafka"]
        count, size = int(topic.filled_mb * 1e6 / topic.filled_record_bytes), topic.filled_record_bytes
        where = (brokers, topic.name, topic.partitions)
        await asyncio.to_thread(fill, *where, count=count, size=size, settings=self.settings)

    async def place(self, topic: str, brokers: Sequence[str]) -> None:
        """Have the replicas of a topic on these brokers, and wait until they are. Raises CampaignFailed."""
        words = ("topics", "reassign", topic, "--replicas", ",".join(str(self.broker_id(name)) for name in brokers))
        await self.cli(*words, "--wait", "--timeout", str(MOVE_S), seconds=MOVE_S + COMMAND_S)

    async def settle(self) -> None:
        """Wait until nothing moves, and compare replicas where the campaign wants it. Raises CampaignFailed."""
        await wait_until_settled(self)
        if self.campaign.checks.replicas:
            await compare(self)

    async def cli(self, *words: str, seconds: float = COMMAND_S) -> str:
        """Run `georelay WORDS` on the mesh and return what it prints. Raises CampaignFailed."""
        place = ("--endpoints", str(self.endpoints_file))
        return await georelay(*words, *place, within_s=seconds, environment=self.signed_in)

    async def break_it(self, fault: Fault) -> None:
        """Do what a fault says, for as long as it says, and note when it was done and undone. Raises CampaignFailed."""
        what, (_, is_home, topic) = fault.what, fault.what.partition(HOME_OF)
        for words in (LEADER_OF, ANY_OF, COORDINATOR_OF, HOME_OF):  # of what is more: a file of the leader of a topic
            if words in what:
                head, _, name = what.partition(words)
                what = head + await self._chosen(words, name)
        began = time.monotonic()
        async with STRIKES[fault.do](self, fault, what) as more:
            told = dict(more or {})
            self.note(what=fault.do, of=what, for_s=fault.for_s, took_s=time.monotonic() - began, **told)
            await asyncio.sleep(fault.for_s)
            if is_home:
                await homes.until_moved(self, topic, what)
            began = time.monotonic()
        later = {name: value for name, value in (more or {}).items() if name not in told}
        self.note(what=HEALED, of=what, fault=fault.do, took_s=time.monotonic() - began, **later)
        if is_home:
            await homes.bring_back(self, topic, what)

    def name_of(self, broker: int) -> str:
        """Return the name of a broker by its number in the mesh."""
        return f"{self.regions[broker // BROKERS_OF_REGION - 1]}-{broker % BROKERS_OF_REGION}"

    async def _chosen(self, words: str, name: str) -> str:
        """Return the broker that words of a campaign mean, the same one for the same seed. Raises CampaignFailed."""
        if words == LEADER_OF:
            return await self.leader_of(name)
        if words == ANY_OF:
            return self.rng.choice(sorted(self.admins(name)))
        if words == HOME_OF:
            return await homes.home_of(self, name) or self.regions[0]

        async def coordinator() -> str:
            told = await self.ask(self.endpoints["gateway"]["http"][0], f"/v1/queues/{name}")
            if not told or told["coordinator"] <= 0:
                raise NotYet(f"queue {name} has no coordinator")
            return self.name_of(told["coordinator"])

        return await until(coordinator, within_s=LEADER_S)

    async def leader_of(self, topic: str) -> str:
        """Return the broker that leads the first partition of a topic at its home, as soon as anybody there knows.

        Brokers that are down are asked in vain and the next one is asked; a leader that is held down is none any more.

        Raises:
            CampaignFailed: nobody knows within LEADER_S.
        """

        is_here = self._mesh.data is not None  # else nobody is held down

        async def leader() -> str:
            home = await homes.home_of(self, topic)  # any broker knows it; each region tells its own leader
            for address in self.admins(home).values() if home else ():
                told = await self.ask(address, f"/v1/topics/{topic}")
                number = int(told["partition_states"][0]["leader"]) if told else 0
                if number > 0 and not (is_here and self.hold_file(self.name_of(number)).exists()):
                    return self.name_of(number)
            raise NotYet(f"{topic} has no leader")

        return await until(leader, within_s=LEADER_S)

    def admins(self, region: str) -> dict[str, str]:
        """Return the HTTP addresses of a region's brokers by their names, of those that joined too."""
        addresses = self._mesh.endpoints["regions"].get(region, {}).get("admin", ())
        joined = {name: each.listen["admin"] for name, each in self._joined.items() if name.startswith(f"{region}-")}
        return {f"{region}-{row}": address for row, address in enumerate(addresses, start=1)} | joined

    async def ask(self, address: str, path: str) -> dict[str, Any] | None:
        """Return what a broker answers, None when it is not there or does not know."""
        url = f"{self._mesh.scheme}://{address}{path}"
        return await get_json(url, headers=self._mesh.headers, tls=self._mesh.ssl_context)

    async def metric_lines(self, begin: str | tuple[str, ...], *regions: str) -> list[str]:
        """Return the lines that begin so of the metrics of the brokers of these regions, of all without any.

        A broker that is down has none.
        """
        found: list[str] = []
        tls = self._mesh.ssl_context or True
        async with aiohttp.ClientSession(headers=self._mesh.headers, timeout=HTTP_TIMEOUT) as http:
            for address in (admin for region in regions or self.regions for admin in self.admins(region).values()):
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with http.get(f"{self._mesh.scheme}://{address}/metrics", ssl=tls) as answer:
                        lines = (await answer.text()).splitlines()
                    found += [line for line in lines if line.startswith(begin)]
        return found

    def broker_id(self, name: str) -> int:
        """Return the number that a broker such as us-2 has in the mesh."""
        region, _, number = name.rpartition("-")
        return broker_id(self.regions.index(region) + 1, int(number))

    def data_of(self, name: str) -> Path:
        """Return where a broker of a mesh that was started here keeps its data."""
        return self.directory / "brokers" / name

    def address(self, name: str, listener: str) -> str:
        """Return where a broker listens."""
        region, _, number = name.rpartition("-")
        return str(self.endpoints["regions"][region][listener][int(number) - 1])

    async def gone(self, name: str) -> Path:
        """Wait until a broker that was killed has ended; return its data. Raises CampaignFailed: it does not end."""

        async def look() -> Path:
            if name in self.pids():
                raise NotYet(f"{name} was killed and is still there")
            return self.data_of(name)

        return await until(look, within_s=GONE_S)

    def hold_file(self, name: str) -> Path:
        """Return the file that keeps a killed process down while it is there."""
        return self.directory / "run" / f"{name}.hold"

    async def wan(self, *words: str) -> None:
        """Change links: a test bed's, or cut and heal those on this machine. Raises CampaignFailed."""
        if isinstance(self._mesh, LinkedMesh):
            await {"cut": self._mesh.cut, "heal": self._mesh.heal}[words[0]](*words[1:])
            return
        assert isinstance(self._mesh, WanMesh), "the loader lets no other links be broken"
        try:
            await self._mesh.wan_at_ns(*words)
        except RuntimeError as error:
            raise CampaignFailed(f"georelay wan {' '.join(words)}: {_last_line(str(error))}") from error

    def mesh(self, kind: type[Mesh]) -> Mesh:
        """Return the mesh as one of which more can be broken than of others."""
        assert isinstance(self._mesh, kind), "the loader lets nothing else be broken so"
        return self._mesh

    @property
    def bed(self) -> WanMesh | None:
        """Return the mesh as one in a test bed, None where it is in none."""
        return self._mesh if isinstance(self._mesh, WanMesh) and self._mesh.bed else None

    async def note_bed(self, since_ns: int) -> None:
        """Write down how the test bed was since then (monotonic); nothing without one."""
        if self.bed:
            found = await asyncio.to_thread(self.bed.bed_since, since_ns)
            (self.folder / "bed.json").write_text(json.dumps(found) + "\n", encoding="utf-8")

    async def tell(self, broker: str, **settings: Any) -> None:
        """Tell a breakable broker what is broken; one that is down obeys later. Raises CampaignFailed: it does not."""
        if broker not in self._controls:
            self._controls[broker] = ControlFile(control_path(self.directory / "config" / f"{broker}.toml"))
        control = self._controls[broker]
        control.set(**settings)
        if not await control.obeyed(lambda: broker in self.pids()):
            raise CampaignFailed(f"{broker} does not obey its control file {control.path}")

    @contextlib.asynccontextmanager
    async def one_broker_more(self, region: str) -> AsyncIterator[None]:
        """Let a broker join a region; afterwards drain it, remove it and stop it. Raises CampaignFailed."""
        number = len(list((self.directory / "config").glob(f"{region}-*.toml"))) + 1
        broker = JoinedBroker(self.directory, self.directory / "config" / f"{region}-1.toml", number)
        identity = str(self.broker_id(broker.name))
        try:
            self._joined[broker.name] = broker
            await self.cli("broker", "add", identity, "--peers", broker.listen["peers"])
            await broker.start()
            yield
            await self.cli(
                "broker", "remove", identity, "--wait", "--timeout", str(DRAIN_S), seconds=DRAIN_S + COMMAND_S
            )
        finally:
            del self._joined[broker.name]
            await broker.stop()

    async def one_region_more(self, name: str) -> NewRegion:
        """Let a region of one broker join; it stays. Everybody is told of it after that. Raises CampaignFailed."""
        model = self.directory / "config" / f"{self.regions[0]}-1.toml"
        joined = NewRegion(self.directory, model, region=name, region_number=len(self.regions) + 1)
        await self.cli("region", "add", name, str(joined.region_number), "--seed", joined.seed)
        self._joined[joined.name] = joined
        await joined.start()
        self.regions += (name,)
        own = {listener: [address] for listener, address in joined.listen.items()}
        self.endpoints = {**self.endpoints, "regions": {**self.endpoints["regions"], name: own}}
        self.endpoints_file = self.folder / "endpoints.json"
        self.endpoints_file.write_text(json.dumps(self.endpoints), encoding="utf-8")
        return joined

    async def stop_joined(self) -> None:
        """Stop the brokers that joined and stayed, and the programs."""
        for program in self.programs.values():
            await program.stop()
        for broker in self._joined.values():
            await broker.stop()

    def note(self, **event: Any) -> None:
        """Write down that something happened, now."""
        with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"second": time.time(), "ns": time.monotonic_ns(), **event}) + "\n")

    @property
    def directory(self) -> Path:
        """Return where a mesh that was started here keeps its files."""
        assert self._mesh.data is not None, "the loader lets a mesh be broken only whose files are known"
        return self._mesh.data

    def pids(self) -> dict[str, int]:
        """Return the processes that run of a mesh on this machine, by name."""
        if self._mesh.data is None:
            return {}
        pids = {}
        for path in sorted((self.directory / "run").glob("*.pid")):
            with contextlib.suppress(OSError, ValueError):  # it is down, or just being started again
                pid = int(path.read_text())
                os.kill(pid, 0)
                pids[path.stem] = pid
        return pids


@contextlib.asynccontextmanager
async def meshed(campaign: Campaign, directory: Path) -> AsyncIterator[MeshProcess]:
    """Run the mesh of a campaign, where it does not run yet. Raises CampaignFailed."""
    if campaign.topology.kind == "wan" and os.geteuid():
        raise CampaignFailed("a campaign in a test bed needs root: nobody else's clients reach regions from outside")
    try:
        async with _mesh_of(campaign, directory) as mesh:
            yield mesh
    except RuntimeError as error:
        raise CampaignFailed(f"the mesh could not be started: {_last_line(str(error))}") from error


@contextlib.asynccontextmanager
async def staged(folder: Path, mesh: MeshProcess) -> AsyncIterator[Stage]:
    """Let campaigns see a mesh; what they started is stopped at the end, and a mesh that runs is left as it was."""
    stage = Stage(folder, mesh)
    try:
        yield stage
    finally:
        try:
            await stage.stop_joined()
        finally:
            if isinstance(mesh, RunningMesh):
                await _leave_as_it_was(stage)


def _mesh_of(campaign: Campaign, directory: Path) -> MeshProcess:
    topology = campaign.topology
    if topology.kind == "endpoints":
        return RunningMesh(topology)
    if topology.kind == "inventory":
        return InventoryMesh(campaign, directory.parent)
    clocks = _clocks_told(campaign, directory)
    is_broken = bool(clocks) or any(fault.do in BREAKABLE for fault in campaign.faults)
    program = tuple(f"--broker-program={word}" for word in (*PROGRAM, *clocks)) if is_broken else ()
    arguments = ("--restart", *(("--tls",) if topology.tls else ()))
    if topology.kind == "wan":
        return WanMesh(
            directory,
            brokers_per_region=topology.brokers_per_region,
            pairs=topology.pairs,
            congestion_control=topology.congestion_control,
            arguments=(*arguments, *program),
        )
    regions, count = topology.regions, topology.brokers_per_region
    if commit := topology.commit:
        return OlderMesh(directory, commit=commit, regions=regions, brokers_per_region=count)
    if any(fault.do.startswith(("link-", "peer-")) for fault in campaign.faults):
        has_peers = any(fault.do.startswith("peer-") for fault in campaign.faults)
        return LinkedMesh(
            directory,
            regions=regions,
            brokers_per_region=count,
            arguments=arguments,
            program=clocks,
            has_peers=has_peers,
        )
    return MeshProcess(directory, regions=",".join(regions), brokers_per_region=count, arguments=(*arguments, *program))


def _clocks_told(campaign: Campaign, directory: Path) -> tuple[str, ...]:
    """Return the words that tell breakable brokers how wrong their clocks are; none where they are right."""
    if not (clocks := campaign.topology.clocks):
        return ()
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "clocks.json"
    file.write_text(json.dumps(clocks), encoding="utf-8")
    return ("--clocks", str(file))


async def _leave_as_it_was(stage: Stage) -> None:
    """Delete what a campaign made in a mesh of somebody else's: the next run needs its topics empty.

    What cannot be deleted is told on standard error and raises nothing: the run has its own failure, or a verdict.
    """
    if stage.made:
        kinds = {each.kind for each in stage.campaign.readers} | {each.kind for each in stage.campaign.programs}
        for region in stage.regions if kinds & QUEUES else ():
            await _delete_queues(stage, region)
    while stage.made:
        await _delete(stage, "topics", stage.made.pop())


async def _delete_queues(stage: Stage, region: str) -> None:
    """Delete the queues over its topics: those of a deleted topic would be in the next run's way."""
    try:
        rows = json.loads(await stage.cli("queues", "list", "--region", region, "--json"))
    except CampaignFailed as error:
        _tell_left(f"queues in {region}", error)
        return
    for row in rows:
        if row["topic"] in stage.made:
            await _delete(stage, "queues", row["name"], "--region", region)


async def _delete(stage: Stage, kind: str, name: str, *words: str) -> None:
    try:
        await stage.cli(kind, "delete", name, *words)
    except CampaignFailed as error:
        _tell_left(f"{kind} {name}", error)


def _tell_left(what: str, why: CampaignFailed) -> None:
    sys.stderr.write(f"{what} could not be deleted and may still be there: {why}\n")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
