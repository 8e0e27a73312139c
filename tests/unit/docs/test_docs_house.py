"""Rules of the house that no other tool holds: sizes, limits, links and words in documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from georelay import limits

LINES_MAX = 600
NAMES_REFUSED = {"utils", "helpers", "common", "manager", "base", "util", "misc"}
UNITS = {"KIB", "MIB"}
REPOSITORY_PATH = re.compile(
    r"(?<![\w./-])((?:sdk|mesh|region|gateway|sla|loadtest|deploy|proto|tests|tools|docs|\.ci)/[\w./-]*[\w/])"
)
WRITTEN_BY_RUNS = {"docs/config.md"}


def test_no_python_file_outside_tests_is_longer_than_a_reader_holds(python_files: list[Path], root: Path) -> None:
    lengths = {str(path.relative_to(root)): len(path.read_text().splitlines()) for path in python_files}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_MAX} == {}


def test_every_module_says_what_it_is_for(python_files: list[Path], root: Path) -> None:
    silent = []
    for path in python_files:
        text = re.sub(r"\A#!.*\n", "", path.read_text())
        if text.strip() and not text.lstrip().startswith(('"""', 'r"""')):
            silent.append(str(path.relative_to(root)))
    assert silent == []


def test_no_module_has_a_name_that_says_nothing(python_files: list[Path], root: Path) -> None:
    names = [path.relative_to(root) for path in python_files]  # a checkout's own folder may be named anything
    assert [str(name) for name in names if NAMES_REFUSED & {name.stem, name.parent.name}] == []


def test_every_limit_is_enforced_somewhere(python_files: list[Path]) -> None:
    names = {name for name in vars(limits) if re.fullmatch(r"[A-Z][A-Z0-9_]+", name)} - UNITS
    used: set[str] = set()
    for path in python_files:
        if path.name != "limits.py":
            used |= names & set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", path.read_text()))
    assert sorted(names - used) == []


def test_documents_name_no_path_of_a_machine(documents: list[Path], root: Path) -> None:
    machine = re.compile(r"(?<![\w.:/])/(?:home|root|Users|tmp|work|var|opt|mnt|workspace)/")
    found = {str(path.relative_to(root)): machine.findall(path.read_text()) for path in documents}
    assert {name: paths for name, paths in found.items() if paths} == {}


def test_links_between_documents_lead_somewhere(documents: list[Path]) -> None:
    broken = []
    for path in documents:
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.name}: {target}")
    assert broken == []


def test_paths_that_documents_name_exist(documents: list[Path], root: Path) -> None:
    missing = []
    for path in documents:
        for span in re.findall(r"`([^`\n]+)`", path.read_text()):
            for named in REPOSITORY_PATH.findall(span):
                if not (root / named).exists():
                    missing.append(f"{path.relative_to(root)}: {named}")
    assert missing == []


@pytest.mark.parametrize("target", ["demo", "test", "check", "bench", "fuzz", "golden", "clean", "setup", "help"])
def test_the_targets_that_documents_name_are_in_the_makefile(root: Path, target: str) -> None:
    assert re.search(rf"^{target}:.*## ", (root / "Makefile").read_text(), flags=re.M)


def test_decisions_are_numbered_without_a_gap_and_have_their_four_parts(root: Path) -> None:
    decisions = sorted((root / "docs/adr").glob("[0-9]*.md"))
    assert [int(path.name[:4]) for path in decisions] == list(range(1, len(decisions) + 1))
    for path in decisions:
        text = path.read_text()
        assert text.startswith(f"# {int(path.name[:4])}. ")
        assert all(f"**{part}.**" in text for part in ("Context", "Decision", "Evidence", "Consequences")), path.name


def test_decisions_that_code_and_documents_cite_exist(
    python_files: list[Path], documents: list[Path], root: Path
) -> None:
    cited = {
        number
        for path in [*python_files, *documents]
        for number in re.findall(r"(?:ADR |docs/adr/|\()(0\d{3})\b", path.read_text())
    }
    there = {path.name[:4] for path in (root / "docs/adr").glob("[0-9]*.md")}
    assert cited <= there
