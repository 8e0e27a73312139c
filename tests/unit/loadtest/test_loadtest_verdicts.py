"""What the judges of a campaign must find, one wrong at a time; a judge that finds nothing proves nothing."""

from __future__ import annotations

import pytest

from loadtest.groups import verdict_core as groups
from loadtest.history.operation import Kind, Operation, Outcome
from loadtest.load.clock_verdict_core import wrong_verdicts
from loadtest.load.programs_core import piped, torn
from loadtest.load.verdict_core import judge_transactions

# --- transactions ---------------------------------------------------------------------------------


def written(name: str, *places: str) -> list[Operation]:
    return [
        Operation(
            process="program-w",
            number=row,
            kind=Kind.PRODUCE,
            key=place,
            value=name,
            offset=None,
            outcome=Outcome.UNKNOWN,
            invoked_ns=0,
            completed_ns=None,
        )
        for row, place in enumerate(places)
    ]


def read(site: str, place: str, *names: str) -> Operation:
    return Operation(
        process="end",
        number=0,
        kind=Kind.FETCH,
        key=place,
        records=tuple(enumerate(names)),
        site=site,
        final=True,
        outcome=Outcome.OK,
        invoked_ns=0,
        completed_ns=1,
    )


def test_a_transaction_may_be_there_or_not_but_never_in_part() -> None:
    begun = [*written("w:1", "a/0", "b/0"), *written("w:2", "a/0", "b/0")]
    assert torn(begun) == (2, 0, [])
    assert torn([*begun, read("us", "a/0", "w:1"), read("us", "b/0", "w:1")]) == (2, 1, [])
    half = [*begun, read("us", "a/0", "w:1"), read("us", "b/0", "w:1"), read("eu", "a/0", "w:1")]
    assert torn(half) == (2, 1, ["w:1 in eu"])
    assert not judge_transactions(*torn(half)).is_kept
    assert not judge_transactions(0, 0, []).is_kept
    assert not judge_transactions(5, 0, []).is_kept


@pytest.mark.parametrize(
    ("outputs", "wanted"),
    [
        (["0", "1"], {"inputs": 2, "missing": 0, "repeated": 0, "foreign": 0}),
        (["0"], {"inputs": 2, "missing": 1, "repeated": 0, "foreign": 0}),
        (["0", "1", "1"], {"inputs": 2, "missing": 0, "repeated": 1, "foreign": 0}),
        (["0", "1", "2"], {"inputs": 2, "missing": 0, "repeated": 0, "foreign": 1}),
    ],
)
def test_each_input_that_is_missing_repeated_or_foreign_is_counted(outputs: list[str], wanted: dict[str, int]) -> None:
    assert piped(["0", "1"], outputs) == wanted


# --- groups ---------------------------------------------------------------------------------------


def generation(number: int, *, stored_ms: int = 100, committed: int = 0, **assigned: set[int]) -> groups.Generation:
    held = {member: frozenset(partitions) for member, partitions in assigned.items()}
    return groups.Generation(number=number, stored_ms=stored_ms, assigned=held, committed={0: committed})


def judged(*generations: groups.Generation, at_ms: int = 150, offset: int = 0) -> groups.Verdict:
    events: dict[str, list[groups.Event]] = {
        "a": [
            groups.Assigned(at_ms=0, member="a", partitions=frozenset({0})),
            groups.Read(at_ms=at_ms, member="a", partition=0, offsets=(offset,)),
        ]
    }
    return groups.judge(stored=[(0, offset)], events_by_process=events, generations=generations, partitions=2)


def test_a_generation_without_members_is_none_of_those_that_are_counted() -> None:
    found = judged(generation(1), generation(2, a={0}))
    assert (found.is_exact, found.generations) == (True, 1)


def test_a_partition_that_the_topic_does_not_have_is_a_problem() -> None:
    assert judged(generation(1, a={0, 2})).problems == ("generation 1: partitions [0, 2] of 2",)


def test_a_cooperative_assignor_may_leave_a_partition_out_for_one_generation() -> None:
    assert judged(generation(1, a={0})).is_exact


def test_a_record_processed_before_its_member_was_assigned_the_partition_is_a_problem() -> None:
    found = judged(generation(1, stored_ms=200, a={0}))
    assert found.problems == ("a processed partition 0 offset 0 without having been assigned it",)


def test_what_was_committed_before_a_generation_began_is_not_processed_again_in_it() -> None:
    first, second = generation(1, a={0}), generation(2, stored_ms=200, committed=6, a={0})
    assert judged(first, second, at_ms=150, offset=5).is_exact
    assert judged(first, second, at_ms=250, offset=6).is_exact
    assert judged(first, second, at_ms=250, offset=5).problems == (
        "a processed partition 0 offset 5 in generation 2, which began at 6",
    )


def test_a_client_that_does_not_say_when_it_processed_is_held_to_its_first_generation() -> None:
    first, second = generation(1, committed=3, a={0}), generation(2, stored_ms=200, committed=6, a={0})
    assert judged(first, second, at_ms=0, offset=5).is_exact
    assert not judged(first, second, at_ms=0, offset=2).is_exact


# --- clocks ---------------------------------------------------------------------------------------


def test_a_subject_of_which_nothing_was_measured_has_no_wrong_verdict() -> None:
    unmeasured = {"name": "us -> eu", "verdict": "no data", "measured": None}
    measured = {"name": "us -> ap", "verdict": "met", "measured": {"value": 0.5, "lo": 0.4, "hi": 0.99}}
    found = wrong_verdicts([unmeasured, measured], 0.9, {"us -> eu": 0.1})
    assert found == ["us -> ap: met with 0.4000 to 0.9900 of 0.9"]
