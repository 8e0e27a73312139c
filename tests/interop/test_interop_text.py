"""The text protocol against a real mesh, alone and in one group with a Kafka client."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

SECONDS = 30


class Telnet:
    """One connection, as a person has it."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), SECONDS)
        self._lines = self._socket.makefile("rb")
        try:
            assert self.line().startswith("OK georelay text 1 region ")
        except BaseException:
            self.close()
            raise

    def type(self, line: str) -> None:
        self._socket.sendall(line.encode() + b"\r\n")

    def line(self) -> str:
        return self._lines.readline().decode().removesuffix("\r\n")

    def until(self, *starts: str) -> str:
        while True:
            line = self.line()
            assert line, f"closed before {starts}"
            if line.startswith(starts):
                return line

    def ask(self, line: str) -> str:
        self.type(line)
        return self.until("OK", "ERR")

    def wait_for_lines(self, seconds: float) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@pytest.fixture
def telnet(mesh: Any) -> Iterator[Any]:
    """Open connections to a region's text listener."""
    opened: list[Telnet] = []

    def connect(region: str) -> Telnet:
        made = Telnet(mesh.addresses(region, "text")[0])
        opened.append(made)
        return made

    yield connect
    for one in opened:
        one.close()


def test_a_record_typed_in_one_region_is_read_in_another_and_by_a_kafka_client(
    mesh: Any, telnet: Any, clients: Any
) -> None:
    name = mesh.new_name("typed")
    here = telnet("us")
    assert here.ask(f"CRTP {name} 1") == f"OK {name} 1"
    for region in mesh.regions:
        mesh.wait_for_topic(name, region=region)
    there = telnet("eu")
    assert there.ask(f"SUBS {name} -") == f"OK 1 {name} no group"
    body = json.dumps({"Header": {"h": "1"}, "Key": "k", "Body": "caf\u00e9"}, ensure_ascii=False)
    assert here.ask(f"PUBS {name} {body}") == "OK 0 0"
    received = there.until("REC").split(" ", 4)
    assert received[:4] == ["REC", name, "1.0", "0"]
    assert json.loads(received[4]) == {"Header": {"h": "1"}, "Key": "k", "Body": "caf\u00e9"}
    ((_, offset, key, value),) = clients["confluent-kafka"].consume(mesh.kafka("us"), name, 1, 1)
    assert (offset, key, value) == (0, "k", "caf\u00e9")


def test_resolve_shows_where_the_other_protocols_listen(mesh: Any, telnet: Any) -> None:
    person = telnet("us")
    person.type("RESOLVE")
    rows = [person.line() for _ in mesh.addresses("us", "kafka")]
    for row, kafka, grpc in zip(rows, mesh.addresses("us", "kafka"), mesh.addresses("us", "grpc"), strict=True):
        assert f"up kafka {kafka} grpc {grpc}" in row
    assert person.line() == f"OK region us brokers {len(rows)}"


def test_a_group_goes_on_where_it_was_on_another_connection(mesh: Any, telnet: Any) -> None:
    name, group = mesh.new_name("goes-on"), mesh.new_name("group")
    first = telnet("us")
    first.ask(f"CRTP {name} 1")
    for number in range(4):
        assert first.ask(f'PUBS {name} {{"Body":"{number}"}}') == f"OK 0 {number}"
    assert first.ask(f"SUBS {name} {group}").startswith("OK 1 ")
    for number in range(3):
        assert first.until("REC").split()[3] == str(number)
    assert first.ask(f"DONE {name} 1.0 1") == "OK 2"
    assert first.ask("QUIT") == "OK bye"
    second = telnet("us")
    assert second.ask(f"SUBS {name} {group}").startswith("OK 1 ")
    assert second.until("REC").split()[3] == "2"


def test_a_person_and_a_kafka_client_share_a_group(mesh: Any, telnet: Any) -> None:
    name, group = mesh.new_name("shared"), mesh.new_name("mixed")
    person = telnet("us")
    person.ask(f"CRTP {name} 4")
    mesh.wait_for_topic(name, region="us")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": mesh.kafka("us"),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "range",
            "heartbeat.interval.ms": 300,  # when it hears that somebody came; 3,000 unless told
        }
    )
    try:
        consumer.subscribe([name])
        deadline = time.monotonic() + SECONDS
        while len(consumer.assignment()) != 4 and time.monotonic() < deadline:
            consumer.poll(0.1)
        assert len(consumer.assignment()) == 4
        assert person.ask(f"SUBS {name} {group}").startswith("OK 1 ")
        while len(consumer.assignment()) != 2 and time.monotonic() < deadline:
            consumer.poll(0.1)
        theirs = {place.partition for place in consumer.assignment()}
        share = person.until("PARTS 1 ").split()[2]
        mine = {int(number) for number in share.split(",")}
        assert (len(mine), mine | theirs) == (2, {0, 1, 2, 3})
    finally:
        consumer.close()
    assert person.until("PARTS 1 0,1,2,3")
