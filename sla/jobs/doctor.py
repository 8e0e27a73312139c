"""Checks what a report needs on this machine, without starting Spark."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sla.errors import JobFailed

JAVA_MAJOR_MIN: Final = 17
JAVA_ANSWER_S_MAX: Final = 20
_PACKAGES: Final = (
    ("pyspark", (4, 2), (4, 4)),
    ("pandas", (2, 2), (3,)),
    ("pyarrow", (18,), None),
    ("jinja2", (3, 1), (4,)),
    ("matplotlib", (3, 9), (4,)),
)
_INSTALL_JAVA: Final = "install Java 17 or newer (apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
_INSTALL_PYTHON: Final = "pip install 'georelay-server[sla]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at; `text` is what was found, or the one line that repairs it."""

    name: str
    is_ok: bool
    text: str


def run_checks() -> list[Check]:
    """Return all checks, Java first."""
    return [check_java(), *(check_package(name, low, high) for name, low, high in _PACKAGES)]


def require_spark() -> None:
    """Refuse to start what needs Spark where it cannot run.

    Raises:
        JobFailed: Java or a package is missing; the line says what to install.
    """
    for check in run_checks():
        if not check.is_ok:
            raise JobFailed(f"{check.name}: {check.text}")


def check_java() -> Check:
    """Ask `java` for its version (JAVA_HOME first, as Spark does)."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if command is None:
        return Check(name="java", is_ok=False, text=f"not found: {_INSTALL_JAVA}")
    try:
        answer = subprocess.run(  # noqa: S603 (the user's own Java)
            [command, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWER_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(name="java", is_ok=False, text=f"{command} does not run ({error}): {_INSTALL_JAVA}")
    return judge_java(command, answer.stderr)


def judge_java(command: str, version_text: str) -> Check:
    """Judge the text of `java -version`."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', version_text)
    if match is None:
        return Check(name="java", is_ok=False, text=f"{command} did not say its version: {_INSTALL_JAVA}")
    major = int(match[2] or 0) if match[1] == "1" else int(match[1])  # Java 8 says 1.8
    if major < JAVA_MAJOR_MIN:
        return Check(name="java", is_ok=False, text=f"{command} is Java {major}: {_INSTALL_JAVA}")
    return Check(name="java", is_ok=True, text=f"Java {major} ({command})")


def check_package(name: str, lowest: tuple[int, ...], below: tuple[int, ...] | None) -> Check:
    """Look up an installed distribution and its version range."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name=name, is_ok=False, text=f"not installed: {_INSTALL_PYTHON}")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if numbers < lowest or (below is not None and numbers >= below):
        return Check(name=name, is_ok=False, text=f"{version} is outside the tested range: {_INSTALL_PYTHON}")
    return Check(name=name, is_ok=True, text=version)
