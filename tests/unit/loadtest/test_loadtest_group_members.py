"""How the campaign of groups starts its members."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.campaign.group_runs import MIXED, clients_of
from loadtest.groups.member import MEMBERS
from loadtest.groups.member_process import CLIENTS, GroupToJoin, MemberProcess

TOLD = GroupToJoin(
    bootstrap="127.0.0.1:9092", url="grpc://127.0.0.1:9093", group="g", topic="t", directory=Path("d"), assignor="range"
)


def command(client: str) -> list[str]:
    return list(MemberProcess(client, f"{client}-1", TOLD)._command())


def test_six_kinds_of_clients_are_known() -> None:
    assert set(CLIENTS) == {*MEMBERS, "kcat", "kafkajs"}
    assert len(CLIENTS) == 6


@pytest.mark.parametrize("client", CLIENTS)
def test_only_the_sdk_is_told_a_url_instead_of_kafka_addresses(client: str) -> None:
    assert (TOLD.url in command(client)) == (client == "sdk")
    assert (TOLD.bootstrap in command(client)) == (client != "sdk")


@pytest.mark.parametrize("members", [1, 3, 5, 6, 7])
def test_a_mixed_group_of_every_size_has_the_sdk_in_it(members: int) -> None:
    kinds = clients_of(MIXED, members, CLIENTS)
    assert "sdk" in kinds[:members]
    assert sorted(kinds) == sorted(CLIENTS)


def test_a_group_of_one_client_has_no_other() -> None:
    assert clients_of("kcat", 5, CLIENTS) == ["kcat"]
