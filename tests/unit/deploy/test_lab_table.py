"""What the lab says of its steps."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from deploy.lab.layout import HOME, HostPlan
from deploy.lab.load import PARTITIONS, Books, Clients
from deploy.lab.needs import LabError
from deploy.lab.operator import Operator, changes, last_message
from deploy.lab.steps import STEPS
from deploy.lab.table import Step, Table, longest_pause_s

GOOD = {"acknowledged": 2, "refused": 0, "lost": 0, "duplicated": 0, "moved": 0, "backwards": 0}


def test_a_pause_counts_for_every_step_that_it_overlaps() -> None:
    times = [1.0, 1.1, 4.1, 4.2]
    assert longest_pause_s(times, 2.0, 3.0) == pytest.approx(3.0)
    assert longest_pause_s(times, 0.0, 1.05) == pytest.approx(0.1)
    assert longest_pause_s(times, 4.15, 9.0) == pytest.approx(0.1)
    assert longest_pause_s([], 0.0, 1.0) is None


@pytest.mark.parametrize("key", ["lost", "duplicated", "moved", "backwards", "refused"])
def test_one_record_that_is_not_as_told_makes_the_lab_fail(key: str) -> None:
    assert Table(finished=True, verdict=GOOD).is_good
    assert not Table(finished=True, verdict={**GOOD, key: 1}).is_good


def test_a_step_that_failed_or_clients_without_a_verdict_make_the_lab_fail() -> None:
    failed = Step(name="one", begin=0.0, end=1.0, voters_worst="", fault="no")
    assert not Table(finished=True, verdict=GOOD, steps=[failed]).is_good
    assert not Table(finished=True).is_good
    assert not Table(verdict=GOOD).is_good


def test_what_the_clients_publish_is_at_home_in_the_region_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Operator, "verb", lambda _, *words, given="": said.append(" ".join(words)))
    Operator(tmp_path, {}, members=(), release=tmp_path).make_topic(regions=2)
    assert said[0] == f"topics create orders --partitions {PARTITIONS} --home {HOME} --set min.insync.regions=2"
    assert not [words for words in said if "--operation create" in words], "clients make nothing elsewhere"


class HostOfTraces:
    """Answers as a host whose timer is active, and whose first file of traces is closed after some runs of its unit."""

    def __init__(self, closed_after: int) -> None:
        self._left = closed_after
        self.plan = HostPlan("gateway-1.us", "10.10.48.101", IPv4Network("10.10.0.0/16"))

    def inside(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        self._left -= command[:2] == ["systemctl", "start"]
        said = "active" if "is-active" in command else "/srv/traces/a.parquet" if self._left <= 0 else ""
        return subprocess.CompletedProcess(list(command), 0, said, "")


def test_traces_of_a_process_that_just_started_are_waited_for_until_its_first_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deploy.lab.steps.time.sleep", lambda _: None)
    hosts: Any = {"gateway-1.us": HostOfTraces(closed_after=3)}
    STEPS["traces shipped"](Operator(tmp_path, hosts, members=hosts, release=tmp_path))
    monkeypatch.setattr("deploy.lab.steps.CLOSED_S", -1)
    hosts["gateway-1.us"] = HostOfTraces(closed_after=3)
    with pytest.raises(LabError, match="us: nothing was shipped to /srv/traces"):
        STEPS["traces shipped"](Operator(tmp_path, hosts, members=hosts, release=tmp_path))


class Message:
    def __init__(self, number: int, partition: int, offset: int) -> None:
        self._row = number, partition, offset

    def value(self) -> bytes:
        return f"{self._row[0]:012d}....".encode()

    def partition(self) -> int:
        return self._row[1]

    def offset(self) -> int:
        return self._row[2]


def test_the_clients_books_count_what_is_lost_doubled_moved_and_out_of_order() -> None:
    books = Books()
    for number in range(4):
        books.note_delivery(number, None, Message(number, 0, number))
    for number, offset in ((0, 0), (2, 2), (1, 9), (1, 1)):
        books.note_read(Message(number, 0, offset))
    verdict = books.verdict()
    assert {key: verdict[key] for key in ("lost", "duplicated", "moved", "backwards")} == {
        "lost": 1,
        "duplicated": 1,
        "moved": 1,
        "backwards": 1,
    }


class Client:
    """A producer and a consumer of librdkafka, as far as they are used."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.under_way = 0
        self.closed = False
        self.assigned: list[int] = []
        self.read: list[int] = []

    def flush(self, _seconds: float) -> int:
        return self.under_way

    def assign(self, places: list[Any]) -> None:
        self.assigned = [place.offset for place in places]

    def position(self, places: list[Any]) -> list[Any]:
        return [
            type(place)(place.topic, place.partition, offset) for place, offset in zip(places, self.read, strict=True)
        ]

    def close(self) -> None:
        self.closed = True


def test_clients_begin_anew_where_they_were_when_they_are_given_another_authority(tmp_path: Path) -> None:
    authorities = tmp_path / "bundle.crt"
    authorities.write_text("one")
    made: list[Client] = []

    def make(settings: dict[str, Any]) -> Client:
        made.append(Client(settings))
        return made[-1]

    clients = Clients({"ssl.ca.location": str(authorities)}, "orders", make_producer=make, make_consumer=make)
    clients.renew()
    assert len(made) == 2 and made[1].assigned == [0] * PARTITIONS
    authorities.write_text("one two")
    made[0].under_way = 1
    clients.renew()
    assert len(made) == 2  # what is on its way is awaited
    made[0].under_way = 0
    made[1].read = [7, -1001, 9]
    clients.renew()
    assert made[1].closed and made[3].assigned == [7, 0, 9]
    made[3].read = [-1001, 4, 9]
    authorities.write_text("two")
    clients.renew()
    assert made[5].assigned == [7, 4, 9]


def test_changes_and_reasons_are_read_from_what_a_play_prints() -> None:
    recap = "broker-1.us   : ok=36   changed=2    unreachable=0\nlocalhost : ok=14   changed=1    unreachable=0\n"
    assert changes(recap) == 3
    said = "fatal: [a]: FAILED! => \n    changed: false\n    msg: 'one\n        two'\n\nPLAY RECAP\n"
    assert last_message(said) == "a: one two"
    block = "fatal: [a]: UNREACHABLE! => \n    changed: false\n    msg: |-\n        one\n        two: it's\n    rc: 1\n"
    assert last_message(block) == "a: one two: it's"
    assert last_message(said.replace("two'", "two: it''s'")) == "a: one two: it's"
    lost = "fatal: [b -> c]: UNREACHABLE! => \n    changed: false\n    msg: b does not answer\n    unreachable: true\n"
    assert last_message(said + lost) == "b does not answer"
