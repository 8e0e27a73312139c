"""The mesh of a campaign: started here, or one that runs; its topics, its processes, and what is broken when."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from georelay.pki.directory import PkiDirectory
from loadtest.bench.client_settings import PLAIN, Settings, tls_settings
from loadtest.bench.machine import IdleWatch, cpu_seconds
from loadtest.campaign.filler import fill
from loadtest.campaign.joined_broker import JoinedBroker, broker_id
from loadtest.campaign.mesh import COMMAND_S, HTTP_TIMEOUT, POLL_SECONDS, CampaignFailed, georelay, get_json
from loadtest.campaign.phases_core import HEALED
from loadtest.chaos.control_file import ControlFile
from loadtest.load.breakable_broker import control_path
from loadtest.load.campaign import Campaign, Fault, Topic
from loadtest.load.campaign_file import BREAKABLE
from loadtest.load.faults import STRIKES
from loadtest.load.links import LinkedMesh
from loadtest.load.replicas import compare, wait_until_settled
from loadtest.mesh_process import MeshProcess
from loadtest.wan.wan_mesh import WanMesh

DRAIN_S: Final = 180
SAMPLE_S: Final = 1.0
LEADER_OF: Final = "leader of "
LEADER_S: Final = 60.0
BROKERS_OF_REGION: Final = 1_000  # broker 2001 is the first one of the second region
GONE_S: Final = 10.0
MOVE_S: Final = 1_800
FILL_BYTES: Final = 64 * 1024  # of a value, nothing compresses it
SEGMENT_COUNTER: Final = 'georelay_bulk_bytes_total{direction="received"}'


class Stage:
    """A running mesh, as campaigns see it.

    Args:
        mesh: when it was started here, None for one that runs elsewhere.
        settings: of librdkafka, how clients sign in.
        user: "name:password", "" where nobody signs in.
    """

    def __init__(
        self, folder: Path, endpoints_file: Path, *, mesh: MeshProcess | None, settings: Settings, user: str
    ) -> None:
        self.endpoints_file = endpoints_file
        self.settings = settings
        self.folder = folder
        self._mesh = mesh
        self._user = user
        self._controls: dict[str, ControlFile] = {}
        self._joined: dict[str, JoinedBroker] = {}
        try:
            self.endpoints: Mapping[str, Any] = json.loads(endpoints_file.read_text(encoding="utf-8"))
            self.regions = tuple(self.endpoints["regions"])
        except (OSError, ValueError, KeyError) as error:
            raise CampaignFailed(
                f"{endpoints_file}: no mesh there; `georelay up --endpoints FILE` writes it"
            ) from error

    async def create(self, campaign: Campaign) -> None:
        """Create the topics of a campaign, and fill those that are to be full. Raises CampaignFailed."""
        self.campaign = campaign
        for topic in campaign.topics:
            words = ["topics", "create", topic.name, "--partitions", str(topic.partitions)]
            words += ["--homes", topic.homes, *(("--home", topic.home) if topic.home else ())]
            words += [word for name, value in topic.settings.items() for word in ("--set", f"{name}={value}")]
            await self.cli(*words)
            if topic.brokers:
                await self.place(topic.name, topic.brokers)
            if topic.filled_mb:
                await self._fill(topic)

    async def _fill(self, topic: Topic) -> None:
        brokers = self.endpoints["regions"][topic.home or self.regions[0]]["kafka"]
        count = int(topic.filled_mb * 1e6 / FILL_BYTES)
        settings = {"batch.size": 900_000, "queue.buffering.max.kbytes": 65_536, **self.settings}
        await fill(brokers, topic.name, topic.partitions, count, lambda _: os.urandom(FILL_BYTES), **settings)

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
        user = {"GEORELAY_USER": self._user} if self._user else {}
        return await georelay(*words, "--endpoints", str(self.endpoints_file), within_s=seconds, environment=user)

    async def break_it(self, fault: Fault) -> None:
        """Do what a fault says, for as long as it says, and note when it was done and undone. Raises CampaignFailed."""
        what = fault.what
        if what.startswith(LEADER_OF):
            what = await self.leader_of(what.removeprefix(LEADER_OF))
        began = time.monotonic()
        async with STRIKES[fault.do](self, fault, what) as more:
            self.note(what=fault.do, of=what, for_s=fault.for_s, took_s=time.monotonic() - began, **(more or {}))
            await asyncio.sleep(fault.for_s)
            began = time.monotonic()
        self.note(what=HEALED, of=what, took_s=time.monotonic() - began)

    async def leader_of(self, topic: str) -> str:
        """Return the broker that leads the first partition of a topic at its home, as soon as anybody there knows.

        Brokers that are down are asked in vain and the next one is asked; a leader that is held down is none any more.

        Raises:
            CampaignFailed: nobody knows within LEADER_S.
        """
        everywhere = [admin for region in self.regions for admin in self.admins(region).values()]
        path, deadline = f"/v1/topics/{topic}", time.monotonic() + LEADER_S
        while time.monotonic() < deadline:
            home = ""
            for address in everywhere:  # any broker knows the home; each region tells its own leader
                if told := await self.ask(address, path):
                    home = self.regions[max(1, told["home"]) - 1]
                    break
            for address in self.admins(home).values() if home else ():
                told = await self.ask(address, path)
                leader = int(told["partition_states"][0]["leader"]) if told else 0
                if leader > 0:
                    name = f"{self.regions[leader // BROKERS_OF_REGION - 1]}-{leader % BROKERS_OF_REGION}"
                    if not self.hold_file(name).exists():
                        return name
            await asyncio.sleep(POLL_SECONDS)
        raise CampaignFailed(f"{topic} has no leader for {LEADER_S:g} s")

    def admins(self, region: str) -> dict[str, str]:
        """Return the HTTP addresses of a region's brokers by their names, of those that joined too."""
        assert self._mesh is not None, "the loader lets a mesh be broken only that is started here"
        addresses = self._mesh.endpoints["regions"][region]["admin"]
        joined = {name: each.listen["admin"] for name, each in self._joined.items() if name.startswith(f"{region}-")}
        return {f"{region}-{row}": address for row, address in enumerate(addresses, start=1)} | joined

    async def ask(self, address: str, path: str) -> dict[str, Any] | None:
        """Return what a broker answers, None when it is not there or does not know."""
        assert self._mesh is not None, "the loader lets a mesh be broken only that is started here"
        url = f"{self._mesh.scheme}://{address}{path}"
        return await get_json(url, headers=self._mesh.headers, tls=self._mesh.ssl_context)

    async def segment_bytes(self) -> float:
        """Return how many bytes of whole segments brokers have received from each other since each was started."""
        assert self._mesh is not None, "the loader lets a mesh be broken only that is started here"
        total, tls = 0.0, self._mesh.ssl_context or True
        async with aiohttp.ClientSession(headers=self._mesh.headers, timeout=HTTP_TIMEOUT) as http:
            for address in (admin for region in self.regions for admin in self.admins(region).values()):
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # it is down, and has received nothing
                    async with http.get(f"{self._mesh.scheme}://{address}/metrics", ssl=tls) as answer:
                        lines = (await answer.text()).splitlines()
                    total += sum(float(line.split()[-1]) for line in lines if line.startswith(SEGMENT_COUNTER))
        return total

    def broker_id(self, name: str) -> int:
        """Return the number that a broker such as us-2 has in the mesh."""
        region, _, number = name.rpartition("-")
        return broker_id(self.regions.index(region) + 1, int(number))

    def data_of(self, name: str) -> Path:
        """Return where a broker of a mesh that was started here keeps its data."""
        return self._directory / "brokers" / name

    async def delete_data(self, name: str) -> None:
        """Delete what a broker has that was killed. Raises CampaignFailed: it does not end."""
        deadline = time.monotonic() + GONE_S
        while name in self.pids():
            if time.monotonic() > deadline:
                raise CampaignFailed(f"{name} was killed and is still there")
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.to_thread(shutil.rmtree, self.data_of(name))

    def hold_file(self, name: str) -> Path:
        """Return the file that keeps a killed process down while it is there."""
        return self._directory / "run" / f"{name}.hold"

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

    async def note_bed(self, since_ns: int) -> None:
        """Write down how the test bed was since then (monotonic); nothing without one."""
        if isinstance(self._mesh, WanMesh):
            found = await asyncio.to_thread(self._mesh.bed_since, since_ns)
            (self.folder / "bed.json").write_text(json.dumps(found) + "\n", encoding="utf-8")

    async def tell(self, broker: str, **settings: Any) -> None:
        """Tell a breakable broker what is broken. Raises CampaignFailed: it does not obey."""
        if broker not in self._controls:
            self._controls[broker] = ControlFile(control_path(self._directory / "config" / f"{broker}.toml"))
        control = self._controls[broker]
        control.set(**settings)
        if not await control.obeyed(lambda: True):
            raise CampaignFailed(f"{broker} does not obey its control file {control.path}")

    @contextlib.asynccontextmanager
    async def one_broker_more(self, region: str) -> AsyncIterator[None]:
        """Let a broker join a region; afterwards drain it, remove it and stop it. Raises CampaignFailed."""
        number = len(list((self._directory / "config").glob(f"{region}-*.toml"))) + 1
        broker = JoinedBroker(self._directory, self._directory / "config" / f"{region}-1.toml", number)
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

    def renew_certificates(self, region: str) -> None:
        """Give every broker of a region a new certificate and key. Raises ConfigError."""
        pki = PkiDirectory.open(self._directory / "pki")
        number = self.regions.index(region) + 1
        for listed in pki.listed():
            kind, _, broker = listed.name.partition("-")
            if kind == "broker" and int(broker) // BROKERS_OF_REGION == number:
                own = f"{listed.name}."  # the name that only a broker's certificate has comes by itself
                pki.issue_broker(int(broker), hosts=tuple(x for x in listed.hosts if not x.startswith(own)), renew=True)

    def note(self, **event: Any) -> None:
        """Write down that something happened, now."""
        with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"second": time.time(), "ns": time.monotonic_ns(), **event}) + "\n")

    @property
    def _directory(self) -> Path:
        assert self._mesh is not None, "the loader lets a mesh be broken only that is started here"
        return self._mesh.directory / "mesh"

    def pids(self) -> dict[str, int]:
        """Return the processes that run of a mesh that was started here, by name."""
        if self._mesh is None:
            return {}
        run = self._directory / "run"
        pids = {}
        for path in sorted(run.glob("*.pid")):
            with contextlib.suppress(OSError, ValueError):  # it is down, or just being started again
                pid = int(path.read_text())
                os.kill(pid, 0)
                pids[path.stem] = pid
        return pids

    async def sample_cpu(self) -> None:
        """Write each second how much CPU every process of the mesh took in it, in shares of a core."""
        before: dict[tuple[str, int], float] = {}
        router = {"router": await asyncio.to_thread(self._mesh.router)} if isinstance(self._mesh, WanMesh) else {}
        idle = IdleWatch()
        idle.start()
        with (self.folder / "cpu.jsonl").open("a", encoding="utf-8") as file:
            while True:
                now: dict[tuple[str, int], float] = {}
                for name, pid in (self.pids() | router).items():
                    with contextlib.suppress(OSError):
                        now[name, pid] = cpu_seconds(pid)
                shares = {
                    name: round(used - before[name, pid], 3)
                    for (name, pid), used in now.items()
                    if (name, pid) in before
                }
                file.write(json.dumps({"second": time.time(), "cpu": shares, "idle": round(idle.share(), 3)}) + "\n")
                file.flush()
                idle.start()
                before = now
                await asyncio.sleep(SAMPLE_S)


