"""Generations: one survivor begins anew, and what belonged to the one before is not taken in any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from georelay.errors import PolicyViolation
from region.control.recovery import INDEX_GAP, recovered_snapshot
from region.control.state_core import BEGIN, pieces_of
from region.controller.commands import DefineTopic, LearnMesh
from region.controller.effects import Done, Refused
from region.controller.mesh_rows import ControlRow, VoterRow

Make = Callable[..., Any]
ID = "b" * 32


def recovered(control: Any, make_control: Make) -> Any:
    survivor = control.state.members.row(1)
    again = make_control()
    for piece in pieces_of(recovered_snapshot(control.state, survivor, control_id=ID)):
        again.append(BEGIN, piece)
    return again


def test_the_survivor_keeps_everything_and_is_the_only_voter(control: Any, make_control: Make) -> None:
    control.append("members", {"do": "add", "broker": 2001, "address": "h:1"})
    again = recovered(control, make_control)
    assert (again.state.generation, again.state.control_id, again.state.is_open) == (2, ID, True)
    assert list(again.definitions.topics()) == list(control.definitions.topics())
    assert again.regions.rows() == control.regions.rows()
    assert [row.replica for row in again.state.members.rows()] == [1]


def test_replica_numbers_of_the_generation_before_are_not_given_out_again(control: Any, make_control: Make) -> None:
    assert control.append("members", {"do": "add", "broker": 2001, "address": "h:1"}) == {"replica": 2}
    again = recovered(control, make_control)
    assert again.append("members", {"do": "add", "broker": 2001, "address": "h:1"}) == {"replica": 3}


def test_indexes_leave_a_gap_for_what_only_the_lost_majority_had(
    control: Any, make_control: Make, make_topic: Make
) -> None:
    before = control.state.index
    again = recovered(control, make_control)
    again.define(DefineTopic(definition=make_topic("after", 5)))
    assert again.definitions.topic_by_name("after").index > before + INDEX_GAP


def test_a_replica_that_never_was_whole_recovers_nothing(home: Any, make_control: Make) -> None:
    row = VoterRow(replica=1, broker=1001, disk="d", address="")  # type: ignore[arg-type]
    half = make_control()
    with pytest.raises(PolicyViolation):
        recovered_snapshot(half.state, row, control_id=ID)
    half.begin(home.state)
    with pytest.raises(PolicyViolation):
        recovered_snapshot(half.state, row, control_id=ID)


def row_of(generation: int, control_id: str, index: int) -> ControlRow:
    return ControlRow(generation=generation, control_id=control_id, members=(), voters=(), index=index)


@pytest.mark.parametrize(
    ("row", "is_taken"),
    [
        (row_of(2, "b" * 32, 1), True),  # a higher generation, whatever its index
        (row_of(1, "a" * 32, 9), True),
        (row_of(1, "a" * 32, 4), False),  # older
    ],
)
def test_a_region_follows_the_newest_control(home: Any, row: ControlRow, is_taken: bool) -> None:
    home.apply(LearnMesh(control=row_of(1, "a" * 32, 5), regions=()))
    assert isinstance(home.apply(LearnMesh(control=row, regions=())), Done)
    assert (home.state.mesh.control == row) is is_taken


def test_a_lower_generation_is_ignored(home: Any) -> None:
    home.apply(LearnMesh(control=row_of(2, "b" * 32, 5), regions=()))
    home.apply(LearnMesh(control=row_of(1, "a" * 32, 99), regions=()))
    assert home.state.mesh.control.generation == 2


def test_an_equal_generation_with_another_id_is_refused(home: Any) -> None:
    home.apply(LearnMesh(control=row_of(2, "b" * 32, 5), regions=()))
    outcome = home.apply(LearnMesh(control=row_of(2, "c" * 32, 6), regions=()))
    assert isinstance(outcome, Refused) and "two controls claim generation 2" in outcome.text
