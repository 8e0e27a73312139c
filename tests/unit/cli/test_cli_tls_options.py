"""--ca, --cert and --key of every command that talks to a gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from georelay.cli.application import build_app, run
from georelay.cli.location import add_tls_options


def commands(group: Any) -> list[Any]:
    """Return every command below a group."""
    below = getattr(group, "commands", None)
    return [group] if below is None else [command for child in below.values() for command in commands(child)]


def test_every_command_with_a_gateway_has_them_and_no_other() -> None:
    root = typer.main.get_command(build_app([]))
    add_tls_options(root)
    for command in commands(root):
        names = {name for option in command.params for name in option.opts}
        assert ("--ca" in names) is ("--gateway" in names), command.name
        assert {"--ca", "--cert", "--key"} <= names or not names & {"--ca", "--cert", "--key"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gateway", "http://127.0.0.1:1", "--ca", "x"], "--ca and --cert are for https://"),
        (["--gateway", "https://127.0.0.1:1", "--cert", "x"], "--cert and --key belong together"),
        (["--gateway", "https://127.0.0.1:1", "--ca", "nowhere"], "cannot read nowhere"),
    ],
)
def test_what_cannot_be_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert run(["topics", "list", *arguments], []) != 0
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_the_authority_of_the_endpoints_file_is_trusted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    endpoints = tmp_path / "e.json"
    document = {"version": 1, "gateway": {"http": ["127.0.0.1:1"]}, "ca": str(tmp_path / "gone.crt")}
    endpoints.write_text(json.dumps(document))
    assert run(["topics", "list", "--endpoints", str(endpoints)], []) == 1
    assert f"cannot read {tmp_path / 'gone.crt'}" in capsys.readouterr().err


def test_a_key_of_a_pool_is_not_taken_for_the_file_of_a_tls_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["keys", "use", "1697b48f049f", "--gateway", "https://127.0.0.1:1"], []) == 1
    assert "belong together" not in capsys.readouterr().err
