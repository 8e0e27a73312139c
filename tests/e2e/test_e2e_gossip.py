"""Brokers whose files name nobody but themselves and one seed: they found their regions, link, and find back.

GEORELAY_E2E_GOSSIP_BROKERS (1) brokers in each of three regions; with 3 it is the nine brokers of a whole mesh.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.lone_broker import LISTENERS, REGIONS, LoneBroker, until
from tests.free_ports import free_ports

BROKERS = int(os.environ.get("GEORELAY_E2E_GOSSIP_BROKERS", "1"))


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[list[LoneBroker]]:
    ports = free_ports(len(LISTENERS) * BROKERS * len(REGIONS))
    brokers = []
    for region in REGIONS:
        for number in range(1, BROKERS + 1):
            own = dict(zip(LISTENERS, (ports.pop() for _ in LISTENERS), strict=True))
            brokers.append(LoneBroker(region, number, tmp_path / f"{region}-{number}", own))
    for broker in brokers:
        broker.write(brokers[0].ports["wan"], brokers=BROKERS)
        broker.start()
    yield brokers
    for broker in brokers:
        broker.stop(signal.SIGKILL)


@pytest.mark.slow
def test_brokers_find_each_other_from_one_seed_and_find_back_after_a_kill(mesh: list[LoneBroker]) -> None:
    for broker in mesh:
        until(broker.is_ready, f"{broker.region}-{broker.number} is ready")
    everybody = {f"{b.id}.{b.region}": "alive" for b in mesh}
    for broker in mesh:
        until(partial(broker.sees, "wan", everybody), "all are in the WAN pool")
        own = {str(b.id): "alive" for b in mesh if b.region == broker.region}
        until(partial(broker.sees, "lan", own), "the region is in the LAN pool")
    last = mesh[-1]
    mesh[0].ask("/v1/topics", {"name": "orders", "partitions": 1, "homes": "one", "home": "us"})
    until(lambda: "orders" in [row["name"] for row in last.ask("/v1/topics")["topics"]], "the topic is known afar")

    mesh[0].stop(signal.SIGKILL)  # the seed
    last.stop(signal.SIGKILL)
    last.start()
    until(last.is_ready, "a broker finds back while the only seed is gone")
    others = {name: status for name, status in everybody.items() if name != next(iter(everybody))}
    until(lambda: others.items() <= last.statuses("wan").items(), "and finds the others, by what it remembers")
    mesh[0].start()
    until(mesh[0].is_ready, "the seed itself finds back")
    for broker in mesh:
        until(partial(broker.sees, "wan", everybody), "all are there again")

    def told_ready() -> bool:
        answers = mesh[0].ask("/v1/gossip/queries?pool=wan", {"name": "mesh-status", "timeout_ms": 1000})["answers"]
        return {name: json.loads(text)["ready"] for name, text in answers.items()} == dict.fromkeys(everybody, True)

    until(told_ready, "all say by query that they are ready")


def test_a_broker_that_still_waits_for_other_regions_says_so_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    lone = LoneBroker("eu", 1, tmp_path / "eu-1", dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True)))
    lone.write(free_ports(1)[0], brokers=BROKERS)
    lone.start()
    until(lambda: "gossip.regions_awaited" in lone.log, "it says what it waits for")
    assert lone.process is not None
    lone.process.send_signal(signal.SIGTERM)
    assert lone.process.wait(timeout=20) == 0
    assert "2 of 3 regions (known: eu)" in lone.log
    assert "Traceback" not in lone.log
