"""`georelay report` hands over to the report's own program."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from georelay.cli.application import run
from georelay.cli.failure import CommandFailed
from georelay.cli.report import PROGRAM, find_program


def program(folder: Path, text: str) -> Path:
    path = folder / PROGRAM
    path.write_text(f"#!{sys.executable}\n{text}\n")
    path.chmod(0o755)
    return path


def test_options_and_the_exit_code_pass_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path, "import sys; print(sys.argv[1:]); sys.exit(3)")
    monkeypatch.setattr("georelay.cli.report.find_program", lambda: tmp_path / PROGRAM)
    code = run(["report", "all", "--last", "24h", "--fail-on=never", "--help"], plugins=())
    assert (code, capfd.readouterr().out) == (3, "['report', 'all', '--last', '24h', '--fail-on=never', '--help']\n")


def test_the_program_of_the_same_environment_is_run_or_the_line_says_what_to_install(tmp_path: Path) -> None:
    interpreter = str(tmp_path / "python")
    with pytest.raises(CommandFailed, match=r"pip install 'georelay-server\[sla\]'"):
        find_program(interpreter)
    program(tmp_path, "")
    assert find_program(interpreter) == tmp_path / PROGRAM


SLOW_TO_END = """
import os, signal, sys, time
def ended(*_):
    time.sleep(0.5)  # Java takes its time: longer than subprocess.run gives a child after an interrupt
    print("stopped in order", flush=True)
    sys.exit(130)
signal.signal(signal.SIGINT, ended)
os.kill(os.getppid(), signal.SIGINT)  # as a terminal does: everybody in the foreground gets it
os.kill(os.getpid(), signal.SIGINT)
"""


def test_an_interrupt_leaves_the_program_the_time_that_it_needs_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path, SLOW_TO_END)
    monkeypatch.setattr("georelay.cli.report.find_program", lambda: tmp_path / PROGRAM)
    before = signal.getsignal(signal.SIGINT)
    assert (run(["report"], plugins=()), capfd.readouterr().out) == (130, "stopped in order\n")
    assert signal.getsignal(signal.SIGINT) is before
