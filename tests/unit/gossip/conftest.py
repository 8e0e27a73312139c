"""A pool of pure Serf cores on one clock: packets and exchanges arrive at once, unless a member is cut off."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mesh.gossip.effects import PushPull, SendPacket, StreamPing
from mesh.gossip.faults import MergeRefused
from mesh.gossip.keyring import Keyring
from mesh.gossip.member import Address
from mesh.gossip.serf_core import Clocks, Serf, SerfSettings
from mesh.gossip.serf_effects import EventHeard, MemberChanged, QueryAnswered, QueryHeard, QueryOver
from mesh.gossip.timing import LAN
from mesh.gossip.view import MemberChange, MemberStatus


def match(expression: str, text: str) -> bool:
    return re.search(expression, text) is not None


class SerfWorld:
    """Members by name; `now` moves only when told."""

    def __init__(self, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.serfs: dict[str, Serf] = {}
        self.cut: set[str] = set()
        self.log: dict[str, list[Any]] = {}
        self.refused: list[str] = []
        self._names: dict[Address, str] = {}

    def add(
        self,
        name: str,
        *,
        tags: Mapping[str, str] | None = None,
        mesh: str = "",
        keyring: Keyring | None = None,
        clocks: Clocks | None = None,
        incarnation: int = 1,
    ) -> Serf:
        address = (f"10.0.0.{len(self._names) + 1}", 7946)
        settings = SerfSettings(name=name, address=address, tags=tags or {}, timing=LAN, mesh=mesh)
        serf = Serf(settings, rng=self.rng, incarnation=incarnation, match=match, keyring=keyring, clocks=clocks)
        self.serfs[name], self.log[name], self._names[address] = serf, [], name
        serf.start(self.now)
        self.settle()
        return serf

    def pool(self, *names: str) -> list[Serf]:
        found = [self.add(name) for name in names]
        for serf in found[1:]:
            self.join(serf, found[0])
        self.run(3.0)
        return found

    def join(self, serf: Serf, other: Serf) -> None:
        serf.join(other.settings.address, self.now)
        self.settle()

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while True:
            due = min([serf.next_due() for name, serf in self.serfs.items() if name not in self.cut], default=end)
            if due > end:
                break
            self.now = max(self.now, due)
            for name, serf in list(self.serfs.items()):
                if name not in self.cut and serf.next_due() <= self.now:
                    serf.tick(self.now)
            self.settle()
        self.now = end

    def settle(self) -> None:
        busy = True
        while busy:
            busy = False
            for name, serf in list(self.serfs.items()):
                if name in self.cut:
                    serf.take()
                    continue
                for effect in serf.take():
                    busy = True
                    self._do(name, serf, effect)

    def _do(self, name: str, serf: Serf, effect: object) -> None:
        if isinstance(effect, SendPacket):
            other = self._at(effect.address)
            if other is not None:
                other.packet_received(effect.messages, serf.settings.address, self.now)
        elif isinstance(effect, PushPull):
            other = self._at(effect.address)
            if other is not None:
                try:
                    answer = other.stream_received(serf.stream_state(join=effect.join), self.now)
                    assert answer is not None
                    serf.merge_stream_state(answer, self.now)
                except MergeRefused as refusal:
                    self.refused.append(str(refusal))
        elif not isinstance(effect, StreamPing):
            self.log[name].append(effect)

    def _at(self, address: Address) -> Serf | None:
        name = self._names.get(address)
        return None if name is None or name in self.cut else self.serfs[name]

    def status(self, serf: Serf, name: str) -> MemberStatus | None:
        return next((member.status for member in serf.members() if member.name == name), None)

    def changes(self, serf: Serf) -> list[tuple[MemberChange, str]]:
        return [(e.change, e.member.name) for e in self.log[serf.settings.name] if isinstance(e, MemberChanged)]

    def events(self, serf: Serf) -> list[tuple[str, bytes]]:
        return [(e.name, e.payload) for e in self.log[serf.settings.name] if isinstance(e, EventHeard)]

    def queries(self, serf: Serf) -> list[QueryHeard]:
        return [e for e in self.log[serf.settings.name] if isinstance(e, QueryHeard)]

    def answers(self, serf: Serf) -> list[QueryAnswered]:
        return [e for e in self.log[serf.settings.name] if isinstance(e, QueryAnswered)]

    def is_over(self, serf: Serf, query_id: int) -> bool:
        return any(isinstance(e, QueryOver) and e.query_id == query_id for e in self.log[serf.settings.name])


@pytest.fixture
def world() -> SerfWorld:
    return SerfWorld()


@pytest.fixture
def make_world() -> Callable[..., SerfWorld]:
    return SerfWorld
