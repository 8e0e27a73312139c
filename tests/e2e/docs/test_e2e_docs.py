"""The lines that README.md and docs/ tell to type are typed, in their order, against one mesh for all pages.

Three regions of one broker and a gateway, as `georelay up` starts them. What cannot run here stands with its reason in
tests/unit/docs/lines_run_elsewhere.py.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from loadtest.mesh_process import MeshProcess
from tests.e2e.docs.pages import PAGES, Page
from tests.unit.docs.lines_run_elsewhere import ELSEWHERE
from tests.unit.docs.shell_lines import ShellLine, shell_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT: Final = Path(__file__).resolve().parents[3]
LINE_S_MAX: Final = 600  # a report's JVM beside three others on two cores
NEAREST_S_MAX: Final = 20  # another region may be the nearest for a moment; queues are of one region's clients
ERROR: Final = re.compile(r"^georelay: ")
WORD: Final = re.compile(r"[A-Za-z{][^\d]*")


class SharedMesh:
    """The mesh, and a folder for each page where its lines are typed."""

    def __init__(self, mesh: MeshProcess, directory: Path) -> None:
        self.mesh = mesh
        self._directory = directory
        regions = mesh.endpoints["regions"]
        self._names = {
            "http": mesh.endpoints["gateway"]["http"][0],
            "kafka": mesh.endpoints["gateway"]["kafka"][0],
            "root": str(ROOT),
            "data": str(mesh.directory / "mesh"),
            "endpoints": str(mesh.directory / "endpoints.json"),
            **{f"{what}_{name}": regions[name][what][0] for name in regions for what in ("kafka", "admin")},
        }

    def folder_of(self, page: Page) -> Path:
        """Make the folder of a page, from which commands find the mesh."""
        folder = self._directory / page.name.replace("/", "-")
        folder.mkdir()
        (folder / "georelay-endpoints.json").symlink_to(self._names["endpoints"])
        (folder / "exported").touch()
        (folder / "password").write_text("correct-horse-7\n")
        return folder

    def here(self, page: Page, text: str, folder: Path) -> str:
        """Return a line with what the page prints replaced by what it is here."""
        for printed, meant in page.here.items():
            if printed in text:
                is_file = meant.startswith("@")
                text = text.replace(
                    printed, (folder / meant[1:]).read_text().strip() if is_file else self._named(meant)
                )
        return re.sub(r"\b(orders|bills)\b", rf"\1-{PAGES.index(page)}", text) if page.has_own_names else text

    def _named(self, text: str) -> str:
        for name, value in self._names.items():
            text = text.replace(f"{{{name}}}", value)
        return text.replace("{{", "{").replace("}}", "}")

    def prepare(self, page: Page, line: ShellLine, folder: Path) -> None:
        """Run what the page needs before this line."""
        for begins, script in page.before.items():
            if line.text.startswith(begins):
                self._type(f"{self.here(page, self._named(script), folder)}\nexport -p > exported", folder)

    def end(self, page: Page, folder: Path) -> None:
        """Stop what lines of the page started."""
        if page.after:
            self._type(self._named(page.after), folder)

    def run(self, page: Page, line: ShellLine, folder: Path) -> str:
        """Type one line; return what is wrong with what came of it, "" if nothing."""
        is_error = any(ERROR.match(row) for row in line.shown)
        until = time.monotonic() + NEAREST_S_MAX
        while True:
            done = self._type(self.here(page, line.text, folder), folder)
            if done.returncode == 0 or is_error or "does not exist" not in done.stdout or time.monotonic() > until:
                break
            time.sleep(0.2)
        (folder / "said").write_text(done.stdout)
        if (done.returncode != 0) != is_error:
            return f"{line}\n  ended with {done.returncode}: {done.stdout}"
        first = line.shown[0].split()[0] if line.shown else ""
        wrong = WORD.fullmatch(first) is not None and first not in done.stdout
        return f"{line}\n  shows {line.shown[0]!r}, but it says: {done.stdout}" if wrong else ""

    def _type(self, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        with (folder / "password").open() as typed:
            return subprocess.run(
                ["bash", "-c", f"source ./exported\n{text}"],
                cwd=folder,
                env=environment,
                stdin=typed,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LINE_S_MAX,
                check=False,
            )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedMesh]:
    directory = tmp_path_factory.mktemp("docs")
    mesh = MeshProcess(directory / "up", regions="us,eu,ap", brokers_per_region=1, arguments=("--restart",))
    asyncio.run(mesh.__aenter__())
    try:
        yield SharedMesh(mesh, directory)
    finally:
        mesh.stop()


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_the_lines_of_the_page_do_what_it_shows(page: Page, shared: SharedMesh) -> None:
    folder = shared.folder_of(page)
    wrong = []
    try:
        for line in shell_lines(page.name, (ROOT / page.name).read_text()):
            if not any(row.has(line) for row in ELSEWHERE):
                shared.prepare(page, line, folder)
                wrong.append(shared.run(page, line, folder))
    finally:
        shared.end(page, folder)
    assert not any(wrong), "\n".join(filter(None, wrong))
