"""Every mistake of a user is one clear line on stderr and an exit code, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

EVERY_COMMAND = [
    ("publish", "t", "lines.txt"),
    ("subscribe", "t"),
    ("topics", "list"),
    ("topics", "create", "t"),
    ("topics", "delete", "t"),
    ("topics", "describe", "t"),
    ("topics", "alter", "t", "retention.ms=1000"),
    ("topics", "reassign", "t", "--replicas", "1001"),
    ("topics", "delete-records", "t", "--partition", "0", "--before", "latest"),
    ("broker", "list"),
    ("broker", "add", "1004"),
    ("broker", "drain", "1004"),
    ("broker", "remove", "1004"),
    ("status",),
]


@pytest.fixture(autouse=True)
def lines(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\n")


def assert_one_line(ran: Any, code: int, *texts: str) -> None:
    assert ran.code == code, ran
    assert ran.out == ""
    assert ran.err.count("\n") == 1, ran.err
    assert ran.err.startswith("georelay: ")
    for text in texts:
        assert text in ran.err


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=" ".join)
def test_a_gateway_that_is_down_is_named(georelay: Any, command: tuple[str, ...]) -> None:
    ran = georelay(*command, "--gateway", "http://127.0.0.1:1")
    assert_one_line(ran, 1, "cannot reach the gateway at http://127.0.0.1:1: connection refused", "georelay up")


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=" ".join)
def test_without_an_address_the_ways_to_give_one_are_named(georelay: Any, command: tuple[str, ...]) -> None:
    assert_one_line(georelay(*command), 2, "--gateway URL", "--endpoints FILE", "GEORELAY_GATEWAY")


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=" ".join)
def test_an_unknown_flag_is_named_with_the_help_to_read(georelay: Any, command: tuple[str, ...]) -> None:
    words = command[: 2 if command[0] in ("topics", "broker") else 1]
    path = " ".join(words)
    assert_one_line(georelay(*command, "--bogus"), 2, "--bogus", f"(see `georelay {path} --help`)")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("publish",), "Missing argument 'TOPIC'"),
        (("publish", "t", "--batch", "0"), "--batch"),
        (("publish", "t", "--batch", "many"), "--batch"),
        (("publish", "t", "lines.txt", "--key-field", "a", "--key-separator", ","), "exclude each other"),
        (("subscribe", "t", "--from", "yesterday"), "'yesterday' is none of earliest, latest or an offset"),
        (("subscribe", "t", "--from", "-7"), "'-7' is none of"),
        (("topics", "create", "t", "--homes", "two"), "'two' is neither one nor every"),
        (("topics", "create", "t", "--partitions", "1001"), "--partitions"),
        (("topics", "alter", "t"), "Missing argument 'NAME=VALUE...'"),
        (("topics", "alter", "t", "retention.ms"), "'retention.ms' is not NAME=VALUE"),
        (("topics", "alter", "t", "retention.ms=soon"), "use a whole number or default"),
        (("topics", "alter", "t", "retention.ms=1", "retention.ms=2"), "retention.ms is given twice"),
        (("topics", "delete-records", "t", "--before", "1"), "Missing option '--partition'"),
        (("topics", "delete-records", "t", "--partition", "0", "--before", "-1"), "'-1' is neither an offset nor"),
        (("topics", "reassign", "t", "--replicas", "us-1"), "is not a list such as 1001,1002,1003"),
        (("topics", "reassign", "t", "--replicas", "1001,1001"), "a broker stands twice"),
        (
            ("topics", "reassign", "t", "--replicas", "1001,2001", "--gateway", "http://127.0.0.1:1"),
            "belong to several regions",
        ),
        (("broker", "drain", "us-1"), "Invalid value for 'BROKER'"),
        (("tpics",), "No such command 'tpics'"),
        (("status", "--gateway", "localhost:8080"), "'localhost:8080' is not http://host:port"),
        (("status", "--gateway", "http://h:99999"), "is not http://host:port"),
        (("status", "--gateway", "http://h:1/v1"), "is not http://host:port"),
        (("status", "--gateway", "http://h:1", "--user", "ann"), "--user must be NAME:PASSWORD"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(georelay: Any, arguments: tuple[str, ...], text: str) -> None:
    assert_one_line(georelay(*arguments), 2, text)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "does not exist; `georelay up` writes it"),
        ("{", "is not JSON"),
        ("[]", "is not one of `georelay up`"),
        ('{"version": 2}', "is not one of `georelay up` (version 1)"),
        ('{"version": 1, "gateway": {"http": []}}', "names no gateway address"),
        ('{"version": 1, "gateway": {"http": ["nonsense:x"]}}', "is not http://host:port"),
    ],
)
def test_a_wrong_endpoints_file_is_named(georelay: Any, tmp_path: Path, content: str | None, text: str) -> None:
    file = tmp_path / "endpoints.json"
    if content is not None:
        file.write_text(content)
    ran = georelay("status", "--endpoints", str(file))
    assert ran.code in (1, 2)
    assert_one_line(ran, ran.code, "endpoints.json", text)


def test_a_file_that_cannot_be_read_is_named(georelay: Any, gateway: Any, tmp_path: Path) -> None:
    assert_one_line(georelay("publish", "t", "nofile", "--gateway", gateway.url), 1, "cannot read nofile: No such file")
    assert_one_line(georelay("publish", "t", str(tmp_path), "--gateway", gateway.url), 1, "cannot read", "directory")


@pytest.mark.parametrize(
    "command",
    [("publish", "t", "lines.txt"), ("subscribe", "t"), ("topics", "delete", "t"), ("topics", "describe", "t")],
    ids=" ".join,
)
def test_an_unknown_topic_is_what_the_gateway_says(georelay: Any, gateway: Any, command: tuple[str, ...]) -> None:
    unknown = gateway.problem(404, "UNKNOWN_TOPIC", "topic 't' does not exist", retry="refresh")
    for path in ("POST /v1/topics/t/records", "GET /v1/topics/t", "DELETE /v1/topics/t"):
        gateway.answers[path] = unknown
    assert_one_line(georelay(*command, "--gateway", gateway.url), 1, "topic 't' does not exist")


def test_wrong_credentials_are_what_the_gateway_says(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/topics"] = gateway.problem(
        401, "UNAUTHENTICATED", "wrong user or password", retry="sign_in"
    )
    ran = georelay("topics", "list", "--gateway", gateway.url, "--user", "ann:no")
    assert_one_line(ran, 1, "wrong user or password")
    assert "ann:no" not in ran.err


def test_something_else_behind_the_address_is_recognised(georelay: Any, gateway: Any) -> None:
    gateway.answers["GET /v1/topics"] = (404, ["no gateway"])
    assert_one_line(georelay("topics", "list", "--gateway", gateway.url), 1, "is not a georelay gateway (HTTP 404)")


def test_a_broken_plugin_costs_one_line_and_not_the_other_commands(georelay: Any, gateway: Any) -> None:
    class Broken:
        name = "up"

        def load(self) -> Any:
            raise ImportError("no module\nnamed region")

    gateway.answers["GET /v1/topics"] = (200, {"topics": []})
    ran = georelay("topics", "list", "--json", "--gateway", gateway.url, plugins=[Broken()])
    assert (ran.code, ran.out, ran.err) == (0, "[]\n", "")  # it is not even loaded
    ran = georelay("--help", plugins=[Broken()])
    assert (ran.code, "topics" in ran.out) == (0, True)
    assert ran.err == "georelay: command plugin 'up' cannot be loaded: no module\n"
    assert georelay("up", plugins=[Broken()]).err.startswith(ran.err)


def test_a_plugin_adds_its_command(georelay: Any) -> None:
    class Plugin:
        name = "hello"

        def load(self) -> Any:
            def register(app: Any) -> None:
                app.command(name="hello")(lambda: print("hello"))

            return register

    assert georelay("hello", plugins=[Plugin()]).out == "hello\n"


def test_version_is_printed(georelay: Any) -> None:
    ran = georelay("--version")
    assert (ran.code, ran.out.split()[0]) == (0, "georelay")


def test_without_arguments_the_help_is_shown(georelay: Any) -> None:
    ran = georelay()
    assert ran.code == 2
    assert "publish" in ran.err + ran.out


@pytest.mark.parametrize("prefix", ["", "http://"])
def test_the_endpoints_file_in_the_directory_is_found(georelay: Any, gateway: Any, tmp_path: Path, prefix: str) -> None:
    address = prefix + gateway.url.removeprefix("http://")
    (tmp_path / "georelay-endpoints.json").write_text(json.dumps({"version": 1, "gateway": {"http": [address]}}))
    gateway.answers["GET /v1/topics"] = (200, {"topics": []})
    assert georelay("topics", "list", "--json").code == 0


def test_a_flag_wins_over_the_environment(georelay: Any, gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEORELAY_GATEWAY", "http://127.0.0.1:1")
    monkeypatch.setenv("GEORELAY_USER", "ann:secret")
    gateway.answers["GET /v1/topics"] = (200, {"topics": []})
    assert georelay("topics", "list", "--gateway", gateway.url).code == 0
    assert gateway.headers[0]["Authorization"].lower() == "basic yw5uonnly3jlda=="