@contextlib.asynccontextmanager
async def opened(campaign: Campaign, folder: Path) -> AsyncIterator[Stage]:
    """Run the mesh of a campaign. Raises CampaignFailed."""
    topology = campaign.topology
    if topology.kind == "endpoints":
        yield Stage(
            folder,
            Path(topology.endpoints),
            mesh=None,
            settings=_settings_of(Path(topology.endpoints)),
            user=os.environ.get("GEORELAY_USER", ""),
        )
        return
    directory = folder / "mesh"
    arguments = ("--restart", *_broker_program(campaign, directory))
    mesh: MeshProcess
    settings, user = PLAIN, ""
    if topology.kind == "wan":
        mesh = wan = WanMesh(
            directory,
            brokers_per_region=topology.brokers_per_region,
            pairs=topology.pairs,
            congestion_control=topology.congestion_control,
            arguments=arguments,
        )
        user = wan.credentials
    else:
        arguments += ("--tls",) if topology.tls else ()
        mesh = _mesh_here(campaign, directory, arguments)
    try:
        async with mesh:
            settings = mesh.client_settings if isinstance(mesh, WanMesh) else tls_settings(mesh)
            yield Stage(folder, directory / "endpoints.json", mesh=mesh, settings=settings, user=user)
    except RuntimeError as error:
        raise CampaignFailed(f"the mesh could not be started: {_last_line(str(error))}") from error


