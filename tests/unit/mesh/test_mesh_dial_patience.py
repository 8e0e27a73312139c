"""Dials that are answered too late come up all the same. Time is an argument."""

from __future__ import annotations

from typing import Final

import pytest
import structlog.testing

from georelay.clock import Clock
from georelay.ids import BrokerId, RegionNumber
from mesh.listening.addresses_core import Source
from mesh.listening.dial_patience_core import DIAL_MS_MAX, DialPatience
from mesh.replication import frames as f
from mesh.replication.link import Link, LinkReceiver
from mesh.replication.outgoing_link import REASONS_TOLD_MAX, OutgoingLink
from mesh.replication.settings import BrokerAddress, LinkSettings, MeshIdentity

MS: Final = 1_000_000
SETTINGS: Final = LinkSettings()


def test_patience_doubles_with_each_dial_that_used_it_up_and_has_an_end() -> None:
    patience, seen = DialPatience(1_500), []
    for _ in range(5):
        seen.append(patience.ms)
        patience.used_up()
    assert seen == [1_500, 3_000, 6_000, DIAL_MS_MAX, DIAL_MS_MAX]


def test_patience_is_as_at_first_again_after_an_answer() -> None:
    patience = DialPatience(1_500)
    patience.used_up()
    patience.answered()
    assert patience.ms == 1_500


def test_a_first_patience_above_the_end_stays() -> None:
    patience = DialPatience(2 * DIAL_MS_MAX)
    patience.used_up()
    assert patience.ms == 2 * DIAL_MS_MAX


class Machine(Clock):
    """A broker of us that answers a dial `answer_ms` after it was made, None: never; and the link of eu to it."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.answer_ms: int | None = None
        self.dialled_ms: list[int] = []
        self._carrier: Carrier | None = None
        self.link = OutgoingLink(
            BrokerAddress(broker_id=BrokerId(1001), address="us"),
            Source.CONFIGURATION,
            identity=MeshIdentity(mesh_id="m", region="eu", region_number=RegionNumber(2), broker_id=BrokerId(2001)),
            clock=self,
            settings=SETTINGS,
            dial=self._dial,
            opened=lambda _link: None,
        )

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns

    def _dial(self, _target: BrokerAddress) -> Link:
        self.dialled_ms.append(self.now_ns // MS)
        self._carrier = Carrier()
        return self._carrier

    def refuse(self, reason: str = "refused") -> None:
        """Nobody listens there."""
        assert self._carrier is not None
        self._carrier.close(reason)

    def pass_ms(self, ms: int) -> None:
        """Let time pass, tick by tick."""
        for _ in range(0, ms, SETTINGS.redial_ms):
            self.now_ns += SETTINGS.redial_ms * MS
            if self._carrier is not None and self.answer_ms is not None:
                if self.link.is_open:
                    self._carrier.says(f.Heartbeat(0))
                elif self.now_ns // MS - self.dialled_ms[-1] >= self.answer_ms:
                    self._carrier.says(f.Open(2, "m", "us", RegionNumber(1), BrokerId(1001)))
            self.link.tick()


class Carrier:
    """A link whose other end the machine plays."""

    peer, peer_names, gather_ms, is_writable = "us", None, 2, True

    def __init__(self) -> None:
        self._receiver: LinkReceiver | None = None

    def quiet_ns(self) -> None: ...

    def met(self) -> None: ...

    def start(self, receiver: LinkReceiver) -> None:
        self._receiver = receiver

    def send(self, frame: bytes) -> None: ...

    def close(self, reason: str) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.link_closed(reason)

    def says(self, part: f.Part) -> None:
        if self._receiver is not None:
            self._receiver.frame_received(f.encode_frame(part))


@pytest.mark.parametrize("answer_ms", [2_000, 4_000, 9_000])
async def test_a_broker_that_answers_later_than_a_first_dial_waits_is_reached(answer_ms: int) -> None:
    machine = Machine()
    machine.answer_ms = answer_ms
    machine.link.want()
    machine.pass_ms(30_000)
    assert machine.link.is_open and len(machine.dialled_ms) > 1


async def test_a_link_that_was_open_is_dialled_anew_as_soon_as_a_first_one() -> None:
    machine = Machine()
    machine.link.want()
    machine.pass_ms(8_000)
    machine.answer_ms = 0
    machine.pass_ms(SETTINGS.redial_ms)
    assert machine.link.is_open
    machine.answer_ms = None
    opened_ms = machine.dialled_ms[-1]
    machine.pass_ms(8_000)
    first, second = [ms for ms in machine.dialled_ms if ms > opened_ms][:2]
    assert second - first <= SETTINGS.dead_after_ms + 2 * SETTINGS.redial_ms


async def test_a_dial_that_is_refused_makes_nobody_more_patient() -> None:
    machine = Machine()
    machine.link.want()
    for _ in range(10):
        machine.refuse()
        machine.pass_ms(SETTINGS.redial_ms)
    dialled = len(machine.dialled_ms)
    machine.pass_ms(SETTINGS.dead_after_ms + 2 * SETTINGS.redial_ms)
    assert len(machine.dialled_ms) == dialled + 1


async def test_why_a_broker_cannot_be_dialled_is_told_once_each_time_that_it_is_gone() -> None:
    machine = Machine()
    machine.link.want()

    def told_of(reasons: list[str]) -> list[str]:
        with structlog.testing.capture_logs() as logs:
            for reason in reasons:
                machine.refuse(reason)
                machine.pass_ms(SETTINGS.redial_ms)
        return [log["reason"] for log in logs if log["event"] == "link.dial_failed"]

    assert told_of(["here", "there", "here", "there"]) == ["here", "there"]
    machine.answer_ms = 0
    machine.pass_ms(SETTINGS.redial_ms)
    assert machine.link.is_open
    machine.answer_ms = None
    machine.refuse("went away")
    machine.pass_ms(SETTINGS.redial_ms)
    assert told_of(["here", "here"]) == ["here"]
    assert len(told_of([f"port {number}" for number in range(100)])) == REASONS_TOLD_MAX - 1
