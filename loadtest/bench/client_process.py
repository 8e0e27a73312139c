"""Clients of a benchmark as processes: what they print is one line of JSON, their result."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

from loadtest.bench.client_settings import PLAIN, Settings, environment

SECONDS_MAX: Final = 180


def start(module: str, *arguments: object, settings: Settings = PLAIN) -> subprocess.Popen[bytes]:
    """Start `python -m MODULE ARGUMENTS`; `settings`: how it connects."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(settings))


def said(process: subprocess.Popen[bytes]) -> str:
    """Return the line that it prints next."""
    assert process.stdout is not None, "start makes it"
    return process.stdout.readline().decode().strip()


def answer(process: subprocess.Popen[bytes]) -> Any:
    """Wait for its end and return its result. Raises RuntimeError: it failed; TimeoutExpired: it does not end."""
    output, _ = process.communicate(timeout=SECONDS_MAX)
    if process.returncode:
        raise RuntimeError(f"a client of the benchmark ended with {process.returncode}")
    return json.loads(output)


def ask(module: str, *arguments: object) -> Any:
    """Run one to its end and return its result. Raises as `answer` does."""
    return answer(start(module, *arguments))
