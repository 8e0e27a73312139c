"""A folder as a `.tar.gz` whose bytes depend on names, contents and executability alone, and its checksums.

Rule 1: entries are sorted, belong to user 0, have the mode 0644 or 0755 and one time; the header of gzip names no file
        and has the same time. Who builds, where and when does not show.
"""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from pathlib import Path
from typing import Final

CHECKSUMS: Final = "SHA256SUMS"


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS of every other file below `folder`, in the form that `sha256sum --check` reads."""
    rows = [f"{_sha256(path)}  {path.relative_to(folder)}\n" for path in _files(folder) if path.name != CHECKSUMS]
    (folder / CHECKSUMS).write_text("".join(rows))


def write_archive(folder: Path, target: Path, *, time_s: int) -> None:
    """Write `folder`, under its own name, to `target`; `time_s` (seconds since 1970) is the time of every entry."""
    scratch = target.with_name(f".{target.name}.part")
    with (
        scratch.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=time_s) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for path in _files(folder):
            entry = tarfile.TarInfo(str(Path(folder.name) / path.relative_to(folder)))
            stat = path.stat()
            entry.size, entry.mtime, entry.mode = stat.st_size, time_s, 0o755 if stat.st_mode & 0o100 else 0o644
            with path.open("rb") as file:
                tar.addfile(entry, file)
    scratch.replace(target)


def unpack(archive: Path, into: Path) -> None:
    """Write what a tar file holds below `into`; no entry may lead out of it, where this Python can tell.

    Python 3.11 knows the filter "data" from 3.11.4 on, and Debian 12 has 3.11.2.
    """
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(into, filter="data")
        else:
            tar.extractall(into)  # noqa: S202 - archives of our own


def _files(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
