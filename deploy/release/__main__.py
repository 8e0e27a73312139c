"""`python -m deploy.release`: builds dist/georelay-<version>.tar.gz from the commit that is checked out.

Rule 1: what is built is the commit: a changed tree is refused, and a copy of the commit is what the wheels are made of.
Rule 2: two builds of one commit are equal byte by byte: times are the commit's, versions those of constraints.txt.
        What is not ours comes as it was published; only pyspark, which is published as source, is built here.
Rule 3: a release is written whole or not at all, and only after pip has resolved it from its own wheels alone.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.release.archive import unpack, write_archive, write_checksums
from deploy.release.bill_of_materials import bill_of_materials
from deploy.release.refusals import ReleaseError
from deploy.release.wheelhouse import (
    check_pins,
    read_pins,
    read_wheelhouse,
    requirements,
    rewrite_with_one_time,
)

ROOT: Final = Path(__file__).resolve().parents[2]
SERVER: Final = "georelay-server"
CLIENT: Final = "georelay"
BUILT_HERE: Final = "pyspark"  # published as source only
NO_WORD: Final = "it said nothing"


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0 when the release is written, 1 with one line on stderr when it is not."""
    parser = argparse.ArgumentParser(
        prog="make release",
        description="Build the release of the commit that is checked out: wheels, what they need, SBOM, checksums.",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", metavar="FOLDER", help="where to (dist)")
    parser.add_argument("--sla", action="store_true", help="also the set for the report (pyspark; 600 MB)")
    options = parser.parse_args(arguments)
    try:
        for written in build(ROOT, options.out, sla=options.sla):
            print(f"{written} ({written.stat().st_size / 1e6:.1f} MB)")
    except (ReleaseError, OSError) as error:
        print(f"georelay release: {error}", file=sys.stderr)
        return 1
    return 0


def build(root: Path, out: Path, *, sla: bool = False) -> list[Path]:
    """Return the archives written to `out` of the commit that is checked out in `root`.

    Raises:
        ReleaseError: the tree is changed, a version is not pinned, a wheel could not be had.
    """
    commit, time_s = commit_of(root)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="georelay-release-") as scratch:
        source = Path(scratch) / "source"
        _copy_commit(root, source, commit)
        version = version_of(source)
        ours = Path(scratch) / "ours"
        _build_ours(source, ours, time_s=time_s)
        written = []
        for name, extra in [("georelay", ""), *([("georelay-sla", "[sla]")] if sla else [])]:
            folder = Path(scratch) / f"{name}-{version}"
            gather(ours, folder / "wheels", extra=extra, constraints=source / "constraints.txt")
            _describe(folder, source, extra=extra, commit=commit, time_s=time_s)
            prove_installable(folder, folder / requirements_file(extra))
            target = out / f"{folder.name}.tar.gz"
            write_archive(folder, target, time_s=time_s)
            written.append(target)
    return written


def requirements_file(extra: str) -> str:
    """Return the name of the file that pip installs a set by."""
    return f"requirements{extra.replace('[', '-').replace(']', '')}.txt"


def commit_of(root: Path) -> tuple[str, int]:
    """Return the commit that is checked out and its time in seconds since 1970.

    Raises:
        ReleaseError: it is no checkout, or files differ from the commit.
    """
    changed = _run(["git", "status", "--porcelain"], cwd=root, what="git cannot read this checkout").splitlines()
    if changed:
        raise ReleaseError(f"{len(changed)} files differ from the commit ({changed[0].strip()}, …). Commit them first")
    commit, time_s = _run(["git", "log", "-1", "--format=%H %ct"], cwd=root, what="git has no commit").split()
    return commit, int(time_s)


