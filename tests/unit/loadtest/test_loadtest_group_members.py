"""How campaigns start the members of groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.groups.member import MEMBERS
from loadtest.groups.member_process import CLIENTS, MIXED, GroupToJoin, command_of, kinds_of, missing_for

TOLD = GroupToJoin(bootstrap="127.0.0.1:9092", url="grpc://127.0.0.1:9093", group="g", topic="t", assignor="range")


def command(client: str) -> list[str]:
    return list(command_of(client, f"{client}-1", TOLD, Path("d") / "events"))


def test_six_kinds_of_clients_are_known() -> None:
    assert set(CLIENTS) == {*MEMBERS, "kcat", "kafkajs"}
    assert len(CLIENTS) == 6


@pytest.mark.parametrize("client", CLIENTS)
def test_only_the_sdk_is_told_a_url_instead_of_kafka_addresses(client: str) -> None:
    assert (TOLD.url in command(client)) == (client == "sdk")
    assert (TOLD.bootstrap in command(client)) == (client != "sdk")


def test_a_mixed_group_begins_with_the_sdk_and_has_everybody_who_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.groups.member_process.shutil.which", lambda _: "/there")
    assert kinds_of(MIXED, {}) == ["sdk", "kcat", "kafka-python", "aiokafka", "confluent-kafka"]
    assert kinds_of("kcat", {}) == ["kcat"]
    assert kinds_of("kafkajs", {}) == []


def test_clients_that_no_extra_brings_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.groups.member_process.find_spec", lambda _: None)
    monkeypatch.setattr("loadtest.groups.member_process.shutil.which", lambda _: "/there")
    assert missing_for("aiokafka", {}) == "aiokafka is not installed: pip install aiokafka"
    assert missing_for("kafka-python", {}) == "kafka-python is not installed: pip install kafka-python"
    assert kinds_of(MIXED, {}) == ["sdk", "kcat", "confluent-kafka"]
