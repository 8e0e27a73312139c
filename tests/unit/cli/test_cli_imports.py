"""What a command imports: its own room and what that needs, because imports are nearly all of its time."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

import pytest

from georelay.cli import application

RUNNER: Final = """
import json, sys
from georelay.cli.application import run
code = run(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]))
"""
NOBODY: Final = "http://127.0.0.1:1"
# What a command line that asks a gateway has no use for; pydantic is not here, because typer reads values with it.
HEAVY: Final = frozenset(
    {
        *("cryptography", "google.protobuf", "grpc", "msgpack", "prometheus_client", "pyarrow"),
        *("pyroute2", "pyspark", "structlog", "uvloop", "georelay.pki", "gateway", "sla"),
    }
)
OURS: Final = frozenset({"loadtest", "mesh", "region"})  # plugins


def _run(*arguments: str) -> tuple[int, str, set[str]]:
    ran = subprocess.run(
        [sys.executable, "-P", "-c", RUNNER, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    *_, last = ran.stdout.splitlines()
    code, modules = json.loads(last)
    return code, ran.stderr, set(modules)


def test_help_imports_no_client_and_nothing_that_runs_a_broker() -> None:
    code, _, modules = _run("--help")
    assert code == 0
    assert {f"georelay.cli.{room}" for room in application.ROOMS} <= modules
    assert not modules & (HEAVY | {"aiohttp", "rich", "region.devmesh.session", "mesh.testbed.router"})


@pytest.mark.parametrize(
    ("words", "client"),
    [(("status",), "http.client"), (("publish", "orders", "-"), "aiohttp")],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_command_imports_its_own_room_and_the_smallest_client_that_does(words: tuple[str, ...], client: str) -> None:
    code, said, modules = _run(*words, "--gateway", NOBODY)
    assert "cannot reach the gateway" in said if words[0] == "status" else code == 0  # nothing to publish
    rooms = {f"georelay.cli.{room}" for room in application.ROOMS}
    assert modules & rooms == {f"georelay.cli.{words[0]}"}
    assert not modules & (HEAVY | OURS | {"rich.progress"})
    assert client in modules
    assert client == "aiohttp" or not modules & {"aiohttp", "asyncio"}


def test_a_plugin_that_has_the_name_of_a_command_is_loaded_alone() -> None:
    code, _, modules = _run("drill", "--help")
    assert code == 0
    assert "loadtest.drill.command" in modules
    assert not modules & {"region.devmesh.command", "mesh.testbed.command", "georelay.cli.status"}


def test_the_table_of_rooms_says_what_each_room_adds() -> None:
    import typer

    added: dict[str, Any] = {}
    for room in application.ROOMS:
        app = application.build_app((), (room,))
        added[room] = tuple(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert added == dict(application.ROOMS)
