"""The faults of campaigns: each strikes, holds for as long as the campaign says, and heals.

| word | breaks | what | needs |
|---|---|---|---|
| kill | kill -9; it comes back after `for` | a process, or `leader of TOPIC` | up or wan |
| stop | SIGSTOP, then SIGCONT | a process, or `leader of TOPIC` | up or wan |
| region-loss | kill -9 of all brokers of a region | a region | up or wan |
| link-cut | both directions between two regions, or of one region to all others | us-eu, or eu | wan |
| link-slow | `ms` of round trip between two regions, or of one to all others | us-eu, or eu | wan |
| link-flap | cuts and heals every second | us-eu, or eu | wan |
| disk-slow | each sync takes `ms` | a broker, or `leader of TOPIC` | up or wan |
| disk-full | the disk takes no more | a broker, or `leader of TOPIC` | up or wan |
| clock-step | the wall clock steps by `ms` | a broker, or `leader of TOPIC` | up or wan |
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from loadtest.load.campaign import Fault

if TYPE_CHECKING:
    from loadtest.load.stage import Stage

FLAP_S: Final = 1.0
Strike = Callable[["Stage", Fault, str], Awaitable[None]]


async def _kill(stage: Stage, fault: Fault, what: str) -> None:
    await _kill_these(stage, fault, [what])


async def _region_loss(stage: Stage, fault: Fault, what: str) -> None:
    await _kill_these(stage, fault, [name for name in stage.pids() if name.rpartition("-")[0] == what])


async def _kill_these(stage: Stage, fault: Fault, names: list[str]) -> None:
    holds = [stage.hold_file(name) for name in names]
    pids = stage.pids()
    for hold in holds:
        hold.touch()
    try:
        for name in names:
            os.kill(pids[name], signal.SIGKILL)
        await asyncio.sleep(fault.for_s)
    finally:
        for hold in holds:
            hold.unlink(missing_ok=True)


async def _stop(stage: Stage, fault: Fault, what: str) -> None:
    pid = stage.pids()[what]
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(fault.for_s)
    finally:
        os.kill(pid, signal.SIGCONT)


async def _link_cut(stage: Stage, fault: Fault, what: str) -> None:
    await stage.wan("cut", *what.split("-"))
    try:
        await asyncio.sleep(fault.for_s)
    finally:
        await stage.wan("heal", *what.split("-"))


async def _link_slow(stage: Stage, fault: Fault, what: str) -> None:
    await stage.wan("slow", *what.split("-"), "--rtt", f"{fault.ms:g}ms")
    try:
        await asyncio.sleep(fault.for_s)
    finally:
        await stage.wan("heal", *what.split("-"))


async def _link_flap(stage: Stage, fault: Fault, what: str) -> None:
    ends = asyncio.get_running_loop().time() + fault.for_s
    try:
        while asyncio.get_running_loop().time() < ends:
            await stage.wan("cut", *what.split("-"))
            await asyncio.sleep(FLAP_S)
            await stage.wan("heal", *what.split("-"))
            await asyncio.sleep(FLAP_S)
    finally:
        await stage.wan("heal", *what.split("-"))


async def _disk_slow(stage: Stage, fault: Fault, what: str) -> None:
    await _break_for(stage, fault, what, sync_delay_ms=int(fault.ms))


async def _disk_full(stage: Stage, fault: Fault, what: str) -> None:
    await _break_for(stage, fault, what, free_bytes=0)


async def _clock_step(stage: Stage, fault: Fault, what: str) -> None:
    await _break_for(stage, fault, what, wall_step_ms=int(fault.ms))


async def _break_for(stage: Stage, fault: Fault, what: str, **settings: int) -> None:
    await stage.tell(what, **settings)
    try:
        await asyncio.sleep(fault.for_s)
    finally:
        await stage.tell(what, **dict.fromkeys(settings))


STRIKES: Final[dict[str, Strike]] = {
    "kill": _kill,
    "stop": _stop,
    "region-loss": _region_loss,
    "link-cut": _link_cut,
    "link-slow": _link_slow,
    "link-flap": _link_flap,
    "disk-slow": _disk_slow,
    "disk-full": _disk_full,
    "clock-step": _clock_step,
}
