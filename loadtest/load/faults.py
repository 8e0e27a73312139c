"""The faults of campaigns: each is struck, holds for as long as the campaign says, and heals.

Their words, what they break and what they need stand in docs/operate/load.md.
Rule: what moves replicas (grow, disk-lost, reassign) is done, or healed, when they have settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from georelay.pki.directory import PkiDirectory
from loadtest.campaign.mesh import CampaignFailed, meanwhile, run_command
from loadtest.load import attacks, flips, joining
from loadtest.load.campaign import Fault
from loadtest.load.links import LinkedMesh, Wire
from loadtest.load.older_mesh import OlderMesh
from loadtest.load.replicas import wait_until_heard

if TYPE_CHECKING:
    from loadtest.load.stage import Stage

SEGMENT_COUNTER: Final = 'georelay_bulk_bytes_total{direction="received"}'
FLAP_S: Final = 1.0
FLAP_SHARE: Final = 0.4  # of the connections, cut at a time
QUEUE: Final = "100ms"  # longest wait in front of a cap
More = dict[str, Any] | None  # what is worth knowing of what was done
Strike = Callable[["Stage", Fault, str], AbstractAsyncContextManager[More]]


@asynccontextmanager
async def _killed(stage: Stage, names: list[str]) -> AsyncIterator[None]:
    if (mesh := stage.elsewhere) is not None:
        try:
            await mesh.command(mesh.break_command, names)
            yield
        finally:
            await mesh.command(mesh.mend_command, names)
        return
    holds = [stage.hold_file(name) for name in names]
    pids = stage.pids()
    stage.killed.update(pids[name] for name in names if name in pids)
    for hold in holds:
        hold.touch()
    try:
        for name in names:
            if name in pids:  # else it is down already, and stays so
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[name], signal.SIGKILL)
        yield
    finally:
        for hold in holds:
            hold.unlink(missing_ok=True)


def _brokers_of(stage: Stage, region: str) -> list[str]:
    """Return the brokers of a region that run, or all of them where nobody here knows that."""
    return [name for name in stage.pids() if name.rpartition("-")[0] == region] or list(stage.admins(region))


@asynccontextmanager
async def _stop(stage: Stage, _: Fault, what: str) -> AsyncIterator[None]:
    pid = stage.pids().get(what)
    if pid is None:
        raise CampaignFailed(f"{what} is down and cannot be stopped")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # another fault has killed it
            os.kill(pid, signal.SIGCONT)


def _link(change: Callable[[Fault], Sequence[str]]) -> Strike:
    """Return the strike that is this change of `georelay wan`."""

    @asynccontextmanager
    async def strike(stage: Stage, fault: Fault, what: str) -> AsyncIterator[None]:
        async with _changed_link(stage, what, *change(fault)):
            yield

    return strike


@asynccontextmanager
async def _link_flap(stage: Stage, _: Fault, what: str) -> AsyncIterator[None]:
    async def flap() -> None:
        while True:
            await asyncio.sleep(FLAP_S)
            await stage.wan("heal", *what.split("-"))
            await asyncio.sleep(FLAP_S)
            await stage.wan("cut", *what.split("-"))

    async with _changed_link(stage, what, "cut"), meanwhile(flap()):
        yield


@asynccontextmanager
async def _changed_link(stage: Stage, what: str, change: str, *words: str) -> AsyncIterator[None]:
    ends = what.split("-")
    try:
        await stage.wan(change, *ends, *words)
        yield
    finally:
        await stage.wan("heal", *ends)


def _peers(chosen: Callable[[Wire, str], bool], *, freezes: bool = False) -> Strike:
    """Return the strike on the chosen connections between a broker and its peers."""

    @asynccontextmanager
    async def strike(stage: Stage, _: Fault, what: str) -> AsyncIterator[None]:
        links = stage.mesh(LinkedMesh)
        wires = links.peers_where(lambda wire: chosen(wire, what))
        if not freezes:
            await links.cut_wires(wires)
        for wire in wires if freezes else ():
            links.peers[wire].freeze()
        try:
            yield
        finally:
            for wire in wires if freezes else ():
                links.peers[wire].thaw()
            await links.heal_wires(wires)

    return strike


@asynccontextmanager
async def _peer_flap(stage: Stage, _: Fault, what: str) -> AsyncIterator[None]:
    links, rng = stage.mesh(LinkedMesh), stage.rng
    wires = links.peers_where(lambda wire: wire[0].rpartition("-")[0] == what)

    async def flap() -> None:
        while True:
            await links.cut_wires([wire for wire in wires if rng.random() < FLAP_SHARE])
            await asyncio.sleep(rng.uniform(0.05, 0.3))
            await links.heal_wires(wires)
            await asyncio.sleep(rng.uniform(0.05, 0.2))

    try:
        async with meanwhile(flap()):
            yield
    finally:
        await links.heal_wires(wires)


def _power_cut(**lies: bool) -> Strike:
    """Return the strike that takes the power from all brokers of a region at once."""
    broken = {"volatile_writes": True, **lies}

    @asynccontextmanager
    async def strike(stage: Stage, _: Fault, what: str) -> AsyncIterator[More]:
        names = _brokers_of(stage, what)
        await asyncio.gather(*(stage.tell(name, **broken) for name in names))
        await asyncio.sleep(stage.rng.uniform(0.2, 1.0))
        async with _killed(stage, names):
            for name in names:
                await stage.gone(name)
                await stage.tell(name, **dict.fromkeys(broken))
            torn = [] if lies else sorted(stage.rng.sample(names, stage.rng.randint(1, len(names))))
            tears = [_tear(stage.data_of(name), stage.rng.randrange(2**32)) for name in torn]
            yield {"torn": await asyncio.gather(*tears)}  # each is a process: one after the other the dark is longer

    return strike


async def _tear(data: Path, seed: int) -> str:
    words = ("-P", "-m", "region.faults", "tear", "--break-things", "--data-dir", str(data), "--seed", str(seed))
    code, said, why = await run_command((sys.executable, *words))
    if code:
        raise CampaignFailed(f"the log in {data} could not be torn: {why.strip()}")
    done = json.loads(said)
    return f"{data.name} {Path(done['segment']).name}@{done['position']} {done['kind']} ({done['size']} bytes)"


def _told(settings: Callable[[Fault], dict[str, int]]) -> Strike:
    """Return the strike that tells a breakable broker what is broken."""

    @asynccontextmanager
    async def strike(stage: Stage, fault: Fault, what: str) -> AsyncIterator[None]:
        broken = settings(fault)
        if "free_bytes" in broken:
            stage.may_end.add(what)
        await stage.tell(what, **broken)
        try:
            yield
        finally:
            await stage.tell(what, **dict.fromkeys(broken))

    return strike


@asynccontextmanager
async def _grow(stage: Stage, _: Fault, what: str) -> AsyncIterator[None]:
    async with stage.one_broker_more(what):
        await stage.settle()
        yield
    await stage.settle()


@asynccontextmanager
async def _region_add(stage: Stage, _: Fault, what: str) -> AsyncIterator[More]:
    yield await joining.join(stage, what)
    await joining.compare(stage, what)


@asynccontextmanager
async def _disk_lost(stage: Stage, _: Fault, what: str) -> AsyncIterator[None]:
    async with _killed(stage, [what]):
        await asyncio.to_thread(shutil.rmtree, await stage.gone(what))
        await wait_until_heard(stage, what, heard=False)
        yield
    await wait_until_heard(stage, what, heard=True)
    await stage.settle()


@asynccontextmanager
async def _reassign(stage: Stage, _fault: Fault, what: str) -> AsyncIterator[More]:
    topic, _, brokers = what.partition(" to ")
    before = await _segment_bytes(stage)
    await stage.place(topic, brokers.split(","))
    moved = await _segment_bytes(stage) - before
    await stage.settle()
    yield {"segments_mb": round(moved / 1e6, 1)}


async def _segment_bytes(stage: Stage) -> float:
    """Return how many bytes of whole segments brokers have received from each other since each was started."""
    return sum(float(line.split()[-1]) for line in await stage.metric_lines(SEGMENT_COUNTER))


def _once(change: Callable[[Stage, str], Awaitable[None]]) -> Strike:
    """Return the strike that is done at once and not undone."""

    @asynccontextmanager
    async def strike(stage: Stage, _: Fault, what: str) -> AsyncIterator[None]:
        await change(stage, what)
        yield

    return strike


@asynccontextmanager
async def _upgrade(stage: Stage, _: Fault, what: str) -> AsyncIterator[More]:
    async with stage.one_by_one:
        yield {"levels": await stage.mesh(OlderMesh).upgrade(what, stage.killed)}


async def _renew_certificates(stage: Stage, region: str) -> None:
    """Give every broker of a region a new certificate and key. Raises ConfigError."""
    pki = await asyncio.to_thread(PkiDirectory.open, stage.directory / "pki")
    for listed in pki.listed():
        kind, _, broker = listed.name.partition("-")
        if kind == "broker" and stage.name_of(int(broker)).rpartition("-")[0] == region:
            own = f"{listed.name}."  # the name that only a broker's certificate has comes by itself
            hosts = tuple(host for host in listed.hosts if not host.startswith(own))
            await asyncio.to_thread(pki.issue_broker, int(broker), hosts=hosts, renew=True)


STRIKES: Final[dict[str, Strike]] = {
    "kill": lambda stage, _, what: _killed(stage, [what]),
    "kill-client": _once(lambda stage, what: stage.programs[what].strike()),
    "client-joins": _once(lambda stage, what: stage.programs[what].join()),
    "client-leaves": _once(lambda stage, what: stage.programs[what].leave()),
    "stop": _stop,
    "region-loss": lambda stage, _, what: _killed(stage, _brokers_of(stage, what)),
    "link-cut": _link(lambda _: ("cut",)),
    "link-one-way": _link(lambda _: ("cut", "--one-way")),
    "link-slow": _link(lambda fault: ("slow", "--rtt", f"{fault.ms:g}ms")),
    "link-loss": _link(lambda fault: ("slow", "--loss", f"{fault.percent:g}%")),
    "link-cap": _link(lambda fault: ("slow", "--rate", f"{fault.mbit:g}mbit", "--queue", QUEUE)),
    "link-flap": _link_flap,
    "peer-cut": _peers(lambda wire, name: name in wire),
    "peer-blackhole": _peers(lambda wire, name: name in wire, freezes=True),
    "peer-mute": _peers(lambda wire, name: wire[0] == name),
    "peer-deaf": _peers(lambda wire, name: wire[1] == name),
    "peer-flap": _peer_flap,
    "power-cut": _power_cut(),
    "disk-lies": _power_cut(lying_syncs=True),
    "disk-slow": _told(lambda fault: {"sync_delay_ms": int(fault.ms)}),
    "disk-full": _told(lambda _: {"free_bytes": 0}),
    "disk-lost": _disk_lost,
    "clock-step": _told(lambda fault: {"wall_step_ms": int(fault.ms)}),
    "flood": attacks.flood,
    "slow-clients": attacks.slow_clients,
    "bit-flip": flips.bit_flip,
    "region-add": _region_add,
    "grow": _grow,
    "reassign": _reassign,
    "certificates": _once(_renew_certificates),
    "upgrade": _upgrade,
}
