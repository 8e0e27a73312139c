"""Whose disk is which between the start of a broker and the first commit that it hears of."""

from __future__ import annotations

import pytest

from georelay.ids import BrokerId, RaftIndex
from region.broker.recovered_disks import RecoveredDisks
from region.controller.commands import Command, RegisterBroker, RemoveBroker, ReplaceDisk, encode
from region.controller.registration import BrokerRegistration

X = BrokerId(1003)


def registration(disk: str) -> BrokerRegistration:
    return BrokerRegistration(
        broker=X,
        disk_uuid=disk,
        kafka_host="127.0.0.1",
        kafka_port=9092,
        grpc="127.0.0.1:1",
        link="127.0.0.1:2",
        admin="127.0.0.1:3",
    )


def register(disk: str) -> Command:
    return RegisterBroker(registration=registration(disk))


def replace_disk(old: str, new: str) -> Command:
    return ReplaceDisk(registration=registration(new), replaces=old)


def found(*commands: Command) -> RecoveredDisks:
    disks = RecoveredDisks()
    for index, command in enumerate(commands, start=1):
        disks.note(RaftIndex(index), encode(command))
    return disks


@pytest.mark.parametrize(
    ("commands", "disk"),
    [
        ((), None),
        ((register("a"),), "a"),
        ((register("a"), register("b")), "a"),
        ((register("a"), replace_disk("a", "b")), "b"),
        ((register("a"), replace_disk("a", "b"), replace_disk("b", "c")), "c"),
        ((register("a"), replace_disk("x", "b")), "a"),
        ((register("a"), RemoveBroker(broker=X)), "a"),
        ((register("a"), RemoveBroker(broker=X), register("b")), "b"),
    ],
)
def test_the_log_that_is_not_applied_yet_says_whose_disk_counts(
    commands: tuple[Command, ...], disk: str | None
) -> None:
    assert found(*commands).disk_of(X, applied=None, applied_index=RaftIndex(0)) == disk


def test_a_replacement_above_what_is_applied_counts_more_than_what_is_applied() -> None:
    disks = found(register("a"), replace_disk("a", "b"))
    assert disks.disk_of(X, applied="a", applied_index=RaftIndex(1)) == "b"
    assert disks.disk_of(X, applied="a", applied_index=RaftIndex(2)) == "a"  # it was refused when it was applied


def test_a_registration_above_what_is_applied_changes_no_disk() -> None:
    assert found(register("b")).disk_of(X, applied="a", applied_index=RaftIndex(0)) == "a"


def test_a_replacement_that_was_cut_off_the_log_counts_no_more() -> None:
    disks = found(register("a"), replace_disk("a", "b"))
    disks.truncated(RaftIndex(2))
    assert disks.disk_of(X, applied=None, applied_index=RaftIndex(0)) == "a"


def test_an_unknown_command_says_nothing() -> None:
    disks = RecoveredDisks()
    disks.note(RaftIndex(1), b"?")
    assert disks.disk_of(X, applied=None, applied_index=RaftIndex(0)) is None