def _broker_program(campaign: Campaign, directory: Path) -> list[str]:
    """Return the words of `georelay up` for brokers whose disk or clock is broken; none for brokers as they ship."""
    clocks = campaign.topology.clocks
    if not clocks and not any(fault.do in BREAKABLE for fault in campaign.faults):
        return []
    program = [sys.executable, "-P", "-m", "loadtest.load.breakable_broker"]
    if clocks:
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "clocks.json"
        file.write_text(json.dumps(clocks), encoding="utf-8")
        program += ["--clocks", str(file)]
    return [f"--broker-program={word}" for word in program]


def _mesh_here(campaign: Campaign, directory: Path, arguments: tuple[str, ...]) -> MeshProcess:
    """Return a mesh on this machine; its links go through forwarders only when the campaign breaks links."""
    regions, count = campaign.topology.regions, campaign.topology.brokers_per_region
    if any(fault.do.startswith("link-") for fault in campaign.faults):
        return LinkedMesh(directory, regions=regions, brokers_per_region=count, arguments=arguments)
    return MeshProcess(directory, regions=",".join(regions), brokers_per_region=count, arguments=arguments)


def _settings_of(endpoints: Path) -> Settings:
    """Return how librdkafka signs in to a mesh that runs: with GEORELAY_USER, over TLS where it has that."""
    name, _, password = os.environ.get("GEORELAY_USER", "").partition(":")
    try:
        ca = json.loads(endpoints.read_text(encoding="utf-8")).get("ca", "")
    except (OSError, ValueError):
        return PLAIN  # said where it is read
    secured = {"ssl.ca.location": str(ca)} if ca else {}
    signed = {"sasl.mechanism": "PLAIN", "sasl.username": name, "sasl.password": password} if name else {}
    protocol = f"{'sasl_' if name else ''}{'ssl' if ca else 'plaintext'}"
    return {"security.protocol": protocol, **secured, **signed}


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
