"""A folder of wheels, read without installing any: what each is, whether it is pinned, and what pip must be told.

Rule 1: what a wheel says of itself (METADATA) is the source of names and versions, never its file name.
Rule 2: a release holds pinned versions only: one that pip chose by itself would be another one tomorrow.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from itertools import pairwise
from pathlib import Path
from stat import S_IFREG
from typing import Final

from deploy.release.refusals import ReleaseError

_NAME: Final = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
ZIP_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, order=True)
class Wheel:
    """One wheel: `name` is normalised (PEP 503), `needs` are normalised names of what it requires without an extra."""

    name: str
    version: str
    file: str
    sha256: str
    licence: str
    needs: tuple[str, ...]


def normal_name(text: str) -> str:
    """Return the name at the beginning of `text` as PEP 503 compares names. Raises ValueError when there is none."""
    found = _NAME.match(text)
    if found is None:
        raise ValueError(f"'{text}' begins with no name of a package")
    return re.sub(r"[-_.]+", "-", found[1]).lower()


def read_wheel(path: Path) -> Wheel:
    """Return what the wheel `path` is. Raises ReleaseError when it is no wheel."""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            metadata = BytesParser().parsebytes(archive.read(inside), headersonly=True)
    except (zipfile.BadZipFile, StopIteration) as error:
        raise ReleaseError(f"{path.name} is no wheel: it has no METADATA. Remove it and build again") from error
    needs = {normal_name(row) for row in metadata.get_all("Requires-Dist", []) if "extra ==" not in row}
    return Wheel(
        name=normal_name(metadata["Name"]),
        version=metadata["Version"],
        file=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        licence=_licence(metadata),
        needs=tuple(sorted(needs)),
    )


def _licence(metadata: Message) -> str:
    """Return the licence in the package's words, cut to one line; "" when it names none."""
    classifiers = [row.rpartition(" :: ")[2] for row in metadata.get_all("Classifier", []) if row.startswith("License")]
    named = metadata.get("License-Expression") or " and ".join(classifiers) or metadata.get("License") or ""
    return (str(named).strip().splitlines() or [""])[0][:200]


def read_wheelhouse(folder: Path) -> list[Wheel]:
    """Return the wheels of `folder` by name.

    Raises:
        ReleaseError: a file is no wheel, or a package is there twice.
    """
    wheels = sorted(read_wheel(path) for path in folder.iterdir())
    for one, other in pairwise(wheels):
        if one.name == other.name:
            raise ReleaseError(f"{one.name} is there twice, as {one.file} and {other.file}. Pin one version of it")
    return wheels


def read_pins(text: str) -> dict[str, str]:
    """Return name -> version of constraints in the form `name==version`, one a line; `#` begins a comment."""
    rows = [line.partition("#")[0].strip() for line in text.splitlines()]
    return {normal_name(name): version for name, _, version in (row.partition("==") for row in rows if row)}


def check_pins(wheels: Iterable[Wheel], pins: Mapping[str, str], *, ours: Iterable[str]) -> None:
    """Raise ReleaseError for the first wheel, `ours` apart, whose version is not the pinned one."""
    for wheel in wheels:
        if wheel.name not in ours and pins.get(wheel.name) != wheel.version:
            raise ReleaseError(
                f"{wheel.name} {wheel.version} is not pinned: write {wheel.name}=={wheel.version} in constraints.txt"
            )


def requirements(wheels: Iterable[Wheel]) -> str:
    """Return what `pip install --require-hashes -r` takes: the version and SHA-256 of each wheel."""
    return "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in sorted(wheels))


def rewrite_with_one_time(path: Path) -> None:
    """Write the wheel `path` anew with its entries in order and all of one time: pip builds it with those of now."""
    scratch = path.with_suffix(".rewriting")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in sorted(old.infolist(), key=lambda entry: entry.filename):
            same = zipfile.ZipInfo(entry.filename, ZIP_EPOCH)
            same.compress_type = zipfile.ZIP_DEFLATED
            # Of what is not told to be a regular file pip makes nothing executable.
            same.external_attr = (S_IFREG | (0o755 if entry.external_attr >> 16 & 0o111 else 0o644)) << 16
            new.writestr(same, old.read(entry))
    scratch.replace(path)
