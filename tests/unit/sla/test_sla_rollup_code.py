"""The hash of the code that makes roll-ups knows every module that makes a row of them."""

from __future__ import annotations

import ast
import importlib.resources
import importlib.util
from pathlib import Path

import pytest

from sla.jobs import rollup_code

MAKERS = ("sla.jobs.rollup_tables", "sla.jobs.rollup_inputs", "sla.jobs.rollup_plan")
NOTHING_OF_A_ROW = {  # -> why another version of it makes the same rows
    "georelay.errors": "texts",
    "georelay.trace.files": "names and metadata of files, which the hash of the input has",
    "sla.day_files": "copies rows",
    "sla.day_sums": "adds up rows",
    "sla.errors": "texts",
    "sla.rollup_files_core": "which files stand for an hour",
    "sla.rollup_manifests": "what an hour was made of",
    "sla.rollups": "where rows stand",
    "sla.session": "settings of Spark",
    "sla.sources.arrowfs": "reads rows; what it hands on is counted",
    "sla.sources.layout": "names of folders",
    "sla.sources.location": "reads files",
    "sla.sources.reading": "reads rows; what it hands on is counted",
    "sla.sources.verify": "proves files; what is good is counted",
    "sla.spark_properties": "settings of Spark",
}


def imports_of(module: str) -> set[str]:
    """Return the modules of ours that a module imports."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, module
    found = set()
    for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name for name in names if name.startswith(("sla.", "georelay.")) and is_module(name)}
    return found


def is_module(name: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # a name in a module
        return False
    return spec is not None and spec.submodule_search_locations is None


def test_every_module_that_makes_a_table_is_in_the_hash_of_the_code() -> None:
    reached, left = set[str](), list(MAKERS)
    while left:
        module = left.pop()
        if module not in reached:
            reached.add(module)
            left += imports_of(module) - set(NOTHING_OF_A_ROW)
    assert reached == set(rollup_code.MODULES)
    assert not set(NOTHING_OF_A_ROW) & set(rollup_code.MODULES)


@pytest.mark.parametrize("module", rollup_code.MODULES)
def test_another_byte_in_any_of_them_is_another_version(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rollup_code.code_version()
    files = importlib.resources.files

    class Changed:
        def __init__(self, package: str) -> None:
            self.package = package

        def joinpath(self, name: str) -> Changed:
            self.name = name
            return self

        def read_bytes(self) -> bytes:
            raw = files(self.package).joinpath(self.name).read_bytes()
            return raw + b"#" if f"{self.package}.{self.name}" == f"{module}.py" else raw

    monkeypatch.setattr(importlib.resources, "files", Changed)
    assert rollup_code.code_version() != before
