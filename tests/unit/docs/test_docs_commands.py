"""Every command that a README, ARCHITECTURE.md, CONTRIBUTING.md and docs/ name is one that its program takes.

Each is parsed by its own program, in this process, with all its options and values; nothing is done. A span that names
a command without its arguments names a command that there is.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import typer

import gateway.__main__
import region.__main__
from georelay.cli.application import PLUGIN_GROUP, build_app
from georelay.cli.location import add_tls_options
from sla import cli as sla_cli
from tests.unit.docs.written_commands import PROGRAMS, Written, commands_of

ROOT: Final = Path(__file__).resolve().parents[3]
PAGES: Final = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "sdk/README.md", "tests/sim/README.md"),
    *("deploy/README.md", "deploy/ansible/README.md", "deploy/release/INSTALL.md", "deploy/terraform/README.md"),
)
COMMANDS_MIN: Final = 300  # fewer: the documents are not read any more
ROUTE: Final = re.compile(r'"((?:/v1)?/[\w/{}.-]+)"')
NO_COMMANDS: Final = {"georelay mesh secret 1"}  # the name of a proof on the wire
NAMED_FILES: Final = ("sla-cluster/secret.conf",)  # which a parser looks into
INTERPRETED: Final = ("-", "-O")  # what follows on standard input, and an option that is only spoken of


class _Parsed(BaseException):
    """The command line was understood."""


def _stop(*_: object, **__: object) -> None:
    raise _Parsed


@functools.cache
def _all_written() -> tuple[Written, ...]:
    pages = [ROOT / name for name in PAGES] + sorted((ROOT / "docs").rglob("*.md"))
    return tuple(found for page in pages for found in commands_of(str(page.relative_to(ROOT)), page.read_text()))


@pytest.fixture
def parse_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """End a program of the standard library's parser where it has understood its words."""
    parse = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, *given: Any, **settings: Any) -> None:
        parse(self, *given, **settings)
        raise _Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)


@pytest.fixture
def named_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMED_FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)


def _ended(run: Callable[[], object]) -> str:
    """Return what is wrong with a command line, "" when it was understood."""
    try:
        run()
    except _Parsed:
        return ""
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return "it went on"


@functools.cache
def _command_tree() -> Any:
    app = build_app(importlib.metadata.entry_points(group=PLUGIN_GROUP))
    command = typer.main.get_command(app)
    add_tls_options(command)
    open_nodes = [command]
    while open_nodes:
        node = open_nodes.pop()
        if hasattr(node, "commands"):
            open_nodes += node.commands.values()
        else:
            node.callback = _stop
    return command


def _georelay(words: list[str]) -> str:
    command, rest = _command_tree(), list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    if not rest:
        return ""
    return _ended(lambda: _command_tree()(words, prog_name="georelay", standalone_mode=False))


def _sla(words: list[str]) -> str:
    parser = sla_cli._parser()
    if not words or (len(words) == 1 and f" {words[0]} " in parser.format_help()):
        return ""
    return _ended(lambda: parser.parse_args(words))


def _program(main: Callable[[], object], words: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", ["", *words])
    return _ended(main)


def _python(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    match words:
        case [name, *_] if name in INTERPRETED:
            return ""
        case ["-c", code]:
            ast.parse(code)
            return ""
        case ["-m", "pytest", *rest]:
            return _missing([word for word in rest if word.startswith("tests/")])
        case ["-m", "grpc_tools.protoc", "-I", folder, *rest]:
            return _missing([f"{folder}/{rest[-1]}"])
        case ["-m", module, *rest]:
            package = f"{module}.__main__"
            name = package if importlib.util.find_spec(module).submodule_search_locations else module  # type: ignore[union-attr]
            main = importlib.import_module(name).main
            return _program(main, rest, monkeypatch) if rest else ""
        case [path, *_]:
            return _missing([path])
    return "no module"


def _missing(paths: list[str]) -> str:
    return ", ".join(f"{path} is not there" for path in paths if not (ROOT / path).exists())


def _make(words: list[str]) -> str:
    makefile = (ROOT / "Makefile").read_text()
    wrong = []
    for word in words:
        name, is_variable, _ = word.partition("=")
        pattern = rf"\$\({name}\)" if is_variable else rf"^{re.escape(name)}:.*## "
        if re.search(pattern, makefile, flags=re.M) is None:
            wrong.append(f"the Makefile has no {name}")
    return ", ".join(wrong)


@functools.cache
def _routes() -> tuple[re.Pattern[str], ...]:
    folders = ("region/api", "gateway/rest", "mesh/tracing")
    text = "".join(path.read_text() for folder in folders for path in (ROOT / folder).glob("*.py"))
    return tuple(re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(route))) for route in set(ROUTE.findall(text)))


def _curl(words: list[str]) -> str:
    for at, word in enumerate(words):
        if word == "-d":
            json.loads(words[at + 1])
    (url,) = [word for word in words if "/" in word and not word.startswith(("{", "["))]
    path = urlsplit(url if "://" in url else f"http://{url}").path
    return "" if any(route.fullmatch(path) for route in _routes()) else f"nobody serves {path}"


def _wrong(written: Written, monkeypatch: pytest.MonkeyPatch) -> str:
    program, *words = written.words
    match program:
        case "georelay":
            return _georelay(words)
        case "georelay-sla":
            return _sla(words)
        case "georelay-broker":
            return _program(region.__main__.main, words, monkeypatch) if words else ""
        case "georelay-gateway":
            return _program(gateway.__main__.main, words, monkeypatch) if words else ""
        case "python":
            return _python(words, monkeypatch)
        case "make":
            return _make(words)
        case "curl":
            return _curl(words)
    return f"nobody checks {program}"


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.usefixtures("parse_only", "named_files")
def test_the_commands_that_documents_name_are_understood(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = []
    for written in _all_written():
        if written.words[0] == program and written.text not in NO_COMMANDS:
            reason = _wrong(written, monkeypatch)
            if reason:
                wrong.append(f"{written}\n    {reason} {capsys.readouterr().err.strip()}")
    assert not wrong, "\n".join(wrong)


def test_the_documents_are_read() -> None:
    assert len(_all_written()) > COMMANDS_MIN
    assert {written.words[0] for written in _all_written()} == set(PROGRAMS)


@pytest.mark.parametrize(
    "line",
    [
        "georelay status --colour",
        "georelay topics crate orders",
        "georelay-sla report --trails x",
        "georelay-broker --conf",
        "georelay-gateway --verbose",
        "python -m loadtest.campaign.gossip --shrink",
        "python tools/absent.py",
        "make absent",
        "make sim SPEED=1",
        "curl http://127.0.0.1:1/v1/absent",
    ],
)
@pytest.mark.usefixtures("parse_only")
def test_a_command_that_nobody_takes_is_found(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (written,) = commands_of("page.md", f"```\n$ {line}   what it does\n```")
    assert _wrong(written, monkeypatch)
