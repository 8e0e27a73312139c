"""The definitions are handed over exactly once: no two orderers, whatever crashes when."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from georelay.errors import PolicyViolation, Unavailable
from region.control.founding import founder_is_gone, is_founder, must_cede
from region.controller.commands import (
    CedeDefinitions,
    DefineTopic,
    DropTopic,
    LearnMesh,
    MarkAbsent,
    OpenControl,
    ReplaceDisk,
)
from region.controller.effects import Done, Refused
from region.controller.mesh_rows import ControlRow
from region.controller.state_core import ControllerState
from region.controller.topic import Tombstone

Make = Callable[..., Any]
FRESH = itertools.count(100)


def orders(home: Any, make_topic: Make) -> bool:
    """Return whether the definitions home orders a definition now."""
    number = next(FRESH)
    return isinstance(home.apply(DefineTopic(definition=make_topic(f"t{number}", number))), Done)


def control_orders(control: Any, make_topic: Make) -> bool:
    number = next(FRESH)
    return not isinstance(control.define(DefineTopic(definition=make_topic(f"t{number}", number))), Exception)


def test_a_region_below_the_level_or_away_from_the_definitions_home_names_no_founder(make_region: Make) -> None:
    assert must_cede(make_region(1).state)
    assert not must_cede(make_region(2).state)
    assert not must_cede(ControllerState())


def test_at_every_step_at_most_one_orders(
    home: Any, make_control: Make, make_topic: Make, founding_charter: Make
) -> None:
    control = make_control()
    steps: list[Callable[[], object]] = [
        lambda: home.apply(CedeDefinitions(charter=founding_charter())),
        lambda: control.begin(home.state),
        lambda: home.apply(OpenControl(control_id=control.state.control_id)),
        control.open,
    ]
    seen = [(orders(home, make_topic), control_orders(control, make_topic))]
    for step in steps:
        step()
        seen.append((orders(home, make_topic), control_orders(control, make_topic)))
    assert seen == [(True, False), (False, False), (False, False), (False, False), (False, True)]


def begin_once(control: Any, state: Any) -> object:
    return control.state.has_begun or control.begin(state)


def open_in(control: Any, home: Any) -> object:
    return home.apply(OpenControl(control_id=control.state.control_id))


@pytest.mark.parametrize("crash_before", range(4))
def test_after_a_crash_before_any_step_the_same_steps_again_lead_to_the_same_control(
    home: Any, make_control: Make, make_topic: Make, founding_charter: Make, crash_before: int
) -> None:
    home.apply(DefineTopic(definition=make_topic("kept")))
    log: list[bytes] = []
    for stop in (crash_before, 4):
        control = make_control()  # a process that starts: what it knows is its log
        for raw in log:
            control.take(raw)
        steps: list[Callable[[], object]] = [
            lambda: must_cede(home.state) and home.apply(CedeDefinitions(charter=founding_charter())),
            partial(begin_once, control, home.state),
            partial(open_in, control, home),
            control.open,
        ]
        for step in steps[:stop]:
            step()
        log = control.log
    assert control.state.is_open
    assert control.definitions.topic_by_name("kept") == home.state.topic_by_name("kept")
    assert not orders(home, make_topic)


def test_a_founder_that_was_given_up_never_orders(home: Any, make_control: Make, founding_charter: Make) -> None:
    home.apply(CedeDefinitions(charter=founding_charter()))
    first = make_control()
    first.begin(home.state)
    home.apply(CedeDefinitions(charter=founding_charter(control_id="b" * 32, founder=1002)))
    refused = home.apply(OpenControl(control_id="a" * 32))
    assert isinstance(refused, Refused) and refused.error is PolicyViolation
    assert not first.state.is_open


def test_once_it_was_opened_nobody_else_can_be_named(home: Any, founding_charter: Make) -> None:
    home.apply(CedeDefinitions(charter=founding_charter()))
    assert home.apply(OpenControl(control_id="a" * 32)) == Done()
    assert home.apply(OpenControl(control_id="a" * 32)) == Done()  # an answer that got lost
    assert isinstance(home.apply(CedeDefinitions(charter=founding_charter(control_id="b" * 32))), Refused)


def test_a_region_that_knows_control_names_no_founder(home: Any, founding_charter: Make) -> None:
    home.apply(
        LearnMesh(control=ControlRow(generation=1, control_id="c" * 32, members=(), voters=(), index=5), regions=())
    )
    assert not must_cede(home.state)
    assert isinstance(home.apply(CedeDefinitions(charter=founding_charter())), Refused)


def test_what_waits_for_the_handover_is_told_to_ask_again(home: Any, make_topic: Make, founding_charter: Make) -> None:
    home.apply(DefineTopic(definition=make_topic("there")))
    home.apply(CedeDefinitions(charter=founding_charter()))
    for command in (
        DefineTopic(definition=make_topic("late", 7)),
        DropTopic(tombstone=Tombstone(name="there", topic_id=(1).to_bytes(16, "big"), index=0)),
    ):
        outcome = home.apply(command)
        assert isinstance(outcome, Refused) and outcome.error is Unavailable


def test_definitions_that_control_ordered_apply_where_nothing_is_ordered_any_more(
    home: Any, make_topic: Make, founding_charter: Make
) -> None:
    home.apply(CedeDefinitions(charter=founding_charter()))
    assert isinstance(home.apply(DefineTopic(definition=make_topic("pulled", 7, index=50))), Done)
    assert home.state.topic_by_name("pulled").index == 50


def test_the_charter_survives_a_snapshot(home: Any, founding_charter: Make) -> None:
    home.apply(CedeDefinitions(charter=founding_charter()))
    again = ControllerState.from_snapshot(home.state.to_snapshot())
    assert again.mesh.charter == home.state.mesh.charter
    assert is_founder(again, 1001, "disk-1001") is not None  # type: ignore[arg-type]
    assert is_founder(again, 1001, "another disk") is None  # type: ignore[arg-type]


def test_a_founder_with_another_disk_or_that_is_absent_is_gone(
    home: Any, founding_charter: Make, make_registration: Make
) -> None:
    charter = founding_charter()
    home.apply(CedeDefinitions(charter=charter))
    assert not founder_is_gone(home.state, charter)
    home.apply(MarkAbsent(broker=charter.founder))
    assert founder_is_gone(home.state, charter)
    home.apply(ReplaceDisk(registration=make_registration(1001, "new"), replaces="disk-1001"))
    assert founder_is_gone(home.state, charter)
