"""The faults of campaigns: each is struck, holds for as long as the campaign says, and heals.

| word | breaks | what | needs |
|---|---|---|---|
| kill | kill -9; it comes back after `for` | a process, or `leader of TOPIC` | up or wan |
| stop | SIGSTOP, then SIGCONT | a process, or `leader of TOPIC` | up or wan |
| region-loss | kill -9 of all brokers of a region | a region | up or wan |
| link-cut | both directions between two regions, or of one region to all others | us-eu, or eu | up or wan |
| link-one-way | what the first region sends to the second | us-eu | wan |
| link-loss | `percent` of the packets are lost | us-eu, or eu | wan |
| link-cap | each direction carries `mbit` Mbit/s | us-eu, or eu | wan |
| link-slow | `ms` of round trip between two regions, or of one to all others | us-eu, or eu | wan |
| link-flap | cuts and heals every second | us-eu, or eu | up or wan |
| disk-slow | each sync takes `ms` | a broker, or `leader of TOPIC` | up or wan |
| disk-full | the disk takes no more | a broker, or `leader of TOPIC` | up or wan |
| disk-lost | kill -9, and its data is deleted; it comes back, empty, after `for` | the same, of 3 or 5 | up or wan |
| clock-step | the wall clock steps by `ms` | a broker, or `leader of TOPIC` | up or wan |
| grow | one broker more joins; after `for` it is drained and removed | a region | up |
| reassign | its replicas move to these brokers, and stay there | TOPIC to us-1,us-2 | up or wan |
| certificates | every broker gets a new one; connections that are open stay | a region | wan, or up with tls |

Rule: what moves replicas (grow, disk-lost, reassign) is done, or healed, when they have settled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from loadtest.campaign.mesh import CampaignFailed
from loadtest.load.campaign import Fault
from loadtest.load.replicas import wait_until_heard

if TYPE_CHECKING:
    from loadtest.load.stage import Stage

FLAP_S: Final = 1.0
QUEUE: Final = "100ms"  # longest wait in front of a cap
More = dict[str, Any] | None  # what is worth knowing of what was done
Strike = Callable[["Stage", Fault, str], AbstractAsyncContextManager[More]]


@asynccontextmanager
async def _kill(stage: Stage, _: Fault, what: str) -> AsyncIterator[None]:
    async with _killed(stage, [what]):
        yield


@asynccontextmanager
async def _region_loss(stage: Stage, _: Fault, what: str) -> AsyncIterator[None]:
    async with _killed(stage, [name for name in stage.pids() if name.rpartition("-")[0] == what]):
        yield


@asynccontextmanager
async def _killed(stage: Stage, names: list[str]) -> AsyncIterator[None]:
    holds = [stage.hold_file(name) for name in names]
    pids = stage.pids()
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


@asynccontextmanager
async def _stop(stage: Stage, _: Fault, what: str) -> AsyncIterator[None]:
    pid = stage.pids().get(what)
    if pid is None:
        raise CampaignFailed(f"{what} is down and cannot be stopped")
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
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

    async with _changed_link(stage, what, "cut"):
        flapping = asyncio.create_task(flap())
        try:
            yield
        finally:
            flapping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await flapping  # an error of a change is one of the campaign


@asynccontextmanager
async def _changed_link(stage: Stage, what: str, change: str, *words: str) -> AsyncIterator[None]:
    ends = what.split("-")
    try:
        await stage.wan(change, *ends, *words)
        yield
    finally:
        await stage.wan("heal", *ends)


def _told(settings: Callable[[Fault], dict[str, int]]) -> Strike:
    """Return the strike that tells a breakable broker what is broken."""

    @asynccontextmanager
    async def strike(stage: Stage, fault: Fault, what: str) -> AsyncIterator[None]:
        broken = settings(fault)
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
async def _disk_lost(stage: Stage, _: Fault, what: str) -> AsyncIterator[None]:
    async with _killed(stage, [what]):
        await stage.delete_data(what)
        await wait_until_heard(stage, what, heard=False)
        yield
    await wait_until_heard(stage, what, heard=True)
    await stage.settle()


@asynccontextmanager
async def _reassign(stage: Stage, _fault: Fault, what: str) -> AsyncIterator[More]:
    topic, _, brokers = what.partition(" to ")
    before = await stage.segment_bytes()
    await stage.place(topic, brokers.split(","))
    moved = await stage.segment_bytes() - before
    await stage.settle()
    yield {"segments_mb": round(moved / 1e6, 1)}


@asynccontextmanager
async def _certificates(stage: Stage, _: Fault, what: str) -> AsyncIterator[None]:
    await asyncio.to_thread(stage.renew_certificates, what)
    yield


STRIKES: Final[dict[str, Strike]] = {
    "kill": _kill,
    "stop": _stop,
    "region-loss": _region_loss,
    "link-cut": _link(lambda _: ("cut",)),
    "link-one-way": _link(lambda _: ("cut", "--one-way")),
    "link-slow": _link(lambda fault: ("slow", "--rtt", f"{fault.ms:g}ms")),
    "link-loss": _link(lambda fault: ("slow", "--loss", f"{fault.percent:g}%")),
    "link-cap": _link(lambda fault: ("slow", "--rate", f"{fault.mbit:g}mbit", "--queue", QUEUE)),
    "link-flap": _link_flap,
    "disk-slow": _told(lambda fault: {"sync_delay_ms": int(fault.ms)}),
    "disk-full": _told(lambda _: {"free_bytes": 0}),
    "disk-lost": _disk_lost,
    "clock-step": _told(lambda fault: {"wall_step_ms": int(fault.ms)}),
    "grow": _grow,
    "reassign": _reassign,
    "certificates": _certificates,
}
