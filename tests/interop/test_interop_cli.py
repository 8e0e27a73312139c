"""The command line against a running mesh, as a user types it: as a process where lines come in, else in this one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from georelay.cli.application import run
from tests.tiers import first

LINES = 2_000
Typed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def typed(mesh: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Typed:
    """Return what runs a command of `georelay` in this process: one of its own takes a second of CPU to begin."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GEORELAY_USER", raising=False)
    monkeypatch.setenv("GEORELAY_GATEWAY", mesh.process.gateway)

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        ended = run(words)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(words, ended, said.out, said.err)

    return command


@pytest.fixture(scope="module")
def published(mesh: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """A file of keyed JSON lines, published; the topic and the lines."""
    topic = mesh.new_topic("cli", partitions=2)
    lines = [{"order": f"o{number % 50}", "number": number, "note": "größer"} for number in range(LINES)]
    file = tmp_path_factory.mktemp("cli") / "orders.ndjson"
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    ran = mesh.cli("publish", topic, str(file), "--key-field", "order", "--json")
    assert (ran.returncode, ran.stderr) == (0, ""), ran
    answer = json.loads(ran.stdout)
    assert answer["records"] == LINES
    assert sum(part["last"] + 1 for part in answer["partitions"].values()) == LINES
    return topic, lines


@pytest.mark.parametrize("region", [pytest.param("", marks=pytest.mark.slow), "eu"])
def test_what_was_published_is_printed_in_order_per_partition(typed: Typed, published: Any, region: str) -> None:
    topic, lines = published
    where = ("--region", region) if region else ()
    ran = typed("subscribe", topic, "--from", "earliest", "--max", str(LINES), "--json", *where)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    for partition in (0, 1):
        part = [row for row in rows if row["partition"] == partition]
        assert [row["offset"] for row in part] == list(range(len(part)))
        keys = {row["key"] for row in part}
        assert [json.loads(row["value"]) for row in part] == [line for line in lines if line["order"] in keys]
    assert len(rows) == LINES


def test_brokers_and_gateway_were_forked_from_one_process_that_had_imported(mesh: Any) -> None:
    assert (mesh.process.directory / "mesh" / "logs" / "nursery.log").read_text() == ""  # it says there why not


@pytest.mark.slow
def test_one_partition_from_an_offset(mesh: Any, published: Any) -> None:
    ran = mesh.cli("subscribe", published[0], "--from", "100", "--partition", "1", "--max", "3", "--json")
    assert [json.loads(line)["offset"] for line in ran.stdout.splitlines()] == [100, 101, 102]


@pytest.mark.slow
def test_nothing_new_ends_after_the_idle_time(mesh: Any, published: Any) -> None:
    ran = mesh.cli("subscribe", published[0], "--idle-exit", "0.3")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_standard_input_is_published(mesh: Any, typed: Typed) -> None:
    topic = mesh.new_topic("cli-stdin", partitions=1)
    assert mesh.cli("publish", topic, "-", stdin=b"a:1\r\nb:2\n\n").returncode == 0
    ran = typed("subscribe", topic, "--from", "earliest", "--max", "3")
    assert ran.stdout == "a:1\nb:2\n\n"


@pytest.mark.slow
def test_topics_are_created_listed_described_and_deleted(mesh: Any) -> None:
    name = mesh.new_name("cli-topic")
    created = mesh.cli("topics", "create", name, "--partitions", "3", "--home", "eu")
    assert (created.returncode, created.stdout) == (0, f"created topic {name}\n"), created
    listed = json.loads(mesh.cli("topics", "list", "--json").stdout)
    assert [(row["partitions"], row["home"]) for row in listed if row["name"] == name] == [(3, 2)]
    described = mesh.cli("topics", "describe", name).stdout
    assert f"name: {name}" in described
    assert "partitions: 3" in described
    assert mesh.cli("topics", "delete", name).stdout == f"deleted topic {name}\n"
    again = mesh.cli("topics", "delete", name)
    assert_one_line(again, 1, name)


def test_the_status_shows_regions_brokers_leaders_and_lag(mesh: Any, typed: Typed, published: Any) -> None:
    text = typed("status").stdout
    assert f"mesh {mesh.process.endpoints['mesh']}" in text
    rows = [line.split() for line in text.splitlines() if line.startswith(published[0] + " ")]
    assert len(rows) == 2 * len(mesh.regions)
    assert {(row[3], row[5]) for row in rows} == {
        ("us", "home"),
        *((region, "mirror") for region in mesh.regions[1:]),
    }, rows
    document = json.loads(typed("status", "--json").stdout)
    assert {region["region"] for region in document["regions"]} == set(mesh.regions)


def test_an_audit_finds_the_same_records_in_every_region(typed: Typed, published: Any) -> None:
    ran = typed("audit", published[0])
    assert ran.returncode == 0, ran
    assert published[0] in ran.stdout


def assert_one_line(ran: Any, code: int, *texts: str) -> None:
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (code, "", 1), ran
    assert ran.stderr.startswith("georelay")
    assert "Traceback" not in ran.stderr
    for text in texts:
        assert text in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("topics", "describe", "no-such-topic"), 1, "no-such-topic"),
        (("topics", "delete", "no-such-topic"), 1, "no-such-topic"),
        (("subscribe", "no-such-topic"), 1, "no-such-topic"),
        (("publish", "us.mirror"), 1, "us.mirror"),
        (("publish", "not a name"), 1, "not a name"),
        (("publish", "t", "no-such-file"), 1, "no-such-file"),
        (("topics", "create", "t", "--home", "mars"), 1, "mars"),
        (("topics", "create", "eu.t"), 1, "eu."),
        (("topics", "create", "t", "--replication-factor", "5"), 1, "5"),
        (("subscribe", "t", "--region", "mars"), 1, "mars"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_clear_line(
    typed: Typed, arguments: tuple[str, ...], code: int, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the command line itself refuses is tested without a mesh, this is what the mesh refuses."""
    (tmp_path / "stdin").write_text("x\n")
    with (tmp_path / "stdin").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        ran = typed(*arguments)
    assert_one_line(ran, code, text)


@pytest.mark.parametrize("data", first(1, ["same", "strange"]))
def test_a_data_directory_that_cannot_be_used_is_named(mesh: Any, tmp_path: Path, data: str) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    directory = mesh.process.directory / "mesh" if data == "same" else tmp_path
    assert_one_line(mesh.cli("up", "--data", str(directory)), 2, str(directory))


@pytest.mark.slow
def test_another_mesh_on_taken_ports_is_refused(mesh: Any, tmp_path: Path) -> None:
    port = mesh.addresses("us", "kafka")[0].split(":")[1]
    ran = mesh.cli("up", "--data", str(tmp_path / "data"), "--base-port", port, "--brokers-per-region", "1")
    assert_one_line(ran, 2, "--base-port", port)