def version_of(source: Path) -> str:
    """Return the version of both distributions. Raises ReleaseError when they differ."""
    versions = [
        str(tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"])
        for folder in (source, source / "sdk")
    ]
    if len(set(versions)) > 1:
        raise ReleaseError(f"{SERVER} is {versions[0]} and {CLIENT} is {versions[1]}. Give both one version")
    return versions[0]


def _copy_commit(root: Path, target: Path, commit: str) -> None:
    packed = target.with_suffix(".tar")
    _run(["git", "archive", "-o", str(packed), commit], cwd=root, what="git cannot copy the commit")
    unpack(packed, target)


def _build_ours(source: Path, target: Path, *, time_s: int) -> None:
    for folder in (source, source / "sdk"):
        _run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
            cwd=folder,
            what="a wheel of ours was not built",
            environment={"SOURCE_DATE_EPOCH": str(time_s)},
        )


def gather(ours: Path, wheels: Path, *, extra: str, constraints: Path) -> None:
    """Put the wheels of `ours` and of everything that the server with `extra` needs into the folder `wheels`.

    Raises:
        ReleaseError: pip could not get one of them.
    """
    (server,) = ours.glob("georelay_server-*.whl")
    _run(
        [
            *_pip("wheel", "--only-binary=:all:", f"--no-binary={BUILT_HERE}"),
            *("--constraint", str(constraints), "--wheel-dir", str(wheels), f"{SERVER}{extra} @ {server.as_uri()}"),
        ],
        cwd=wheels.parent.parent,
        what="pip did not get every dependency; a release is built where the package index answers",
        environment={"PIP_FIND_LINKS": ""},  # wheels that lie on this machine may be other ones
    )
    for wheel in wheels.glob(f"{BUILT_HERE}-*.whl"):
        rewrite_with_one_time(wheel)
    for wheel in ours.glob("*.whl"):
        shutil.copy(wheel, wheels)


def _describe(folder: Path, source: Path, *, extra: str, commit: str, time_s: int) -> None:
    wheels = read_wheelhouse(folder / "wheels")
    check_pins(wheels, read_pins((source / "constraints.txt").read_text()), ours=(SERVER, CLIENT))
    server = next(wheel for wheel in wheels if wheel.name == SERVER)
    installed = [wheel for wheel in wheels if wheel.name != CLIENT]  # the server has the client's package in itself
    (folder / requirements_file(extra)).write_text(requirements(installed))
    (folder / "sbom.cdx.json").write_text(bill_of_materials(server, wheels, commit=commit, time_s=time_s))
    words = {
        "VERSION": server.version,
        "MACHINE": platform.machine(),
        "PYTHON": ".".join(platform.python_version_tuple()[:2]),
        "REQUIREMENTS": requirements_file(extra),
    }
    text = (source / "deploy/release/INSTALL.md").read_text()
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    (folder / "INSTALL.md").write_text(text)
    shutil.copy(source / "LICENSE", folder)
    write_checksums(folder)


def prove_installable(folder: Path, listed: Path) -> None:
    """Let pip resolve what the file `listed` says from the wheels of `folder` alone, as a host does.

    Raises:
        ReleaseError: one is missing, or is not what `listed` says.
    """
    _run(
        [
            *_pip("install", "--isolated", "--dry-run", "--ignore-installed", "--no-index", "--require-hashes"),
            *("--find-links", str(folder / "wheels"), "--requirement", str(listed)),
        ],
        cwd=folder,
        what="the release cannot be installed from its own wheels",
    )


def _pip(*words: str) -> list[str]:
    return [sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check"]


def _run(command: Sequence[str], *, cwd: Path, what: str, environment: dict[str, str] | None = None) -> str:
    """Return what `command` printed. Raises ReleaseError: `what`, with its first line of error."""
    cwd.mkdir(parents=True, exist_ok=True)
    ended = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})}
    )
    if ended.returncode != 0:
        said = [line.strip() for line in ended.stderr.splitlines() if line.strip()] or [NO_WORD]
        errors = [line for line in said if line.startswith("ERROR")] or said[-1:]
        raise ReleaseError(f"{what}: {errors[0]}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main())
