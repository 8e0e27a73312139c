"""The audit log: what it says, what it never says, and its file."""

from __future__ import annotations

import json
import shlex
import stat
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from region.security.access import Operation, Principal, Resource
from region.security.audit import AuditLog, grant_command

ALICE = Principal(name="User:alice o'hara", host="10.0.0.1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def audit(file: Path) -> Any:
    now = [0.0]
    log = AuditLog(file, wall_s=lambda: 1_700_000_000.0, monotonic_s=lambda: now[0])
    log.now = now  # type: ignore[attr-defined]
    yield log
    log.close()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_denial_names_the_command_that_would_allow_it(audit: Any, file: Path) -> None:
    audit.denied(ALICE, Operation.READ, Resource.TOPIC, "orders")
    (line,) = lines(file)
    assert shlex.split(line["grant"]) == [
        *("georelay", "acls", "add", "--principal", "User:alice o'hara", "--operation", "read"),
        *("--resource", "topic", "--name", "orders"),
    ]
    assert line["timestamp"] == "2023-11-14T22:13:20.000000+00:00"


def test_the_cluster_has_no_name_in_the_command_and_any_name_is_a_star() -> None:
    assert grant_command(Principal(name="User:a"), Operation.ALTER, Resource.CLUSTER, "kafka-cluster").endswith(
        "--operation alter --resource cluster"
    )
    assert grant_command(Principal(name="User:a"), Operation.WRITE, Resource.TOPIC, "").endswith("--name '*'")


def test_the_command_is_one_that_the_command_line_takes() -> None:
    from georelay.cli.acls import ResourceWord, entries_of

    for resource in Resource:
        words = shlex.split(grant_command(ALICE, Operation.READ, resource, "x"))
        flags = dict(zip(words[3::2], words[4::2], strict=True))
        entries = entries_of(
            flags["--principal"],
            [flags["--operation"]],
            ResourceWord(flags["--resource"]),
            name=flags.get("--name", ""),
            prefix="",
            host="*",
            is_denied=False,
        )
        assert entries[0]["resource"] == resource.value


def test_repeated_denials_are_counted_and_changes_are_all_written(audit: Any, file: Path) -> None:
    for _ in range(100):
        audit.denied(ALICE, Operation.READ, Resource.TOPIC, "orders")
    audit.now[0] = 10.0
    audit.denied(ALICE, Operation.READ, Resource.TOPIC, "orders")
    for _ in range(3):
        audit.changed(ALICE, "user.deleted", outcome="done", user="bob")
    assert [line.get("count") for line in lines(file)] == [1, 100, None, None, None]
    assert (audit.denials, audit.changes) == (101, 3)


def test_every_entry_of_a_change_is_written_on_lines_that_can_be_read(audit: Any, file: Path) -> None:
    entries = [f"allow User:u{number} read topic:literal:{'t' * 249}" for number in range(100)]
    audit.changed(ALICE, "acls.added", outcome="done", entries=entries)
    rows = lines(file)
    assert [entry for row in rows for entry in row["entries"].split("; ")] == entries
    assert [row["part"] for row in rows] == [f"{number} of {len(rows)}" for number in range(1, len(rows) + 1)]
    assert max(len(row["entries"]) for row in rows) < 5_000
    audit.changed(ALICE, "acls.added", outcome="ACCESS_DENIED", entries=entries)  # what was not done costs one line
    (refused,) = lines(file)[len(rows) :]
    assert refused["entries"].split("; ") == [*entries[:5], "and 95 more"]


def test_a_value_that_was_cut_says_so(audit: Any, file: Path) -> None:
    audit.administered(ALICE, "topic.altered", outcome="done", settings="s" * 1_000)
    assert lines(file)[0]["settings"].endswith("s... (1000 characters)")


def test_a_value_that_utf_8_cannot_have_is_written_all_the_same(audit: Any, file: Path) -> None:
    with capture_logs():  # the log of a broker escapes it; that of tests goes to a terminal
        audit.changed(ALICE, "quota.changed", outcome="done", of="User:\ud800")
        audit.administered(ALICE, "topic.altered", outcome="done", settings="\udfff=1")
        audit.denied(ALICE, Operation.READ, Resource.TOPIC, "\ud800")
    changed, altered, denied = lines(file)
    assert (changed["of"], altered["settings"], denied["name"]) == ("User:?", "?=1", "?")


def test_the_name_of_nobody_is_not_written(audit: Any, file: Path) -> None:
    audit.sign_in_refused(host="10.0.0.1", user="", how="PLAIN")
    assert lines(file)[0]["user"] == "(unknown)"


def test_the_file_is_for_its_owner_and_is_made_anew_when_it_was_moved_away(audit: Any, file: Path) -> None:
    audit.changed(ALICE, "user.added", outcome="done", user="bob")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.rename(file.with_suffix(".1"))
    audit.changed(ALICE, "user.added", outcome="done", user="eve")
    assert [line["user"] for line in lines(file)] == ["eve"]


def test_a_file_that_cannot_be_written_costs_one_line_in_the_log(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "no" / "such" / "directory")
    with capture_logs() as logged:
        audit.changed(ALICE, "user.added", outcome="done", user="a")
        audit.changed(ALICE, "user.added", outcome="done", user="b")
    assert [row["event"] for row in logged] == ["security.changed", "audit.file_failed", "security.changed"]
