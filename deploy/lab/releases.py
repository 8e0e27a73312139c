"""The archives that the lab installs: the release, one of other files to upgrade to, and one that cannot start.

Rule: both are made of the release itself by what a release is made of: wheels, checksums, requirements.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path
from typing import Final

from deploy.release.archive import unpack, write_archive, write_checksums
from deploy.release.wheelhouse import read_wheelhouse, requirements

BROKEN: Final = 'raise SystemExit("this release of the lab cannot start")\n'


def broken_release(archive: Path, out: Path) -> Path:
    """Write `archive` anew to the folder `out` with a broker that ends at its start, and return where."""
    return _rewritten(archive, out, "broken", BROKEN)


def renamed_release(archive: Path, out: Path) -> Path:
    """Write `archive` anew to the folder `out` as another release that does the same, and return where."""
    return _rewritten(archive, out, "next", "")


def _rewritten(archive: Path, out: Path, what: str, prelude: str) -> Path:
    folder = out / re.sub(r"\.tar\.gz$", f"-{what}", archive.name)
    unpack(archive, out / what)
    (unpacked,) = (out / what).iterdir()
    unpacked.rename(folder)
    (wheel,) = (folder / "wheels").glob("georelay_server-*.whl")
    _prepend(wheel, "region/__main__.py", prelude or f"# {what}\n")
    (folder / "requirements.txt").write_text(
        requirements(row for row in read_wheelhouse(folder / "wheels") if row.name != "georelay")
    )
    write_checksums(folder)
    target = out / f"{folder.name}.tar.gz"
    write_archive(folder, target, time_s=0)
    shutil.rmtree(folder)
    return target


def _prepend(wheel: Path, file: str, text: str) -> None:
    """Put `text` after the first docstring and future imports of one file of a wheel: at its end where it runs last."""
    scratch = wheel.with_suffix(".part")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename == file:
                content = content.replace(b"import argparse\n", text.encode() + b"import argparse\n", 1)
            if not entry.filename.endswith("RECORD"):
                new.writestr(entry, content)
                continue
            lines = [row for row in content.decode().splitlines() if not row.startswith(f"{file},")]
            new.writestr(entry, "\n".join([*lines, f"{file},,", ""]))
    scratch.replace(wheel)
