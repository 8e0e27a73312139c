"""A broker whose main loop stands still: its neighbours are told, nobody takes it for dead, and it doubts itself.

Three processes of one region. The third runs below `python -m region.faults`, which really holds its main loop; what
the other two answer meanwhile is what `georelay members` prints.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from georelay.cli.gossip import member_lines
from tests.e2e.lone_broker import LISTENERS, LoneBroker, until
from tests.free_ports import free_ports

BROKERS = 3
POOLS = ("lan", "wan")
SHORT_HOLD_S = 6.5  # announced after 5 s, and half a second for rumours before it is over
LONG_HOLD_S = 16.5  # suspect after 15 s
LOOK_EVERY_S = 0.1


class Seen(NamedTuple):
    """One line of `georelay members`."""

    observer: int
    pool: str
    member: str
    status: str
    note: str


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LoneBroker]]:
    ports = free_ports(len(LISTENERS) * BROKERS)
    folder: Path = tmp_path_factory.mktemp("stall")
    brokers = []
    for number in range(1, BROKERS + 1):
        own = dict(zip(LISTENERS, (ports.pop() for _ in LISTENERS), strict=True))
        brokers.append(LoneBroker("us", number, folder / f"us-{number}", own, is_breakable=number == BROKERS))
    try:
        for broker in brokers:
            broker.write(brokers[0].ports["wan"], brokers=BROKERS, regions=1)
            broker.start()
        for broker in brokers:
            until(broker.is_ready, f"broker {broker.id} is ready")
        for broker in brokers:
            for pool in POOLS:
                everybody = {name_of(each, pool): "alive" for each in brokers}
                until(partial(broker.sees, pool, everybody), f"broker {broker.id} sees all of the {pool} pool")
        yield brokers
    finally:
        for broker in brokers:
            broker.stop(signal.SIGKILL)


def name_of(broker: LoneBroker, pool: str) -> str:
    return str(broker.id) if pool == "lan" else f"{broker.id}.{broker.region}"


def look(observers: list[LoneBroker]) -> list[Seen]:
    return [
        Seen(observer.id, pool, line["member"], line["status"], line["note"])
        for observer in observers
        for pool in POOLS
        for line in member_lines(observer.ask(f"/v1/gossip/members?pool={pool}"))
    ]


def watched_while_held(held: LoneBroker, observers: list[LoneBroker], *, seconds: float) -> list[Seen]:
    """Hold the main loop; return everything that the others saw until they saw nothing special any more."""
    seen: list[Seen] = []
    began = time.monotonic()
    held.break_with(loop_hold_ms=round(seconds * 1000))
    with pytest.raises(TimeoutError):  # it is really held: its admin port is served by the main loop
        held.ask("/healthz", timeout_s=1.0)
    while time.monotonic() < began + seconds:
        seen += look(observers)
        time.sleep(LOOK_EVERY_S)

    def is_over() -> bool:
        now = look(observers)
        seen.extend(now)
        return not pulses_of(held, now)

    until(is_over, f"after {seconds} s the others see that the main loop turns again")
    until(held.is_ready, "the broker is ready again")
    return seen


def pulses_of(held: LoneBroker, seen: list[Seen]) -> set[tuple[int, str, str]]:
    """Return (observer, pool, what it was told of the main loop), of the held broker."""
    return {
        (row.observer, row.pool, note)
        for row in seen
        for note in row.note.split(", ")
        if row.member == name_of(held, row.pool) and note.startswith("main loop")
    }


def metric(broker: LoneBroker, name: str) -> float:
    lines = [line for line in broker.text("/metrics").splitlines() if line.startswith(f"{name} ")]
    return float(lines[0].split()[-1]) if lines else 0.0


def told_pulses(broker: LoneBroker) -> list[str]:
    """Return what its own log says about its main loop, from its first stall on."""
    lines = [json.loads(line) for line in broker.log.splitlines() if '"main_loop.pulse_changed"' in line]
    return [str(line["pulse"]) for line in lines]


@pytest.mark.slow
def test_a_held_main_loop_is_announced_after_5_s_and_suspects_itself_after_15_s_and_nobody_calls_it_failed(
    region: list[LoneBroker],
) -> None:
    *observers, held = region
    everywhere = {(observer.id, pool) for observer in observers for pool in POOLS}

    short = watched_while_held(held, observers, seconds=SHORT_HOLD_S)
    assert pulses_of(held, short) == {(*place, "main loop stalled") for place in everywhere}

    long = watched_while_held(held, observers, seconds=LONG_HOLD_S)
    assert pulses_of(held, long) == {
        (*place, f"main loop {pulse}") for place in everywhere for pulse in ("stalled", "suspect")
    }
    for pool in POOLS:
        assert held.ask(f"/v1/gossip/members?pool={pool}")["awareness"] > 0
        assert metric(held, f'georelay_gossip_events_total{{event="stalled",pool="{pool}"}}') > 0
    assert LONG_HOLD_S - 1 < metric(held, "georelay_main_loop_lag_max_seconds") < LONG_HOLD_S + 1
    assert told_pulses(held) == ["stalled", "steady", "stalled", "suspect", "steady"]

    assert {row.status for row in short + long + look(region)} == {"alive"}
