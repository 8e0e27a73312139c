"""Pages in a real browser. `make browser` runs these tests and says what is missing; other runs do not collect them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Browse = Callable[[str], "subprocess.CompletedProcess[str]"]
NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("gpu", "quic", "background-networking", "component-update", "sync")
collect_ignore_glob = [] if os.environ.get("GEORELAY_BROWSER") else ["test_*.py"]


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    """Open a page as a file, without network; return the document as the browser built it, and its complaints."""
    chromium = next(filter(None, map(shutil.which, NAMES)), None)
    if chromium is None:
        pytest.fail("Chromium is not installed. Run: apt-get install -y --no-install-recommends chromium")

    def open_page(page: str) -> subprocess.CompletedProcess[str]:
        path = tmp_path / "page.html"
        path.write_text(page, encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]
        options += ["--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
        command = [chromium, *options, path.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    return open_page
