"""What plays of deploy/ansible call is there: verbs of the product, task files, roles, units."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
from typer.main import get_command

from georelay.cli.application import build_app
from tests.tiers import in_one_test

yaml = pytest.importorskip("yaml")
PLAYS = Path(__file__).resolve().parents[3] / "deploy" / "ansible"
FILES = sorted([*PLAYS.glob("*.yml"), *PLAYS.glob("tasks/*.yml"), *PLAYS.glob("roles/*/tasks/*.yml")])
README = (PLAYS / "README.md").read_text()


def nodes(found: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping of a document."""
    if isinstance(found, dict):
        yield found
    for inner in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from nodes(inner)


def mappings(file: Path) -> Iterator[dict[str, Any]]:
    return nodes(yaml.safe_load(file.read_text()))


def literal_words(value: Any) -> list[str]:
    """Return the words of a verb up to the first that is not known before a play runs."""
    words = value if isinstance(value, list) else re.findall(r"'([a-z-]+)'|(\{\{)", str(value).partition("[")[2])
    found: list[str] = []
    for word in words:
        text = word if isinstance(word, str) else word[0]
        if not re.fullmatch(r"[a-z][a-z-]*", text):
            break
        found.append(text)
    return found


def test_verbs_that_plays_ask_are_verbs_of_the_product() -> None:
    asked = [(file.name, row["verb_words"]) for file in FILES for row in mappings(file) if "verb_words" in row]
    assert len(asked) >= 10
    whole = get_command(build_app(()))
    for name, value in asked:
        command: Any = whole
        words = literal_words(value)
        assert words, f"{name}: {value}"
        for word in words:
            if not hasattr(command, "commands"):
                break
            assert word in command.commands, f"{name}: georelay {' '.join(words)}"
            command = command.commands[word]
        assert not hasattr(command, "commands"), f"{name}: georelay {' '.join(words)} is a group of commands"


@in_one_test("file", FILES)
def test_tasks_and_roles_that_a_file_names_are_there(file: Path) -> None:
    for row in mappings(file):
        included = row.get("ansible.builtin.include_tasks")
        if included is not None:
            named = included if isinstance(included, str) else included["file"]
            assert (file.parent / named).exists() or (PLAYS / named).exists(), named
        role = row.get("ansible.builtin.include_role") or row.get("ansible.builtin.import_role")
        if role is not None:
            assert (PLAYS / "roles" / role["name"] / "tasks" / f"{role.get('tasks_from', 'main')}.yml").exists(), role


def test_every_play_has_its_line_in_the_readme() -> None:
    for play in PLAYS.glob("*.yml"):
        assert f"`{play.name}" in README, play.name


def test_every_task_says_what_it_is_for() -> None:
    for file in FILES:
        for row in mappings(file):
            if any(str(key).startswith("ansible.builtin.") for key in row):
                assert row.get("name"), f"{file.name}: {row}"


def test_an_upgrade_that_fails_ends_when_the_mesh_is_whole_again_and_says_so_whatever_it_finds() -> None:
    (rescue,) = (row["rescue"] for row in mappings(PLAYS / "tasks/upgrade.yml") if "rescue" in row)
    last = rescue[-1]
    assert [row["ansible.builtin.include_tasks"] for row in last["block"]] == ["whole.yml"]
    assert "did not become ready" in last["always"][0]["ansible.builtin.fail"]["msg"]


def test_units_that_ship_traces_are_those_of_deploy_systemd() -> None:
    (units,) = [row["loop"] for row in mappings(PLAYS / "roles/traces/tasks/main.yml") if "loop" in row]
    for unit in units:
        assert (PLAYS.parent / "systemd" / unit).exists()


def joining(record: dict[str, Any], region: str, hosts: dict[str, str]) -> dict[str, Any]:
    """Return what templates/region.json.j2 makes of an inventory."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    environment.filters["to_json"] = json.dumps
    environment.filters["regex_replace"] = lambda text, old, new: re.sub(old, new, text)
    environment.tests["match"] = lambda text, pattern: re.match(pattern, text) is not None
    text = environment.from_string((PLAYS / "templates/region.json.j2").read_text()).render(
        region=region,
        region_number=4,
        groups={"brokers": list(hosts)},
        georelay_regions=sorted({name.partition(".")[2] for name in hosts}),
        georelay_record=record,
        georelay_ports={"broker": {"link": 9095}},
        hostvars={name: {"georelay_address": address} for name, address in hosts.items()},
    )
    answer: dict[str, Any] = json.loads(text)
    return answer


def test_a_region_that_joins_is_founded_by_its_own_brokers_and_asks_those_of_regions_that_stayed() -> None:
    record = {
        "regions": {
            "us": {"number": 1, "brokers": [2, 3]},
            "eu": {"number": 2, "brokers": [1]},
            "ap": {"number": 3, "brokers": []},  # retired
        }
    }
    hosts = {
        "broker-2.us": "10.1.1.12",
        "broker-1.eu": "10.2.2.11",
        "broker-1.sa": "10.4.4.11",
        "broker-3.sa": "10.4.4.13",
    }
    assert joining(record, "sa", hosts) == {
        "links": ["4001@10.4.4.11:9095", "4003@10.4.4.13:9095"],
        "record": {
            "number": 4,
            "founders": 2,
            "brokers": [1, 3],
            "seeds": ["10.4.4.11", "10.4.4.13"],
            "join": ["2001@10.2.2.11:9095", "1002@10.1.1.12:9095"],
        },
    }


def test_a_region_that_joined_half_way_is_not_its_own_way_into_the_mesh() -> None:
    record = {"regions": {"us": {"number": 1, "brokers": [1]}, "sa": {"number": 4, "brokers": [1]}}}
    found = joining(record, "sa", {"broker-1.us": "10.1.1.11", "broker-1.sa": "10.4.4.11"})
    assert found["record"]["join"] == ["1001@10.1.1.11:9095"]
