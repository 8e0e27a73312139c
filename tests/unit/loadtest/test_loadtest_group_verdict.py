"""What the campaign of groups says about what members did."""

from __future__ import annotations

from pathlib import Path

from loadtest.groups.events import EventWriter, read_events, read_kcat
from loadtest.groups.verdict_core import Assigned, Generation, Read, Verdict, judge

FIRST = Generation(number=1, stored_ms=100, assigned={"a": frozenset({0}), "b": frozenset({1})}, committed={})
SECOND = Generation(number=2, stored_ms=200, assigned={"b": frozenset({0, 1})}, committed={0: 2, 1: 1})


def read(member: str, partition: int, *offsets: int, at_ms: int = 150) -> Read:
    return Read(at_ms=at_ms, member=member, partition=partition, offsets=offsets)


def verdict(*reads: Read, generations: tuple[Generation, ...] = (FIRST, SECOND)) -> Verdict:
    began = Assigned(at_ms=0, member="a", partitions=frozenset())
    events: dict[str, list[Assigned | Read]] = {"a-1": [began, *reads]}
    stored = [(0, 0), (0, 1), (1, 0)]
    return judge(stored=stored, events_by_process=events, generations=generations, partitions=2)


def test_every_record_processed_once_by_its_owner_is_exact() -> None:
    found = verdict(read("a", 0, 0, 1), read("b", 1, 0))
    assert found.is_exact
    assert (found.records, found.processed, found.missing, found.duplicates) == (3, 3, 0, 0)


def test_a_record_that_nobody_processed_is_missing() -> None:
    found = verdict(read("a", 0, 0), read("b", 1, 0))
    assert not found.is_exact
    assert found.problems == ("partition 0 offset 1 was processed by nobody",)


def test_a_client_that_drops_a_record_when_it_is_told_to_end_may_have_dropped_the_one_behind_its_last() -> None:
    places = [(0, offset) for offset in range(5)]
    one = Generation(number=1, stored_ms=100, assigned={"a": frozenset({0})}, committed={})

    def found(*offsets: int, droppers: tuple[str, ...] = ("a-1",)) -> Verdict:
        began = Assigned(at_ms=0, member="a", partitions=frozenset())
        events: dict[str, list[Assigned | Read]] = {"a-1": [began, read("a", 0, 0, 1)]}
        events["a-2"] = [began, read("a", 0, *offsets)]
        return judge(
            stored=places,
            events_by_process=events,
            generations=[one],
            partitions=1,
            droppers=droppers,
        )

    assert (found(3, 4).is_exact, found(3, 4).dropped) == (True, 1)
    assert not found(4).is_exact, "two are missing"
    assert found(2, 4).problems == ("partition 0 offset 3 was processed by nobody",), "another one is missing"
    assert not found(3, 4, droppers=()).is_exact, "nobody was told to end"
    assert found(2, 3, 4).dropped == 0


def test_an_uncommitted_record_may_be_processed_again_and_a_committed_one_may_not() -> None:
    first = (read("a", 0, 0, 1, 2), read("b", 1, 0))
    again = verdict(*first, read("b", 0, 2, at_ms=250))
    assert (again.is_exact, again.duplicates) == (True, 1)
    assert not verdict(*first, read("b", 0, 1, at_ms=250)).is_exact


def test_a_partition_with_two_members_in_one_generation_is_a_problem() -> None:
    double = Generation(number=3, stored_ms=0, assigned={"a": frozenset({0}), "b": frozenset({0, 1})}, committed={})
    found = verdict(read("a", 0, 0, 1), read("b", 1, 0), generations=(double,))
    assert found.problems == ("generation 3: partitions [0] have two members",)


def test_a_record_processed_by_who_was_never_assigned_it_is_a_problem() -> None:
    assert not verdict(read("a", 0, 0, 1), read("b", 1, 0), read("a", 1, 0)).is_exact


def test_a_process_that_never_became_a_member_is_a_problem() -> None:
    found = judge(stored=[], events_by_process={"kcat-3": []}, generations=[FIRST], partitions=2)
    assert found.problems == ("kcat-3 never became a member",)


def test_events_come_back_as_they_were_written_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m.events"
    writer = EventWriter(path)
    writer.assigned("a", {1, 0})
    writer.read("a", 1, [5, 6])
    with path.open("a") as file:
        file.write('{"e":"read","t":1')
    assigned, processed = read_events(path)
    assert isinstance(assigned, Assigned)
    assert (assigned.member, assigned.partitions) == ("a", frozenset({0, 1}))
    assert isinstance(processed, Read)
    assert (processed.partition, processed.offsets) == (1, (5, 6))


def test_what_kcat_prints_is_read(tmp_path: Path) -> None:
    path = tmp_path / "k.events"
    path.write_text(
        "% Waiting for group rebalance\n% Group g rebalanced (memberid k-1): assigned: t [0], t [3]\n3 17\n"
    )
    assigned, processed = read_kcat(path)
    assert (assigned.member, processed.member) == ("k-1", "k-1")
    assert isinstance(assigned, Assigned)
    assert assigned.partitions == frozenset({0, 3})
    assert isinstance(processed, Read)
    assert (processed.partition, processed.offsets) == (3, (17,))
