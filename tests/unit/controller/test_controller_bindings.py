"""Bindings as definitions of the mesh: every region learns them, and no two ever make a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from georelay.errors import PolicyViolation, UnknownBinding
from georelay.ids import RaftIndex
from region.controller import security_rules, security_wishes
from region.controller.command_kinds import Command
from region.controller.commands import DefineSecurity, FormRegion, RaiseFeatureLevel, decode, encode
from region.controller.security_wishes import delete_binding, put_binding
from region.controller.state_core import ControllerState, Done, Refused
from region.routing.binding import Binding, HeaderRule

Make = Callable[..., Any]
US_FOLLOWER, EU_FOLLOWER = 1002, 2002
LEVEL_3 = dict.fromkeys((1001, 1002, 2001, 2002), 3)


def _binding(name: str, source: str, target: str) -> Binding:
    return Binding(name=name, source=source, target=target, headers=(HeaderRule(name="kind", value="paid"),))


@pytest.fixture
def formed(topology: Make) -> ControllerState:
    state = ControllerState()
    commands: list[Command] = [FormRegion(topology=topology(1)), RaiseFeatureLevel(level=2), RaiseFeatureLevel(level=3)]
    for index, command in enumerate(commands, start=1):
        state.apply(command, RaftIndex(index))
    return state


def _define(state: ControllerState, binding: Binding) -> Any:
    command = DefineSecurity(definition=binding)
    assert decode(encode(command)) == command
    state.apply(command, RaftIndex(state.applied_index + 1))
    return state.outcome(state.applied_index)


async def test_every_region_learns_of_a_binding_and_of_its_end(mesh_of: Make) -> None:
    mesh = await mesh_of(levels=LEVEL_3)
    await mesh.until(lambda: all(service.feature_level == 3 for service in mesh.services.values()))
    await mesh.until(lambda: all(service.is_settled for service in mesh.services.values()))
    wanted = _binding("b", "orders.>", "audit")
    await mesh.services[EU_FOLLOWER].change_security(put_binding(wanted))
    known = list(mesh.services[EU_FOLLOWER].state.security.bindings())
    assert [(row.name, row.headers) for row in known] == [("b", wanted.headers)]
    await mesh.until(lambda: [*mesh.services[US_FOLLOWER].state.security.bindings()] == known)
    await mesh.services[US_FOLLOWER].change_security(delete_binding("b"))
    await mesh.until(lambda: not [*mesh.services[EU_FOLLOWER].state.security.bindings()])


def test_of_two_bindings_that_would_make_a_loop_the_second_is_refused(formed: ControllerState) -> None:
    assert isinstance(_define(formed, _binding("there", "orders", "audit")), Done)
    outcome = _define(formed, _binding("back", "audit", "orders"))
    assert isinstance(outcome, Refused) and outcome.error is PolicyViolation
    assert "back -> there" in outcome.text
    assert [row.name for row in formed.security.bindings()] == ["there"]


def test_a_snapshot_holds_bindings(formed: ControllerState) -> None:
    _define(formed, _binding("there", "orders", "audit"))
    restored = ControllerState.from_snapshot(formed.to_snapshot())
    assert [*restored.security.bindings()] == [*formed.security.bindings()]
    assert restored.to_snapshot() == formed.to_snapshot()


def test_another_binding_of_the_same_name_is_refused_and_the_same_one_is_not(formed: ControllerState) -> None:
    binding = _binding("b", "orders", "audit")
    _define(formed, binding)
    assert security_wishes.plan(formed.security, put_binding(binding)) == []
    with pytest.raises(PolicyViolation):
        security_wishes.plan(formed.security, put_binding(_binding("b", "orders", "other")))


def test_what_is_not_there_cannot_be_removed(formed: ControllerState) -> None:
    with pytest.raises(UnknownBinding):
        security_wishes.plan(formed.security, delete_binding("nothing"))


def test_bindings_are_bounded(formed: ControllerState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_rules, "BINDINGS_MAX", 2)
    for number in range(2):
        assert isinstance(_define(formed, _binding(f"b{number}", "orders", "audit")), Done)
    assert isinstance(_define(formed, _binding("b2", "orders", "audit")), Refused)
