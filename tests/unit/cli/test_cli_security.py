"""`georelay users|acls|quotas`, against a fake gateway: what is asked for, and where passwords come from."""

from __future__ import annotations

import getpass
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from georelay.cli.application import run
from georelay.cli.location import TOKEN_VARIABLE
from georelay.client.gateway_http import GatewayError
from georelay.credentials import Credentials
from georelay.errors import Outcome, Retry

PASSWORD = "correct horse battery"


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let standard input hold these lines."""

    def type_in(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))

    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    return type_in


def test_a_password_is_read_from_standard_input_and_shown_nowhere(georelay: Any, gateway: Any, typed: Any) -> None:
    gateway.answers["POST /v1/users"] = (201, {"name": "ann"})
    typed(f"{PASSWORD}\nmore\n")
    ran = georelay("users", "add", "ann", "--gateway", gateway.url)
    assert gateway.seen == [("POST /v1/users", {}, {"name": "ann", "password": PASSWORD})]
    assert ran.code == 0 and "user ann added" in ran.out and PASSWORD not in ran.out + ran.err


def test_a_users_file_lets_its_user_in_and_replaces_none(georelay: Any, typed: Any, tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    typed(f"{PASSWORD}\n")
    assert georelay("users", "file", str(file), "admin").code == 0
    assert Credentials.load(file).verify("admin", PASSWORD)
    assert file.stat().st_mode & 0o777 == 0o600
    typed("another password\n")
    ran = georelay("users", "file", str(file), "admin")
    assert ran.code == 1 and "is there already" in ran.err
    assert Credentials.load(file).verify("admin", PASSWORD)


def test_a_terminal_is_asked_twice(georelay: Any, gateway: Any, typed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.answers["PATCH /v1/users/ann"] = (200, {"name": "ann"})
    typed("")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    answers = iter([PASSWORD, "another"])
    monkeypatch.setattr(getpass, "getpass", lambda _: next(answers))
    ran = georelay("users", "password", "ann", "--gateway", gateway.url)
    assert (ran.code, gateway.seen) == (2, []) and "differ" in ran.err
    answers = iter([PASSWORD, PASSWORD])
    assert georelay("users", "password", "ann", "--gateway", gateway.url).code == 0
    assert gateway.seen == [("PATCH /v1/users/ann", {}, {"password": PASSWORD})]


def test_no_password_is_no_user(georelay: Any, gateway: Any, typed: Any) -> None:
    typed("")
    ran = georelay("users", "add", "ann", "--gateway", gateway.url)
    assert (ran.code, gateway.seen) == (2, [])


def test_there_is_no_option_for_a_password(georelay: Any, gateway: Any) -> None:
    assert georelay("users", "add", "ann", "--password", "x", "--gateway", gateway.url).code == 2


def test_users_are_listed_with_their_states(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/users"] = (
        200,
        {
            "users": [
                {"name": "ann", "enabled": True, "expires_s": None, "mechanisms": ["SCRAM-SHA-256"], "tokens": []},
                {
                    "name": "bob",
                    "enabled": True,
                    "expires_s": 1,
                    "mechanisms": [],
                    "tokens": [{"name": "ci", "expires_s": 1_700_000_000}],
                },
            ]
        },
    )
    lines = georelay("users", "list", "--gateway", gateway.url).out.splitlines()
    assert lines[1].split()[:3] == ["ann", "enabled", "never"]
    assert "expired" in lines[2] and "ci until 2023-11-14" in lines[2] and "token or certificate only" in lines[2]


@pytest.mark.parametrize(("word", "enabled"), [("disable", False), ("enable", True)])
def test_users_are_disabled_and_enabled(georelay: Any, gateway: Any, word: str, enabled: bool) -> None:
    gateway.answers["PATCH /v1/users/a%20b"] = (200, {})
    assert georelay("users", word, "a b", "--gateway", gateway.url).code == 0
    assert gateway.seen == [("PATCH /v1/users/a%20b", {}, {"enabled": enabled})]


def test_a_token_is_the_only_thing_on_standard_output(georelay: Any, gateway: Any) -> None:
    gateway.answers["POST /v1/users/ann/tokens"] = (201, {"token": "grt_x", "name": "ci"})
    gateway.answers["DELETE /v1/users/ann/tokens/ci"] = (204, {})
    assert georelay("users", "token", "ann", "ci", "--days", "7", "--gateway", gateway.url).out == "grt_x\n"
    assert gateway.seen[0][2] == {"name": "ci", "days": 7}


def test_a_token_in_the_environment_signs_in(georelay: Any, gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.answers["GET /v1/users"] = (200, {"users": []})
    monkeypatch.setenv(TOKEN_VARIABLE, "grt_x")
    georelay("users", "list", "--gateway", gateway.url)
    georelay("users", "list", "--gateway", gateway.url, "--user", "ann:pw")
    assert gateway.headers[0]["Authorization"] == "bearer grt_x"
    assert gateway.headers[1]["Authorization"].startswith("basic ")


@pytest.mark.parametrize(
    ("arguments", "entry"),
    [
        (
            ("--resource", "topic", "--name", "orders"),
            {"resource": "topic", "name": "orders", "pattern": "literal", "permission": "allow", "host": "*"},
        ),
        (
            ("--resource", "group", "--prefix", "g.", "--deny", "--host", "10.0.0.1"),
            {"resource": "group", "name": "g.", "pattern": "prefixed", "permission": "deny", "host": "10.0.0.1"},
        ),
        (("--resource", "cluster"), {"resource": "cluster", "permission": "allow", "host": "*"}),
    ],
)
def test_entries_are_added_one_per_operation(georelay: Any, gateway: Any, arguments: Any, entry: Any) -> None:
    gateway.answers["POST /v1/acls"] = (201, {})
    common = ("--principal", "User:ann", "--operation", "read", "--operation", "DESCRIBE-CONFIGS")
    assert georelay("acls", "add", *common, *arguments, "--gateway", gateway.url).code == 0
    assert gateway.seen[0][2] == {
        "entries": [
            {**entry, "principal": "User:ann", "operation": operation} for operation in ("read", "describe_configs")
        ]
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("--resource", "topic"),
        ("--resource", "topic", "--name", "a", "--prefix", "b"),
        ("--resource", "cluster", "--name", "a"),
        ("--resource", "moon", "--name", "a"),
    ],
)
def test_an_entry_about_nothing_is_a_mistake(georelay: Any, gateway: Any, arguments: Any) -> None:
    common = ("--principal", "User:ann", "--operation", "read")
    assert georelay("acls", "add", *common, *arguments, "--gateway", gateway.url).code == 2
    assert gateway.seen == []


def test_entries_of_one_principal_are_listed(georelay: Any, gateway: Any) -> None:
    rows = [{"principal": f"User:{name}", "operation": "read", "resource": "topic"} for name in ("ann", "bob")]
    gateway.answers["GET /v1/acls"] = (200, {"entries": rows})
    out = georelay("acls", "list", "--principal", "User:bob", "--json", "--gateway", gateway.url).out
    assert json.loads(out) == [rows[1]]


def test_quotas_are_set_and_listed(georelay: Any, gateway: Any) -> None:
    gateway.answers["POST /v1/quotas"] = (200, {})
    gateway.answers["GET /v1/quotas"] = (
        200,
        {"quotas": [{"principal": "User:*", "produce_bytes_per_s": 5, "request_share_ppm": 125_000}]},
    )
    arguments = ("--produce-bytes-per-s", "0", "--request-percent", "12.5")
    assert georelay("quotas", "set", "User:ann", *arguments, "--gateway", gateway.url).code == 0
    assert gateway.seen[0][2] == {"principal": "User:ann", "produce_bytes_per_s": 0, "request_share_ppm": 125_000}
    assert georelay("quotas", "list", "--gateway", gateway.url).out.splitlines()[1].split() == [
        "User:*",
        "5",
        "-",
        "12.5",
    ]
    assert georelay("quotas", "set", "User:ann", "--gateway", gateway.url).code == 2


def test_who_is_not_signed_in_is_told_so_in_words_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise GatewayError(
            "sign in: send 'authorization: basic base64(user:password)'",
            code="UNAUTHENTICATED",
            outcome=Outcome.NOT_STORED,
            retry=Retry.NEVER,
        )

    monkeypatch.setattr("georelay.cli.users.ask", refuse)
    assert run(["users", "delete", "ann", "--gateway", "http://127.0.0.1:1"]) == 1
    told = capsys.readouterr().err
    assert "--user NAME:PASSWORD" in told and "authorization" not in told
