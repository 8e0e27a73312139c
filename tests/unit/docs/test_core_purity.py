"""Every core is pure: its imports are walked, because import-linter cannot match a suffix."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

IMPURE = frozenset(
    {
        *("asyncio", "uvloop", "socket", "selectors", "ssl", "grpc", "aiohttp"),
        *("time", "random", "secrets"),
        *("os", "pathlib", "shutil", "tempfile", "subprocess", "signal", "pyarrow"),
        *("logging", "structlog", "prometheus_client", "rich", "typer"),
        *("threading", "multiprocessing", "concurrent", "queue"),
    }
)
CLOCK_CALLS = frozenset({"now", "utcnow", "today"})


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the top-level names a module imports when it runs (TYPE_CHECKING blocks do not)."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def calls(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names of plain functions and of methods that a module calls."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Call):
            target = node.func
            if isinstance(target, ast.Name):
                found.add(target.id)
            elif isinstance(target, ast.Attribute):
                found.add(target.attr)
    return found


def is_core(path: Path, root: Path) -> bool:
    return path.name.endswith("_core.py") or path.is_relative_to(root / "region" / "raft" / "core")


@pytest.fixture(scope="module")
def cores(python_files: list[Path], root: Path) -> dict[str, list[ast.AST]]:
    """Return the nodes of each core: walking takes longer than parsing, and every rule looks at all of them."""
    paths = (path for path in python_files if is_core(path, root))
    return {str(path.relative_to(root)): [*ast.walk(ast.parse(path.read_text()))] for path in paths}


def test_the_walk_finds_cores_in_every_room_that_has_one(cores: dict[str, list[ast.AST]]) -> None:
    rooms = {name.partition("/")[0] for name in cores}
    assert rooms >= {"mesh", "region", "gateway"}
    assert len(cores) >= 15


def test_no_core_imports_io_clock_randomness_threads_or_logs(cores: dict[str, list[ast.AST]]) -> None:
    assert {name: found for name, nodes in cores.items() if (found := imported(nodes) & IMPURE)} == {}


def test_no_core_opens_files_prints_or_asks_the_wall_clock(cores: dict[str, list[ast.AST]]) -> None:
    forbidden = {"open", "print", "input", "exec", "eval"} | CLOCK_CALLS
    assert {name: found for name, nodes in cores.items() if (found := calls(nodes) & forbidden)} == {}


def test_no_core_awaits(cores: dict[str, list[ast.AST]]) -> None:
    waiting = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    assert [name for name, nodes in cores.items() if any(isinstance(node, waiting) for node in nodes)] == []


def test_the_walk_sees_a_forbidden_import() -> None:
    tree = ast.parse("def f():\n    import time\n    from os import path\n")
    assert imported(ast.walk(tree)) & IMPURE == {"time", "os"}
