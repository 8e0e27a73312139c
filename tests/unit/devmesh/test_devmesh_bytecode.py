"""What ten processes are about to import is compiled by one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from region.devmesh import bytecode


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that is found as ours are."""
    folder = tmp_path / "compiled_for_a_test"
    (folder / "inner").mkdir(parents=True)
    for path in (folder / "__init__.py", folder / "inner" / "__init__.py", folder / "inner" / "some.py"):
        path.write_text("NUMBER = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(bytecode, "PACKAGES", ("compiled_for_a_test", "a_package_that_is_not_installed"))
    return folder


def test_every_module_is_compiled_where_python_looks_for_it_whatever_it_may_keep_itself(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    bytecode.compile_packages()
    compiled = Path(importlib.util.cache_from_source(str(package / "inner" / "some.py")))
    assert compiled.is_file()
    before = compiled.stat().st_mtime_ns
    bytecode.compile_packages()
    assert compiled.stat().st_mtime_ns == before


def test_a_module_that_cannot_be_compiled_is_left_to_who_imports_it(package: Path) -> None:
    (package / "broken.py").write_text("def (\n")
    bytecode.compile_packages()
    assert Path(importlib.util.cache_from_source(str(package / "inner" / "some.py"))).is_file()


def test_all_of_ours_are_named() -> None:
    assert all(importlib.util.find_spec(name) is not None for name in ("georelay", "mesh", "region", "gateway"))
    assert bytecode.PACKAGES == ("georelay", "mesh", "region", "gateway")
