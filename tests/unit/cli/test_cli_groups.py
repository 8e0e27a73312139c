"""`georelay groups` against a fake gateway."""

from __future__ import annotations

from typing import Any

import pytest

from georelay.cli.failure import CommandFailed
from georelay.cli.groups import reset_body, timestamp_ms
from georelay.cli.printing import printable

ROW = {"group": "billing", "state": "Stable", "protocol_type": "consumer", "members": 2, "lag": 90, "coordinator": 1002}
NOTHING: dict[str, Any] = {
    "to_earliest": False,
    "to_latest": False,
    "to_offset": -1,
    "to_timestamp": "",
    "shift_by": "",
}


def test_groups_are_listed_with_their_lag(georelay: Any, gateway: Any) -> None:
    unknown = {**ROW, "group": "[red]x\x1b", "lag": None, "coordinator": -1, "protocol_type": ""}
    gateway.answers["GET /v1/groups"] = (200, {"groups": [ROW, unknown]})
    ran = georelay("groups", "list", "--state", "Stable", "--region", "eu", "--gateway", gateway.url)
    assert ran.code == 0
    lines = [line.split() for line in ran.out.splitlines()]
    assert lines[1:] == [
        ["billing", "Stable", "consumer", "2", "90", "1002"],
        ["[red]x?", "Stable", "-", "2", "-", "-"],
    ]
    assert gateway.seen[0][1] == {"states": "Stable", "region": "eu"}


def test_a_description_shows_members_and_partitions(georelay: Any, gateway: Any) -> None:
    member = {"member_id": "m-1", "client_id": "app", "is_leader": True, "partitions": {"orders": [0, 1]}}
    partition = {
        "topic": "orders", "partition": 0, "committed": 5, "high_watermark": 9, "lag": 4, "committed_ms": 0,
    }  # fmt: skip
    answer = {"group": "g/1", "state": "Stable", "lag": 4, "members": [member], "partitions": [partition]}
    gateway.answers["GET /v1/groups/g%2F1"] = (200, answer)
    ran = georelay("groups", "describe", "g/1", "--gateway", gateway.url)
    assert "m-1 (leader)  app" in ran.out
    assert "orders:0,1" in ran.out
    assert "orders  0          5          9               4    -       1970-01-01T00:00:00Z" in ran.out


def test_offsets_are_only_shown_until_execute_is_said(georelay: Any, gateway: Any) -> None:
    rows = [{"topic": "orders", "partition": 0, "committed": None, "new_offset": 3}]
    gateway.answers["POST /v1/groups/g/reset-offsets"] = (200, {"partitions": rows})
    told = ("groups", "reset-offsets", "g", "--topic", "orders", "--gateway", gateway.url)
    assert "nothing was changed" in georelay(*told, "--to-offset", "3").out
    assert "nothing was changed" not in georelay(*told, "--partition", "0", "--shift-by", "-2", "--execute").out
    assert [body for _, _, body in gateway.seen] == [
        {"to": "offset", "offset": 3, "topic": "orders", "execute": False},
        {"to": "shift", "by": -2, "topic": "orders", "execute": True, "partitions": [0]},
    ]


def test_a_dry_run_and_an_execution_exclude_each_other(georelay: Any, gateway: Any) -> None:
    ran = georelay(
        "groups",
        "reset-offsets",
        "g",
        "--topic",
        "t",
        "--to-latest",
        "--dry-run",
        "--execute",
        "--gateway",
        gateway.url,
    )
    assert (ran.code, gateway.seen) == (2, [])


def test_a_refusal_is_one_line(georelay: Any, gateway: Any) -> None:
    gateway.answers["DELETE /v1/groups/g"] = gateway.problem(409, "GROUP_NOT_EMPTY", "group 'g' has members")
    ran = georelay("groups", "delete", "g", "--gateway", gateway.url)
    assert (ran.code, ran.err) == (1, "georelay: group 'g' has members\n")


@pytest.mark.parametrize(
    "ways",
    [{}, {"to_earliest": True, "to_latest": True}, {"shift_by": "many"}, {"to_timestamp": "yesterday"}],
)
def test_exactly_one_way_has_to_be_given(ways: dict[str, Any]) -> None:
    with pytest.raises(CommandFailed):
        reset_body(**{**NOTHING, **ways})


def test_a_time_is_a_number_or_has_a_zone() -> None:
    assert timestamp_ms("1700000000000") == timestamp_ms("2023-11-14T22:13:20Z") == 1_700_000_000_000
    for text in ("2023-11-14T22:13:20", "1950-01-01T00:00:00Z"):
        with pytest.raises(CommandFailed):
            timestamp_ms(text)


def test_names_that_clients_chose_move_no_terminal() -> None:
    assert printable("a\x1b[2Jb\n") == "a?[2Jb?"
