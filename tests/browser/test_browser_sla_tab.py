"""The SLA tab of Locust's page: rows are there, and names are text."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import NAMES, QUIET

# Locust patches the whole process for gevent, so it has one of its own. It runs with users that do nothing.
SERVER = """
import sys, gevent
from locust import User, constant
from locust.env import Environment
from georelay.process_guard import die_with_parent
from loadtest.load.live_core import COLUMNS
from loadtest.load.web import add_sla_tab

class Nobody(User):
    wait_time = constant(1)
    tasks = [lambda user: None]

die_with_parent(int(sys.argv[1]))
environment = Environment(user_classes=[Nobody])
environment.create_local_runner()
web = environment.create_web_ui("127.0.0.1", 0, delayed_start=True)
hostile = "<img src=x onerror=document.title='broken'>"
row = {"what": "deliver us->eu", "p99": "41.5", "wanted": "<= 50 ms", "verdict": "kept"}
add_sla_tab(web, lambda: [dict.fromkeys(COLUMNS, "") | row, dict.fromkeys(COLUMNS, hostile)])
environment.runner.start(1, 1)
web.start()
while not getattr(web.server, "started", False):
    gevent.sleep(0.05)
print(web.server.server_port, flush=True)
gevent.wait()
"""


@pytest.fixture
def port() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(os.getpid())], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


def test_the_tab_shows_rows_as_text_and_loads_nothing_from_elsewhere(port: int, tmp_path: Path) -> None:
    chromium = next(filter(None, map(shutil.which, NAMES)), None)
    assert chromium is not None, "Chromium is not installed. Run: apt-get install -y --no-install-recommends chromium"
    command = [chromium, "--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=9000", "--dump-dom"]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{port}/?tab=sla"], capture_output=True, text=True, timeout=90, check=True
    )
    assert ">SLA<" in done.stdout
    assert "deliver us-&gt;eu" in done.stdout
    assert "&lt;img src=x onerror=" in done.stdout
    assert "<img src=x" not in done.stdout
    assert "<title>broken" not in done.stdout
    assert "CONSOLE" not in done.stderr, done.stderr
