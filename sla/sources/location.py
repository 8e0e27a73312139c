"""A directory of files, on this machine or in an object store: one way to list, read, write and move.

Rule 1: a reader sees a whole file or none: local files are written beside, synced and renamed; an object appears when
        its upload ends.
Rule 2: names that start with `.` or `_` are in progress or ours; lists never show them, nor what is in such a folder.

Object stores are reached by pyarrow.fs (s3, gs, abfs), with the credentials of their own environment variables.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs

from sla.errors import JobFailed, UsageError

_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://")
_SECRET: Final = re.compile(r"(?<=:)//[^/]*@")
KNOWN_SCHEMES: Final = ("file", "s3", "gs", "gcs", "abfs", "abfss")
COPY_BYTES: Final = 1 << 20
_NEEDS_FOLDERS: Final = ("mock", "subtree")  # an object store has none: a name with slashes is enough
LIST_ATTEMPTS: Final = 3
IN_PROGRESS_PREFIX: Final = "."


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file below a location.

    Args:
        relative: path below the root, with `/`.
        mtime_ns: when it was last written (ns since 1970), None where the store does not say.
    """

    relative: str
    size_bytes: int
    mtime_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A root directory.

    Args:
        uri: as the user wrote it: a path, or a URI of one of KNOWN_SCHEMES.
        filesystem: a pyarrow.fs.FileSystem.
        root: path of the root inside it, without a slash at the end.
    """

    uri: str
    filesystem: Any
    root: str

    @classmethod
    def open(cls, where: str | Path) -> Location:
        """Return the location of a path or URI; nothing is read yet.

        Raises:
            UsageError: a URI that cannot be understood, or of an unknown scheme.
            JobFailed: the store's client does not start.
        """
        text = str(where)
        match = _SCHEME.match(text)
        if match is None:
            return cls(uri=text, filesystem=pa.fs.LocalFileSystem(), root=os.path.abspath(text))
        if match[1] not in KNOWN_SCHEMES:
            raise UsageError(f"{text}: unknown scheme {match[1]!r}; write a directory or {', '.join(KNOWN_SCHEMES)}://")
        try:
            filesystem, root = pa.fs.FileSystem.from_uri(_with_single_puts(text) if match[1] == "s3" else text)
        except (ValueError, TypeError) as error:
            raise UsageError(f"{text}: {_first_line(error)}") from error
        except OSError as error:
            raise JobFailed(f"{text}: {_first_line(error)}") from error
        if not root.strip("/"):
            raise UsageError(f"{text}: a bucket or directory is missing behind the scheme")
        return cls(uri=text, filesystem=filesystem, root=root.rstrip("/"))

    @property
    def is_local(self) -> bool:
        """Return whether the files are on this machine."""
        return isinstance(self.filesystem, pa.fs.LocalFileSystem)

    @property
    def shown(self) -> str:
        """Return the URI as it may be shown: without what is secret in front of @, and what is a client's behind ?."""
        return _SECRET.sub("//", self.uri.partition("?")[0])

    def sibling(self, name: str) -> Location | None:
        """Return the location `name` beside this one; None for the top of a store."""
        parent, slash, _ = self.root.rpartition("/")
        if not slash and self.is_local:
            return None
        root = f"{parent}/{name}" if slash else name
        if self.is_local:
            return Location(uri=root, filesystem=self.filesystem, root=root)
        base, question, query = self.uri.partition("?")
        above, slash, _ = base.rstrip("/").rpartition("/")
        if not slash or above.endswith("/"):
            return None
        return Location(uri=f"{above}/{name}{question}{query}", filesystem=self.filesystem, root=root)

    def path(self, relative: str) -> str:
        """Return the path of a file inside the filesystem; for a local one, what the machine calls it."""
        return f"{self.root}/{relative}" if self.root and relative else self.root or relative

    def is_directory(self, relative: str = "") -> bool:
        """Return whether there is a directory (in an object store: a name that others begin with)."""
        return bool(self._info(relative).type == pa.fs.FileType.Directory)

    def is_file(self, relative: str = "") -> bool:
        """Return whether there is a file."""
        return bool(self._info(relative).type == pa.fs.FileType.File)

    def size_bytes(self, relative: str) -> int | None:
        """Return the size of a file, None when there is none."""
        info = self._info(relative)
        return int(info.size) if info.type == pa.fs.FileType.File else None

    def _info(self, relative: str) -> Any:
        return self.filesystem.get_file_info([self.path(relative)])[0]

    def folders(self, relative: str = "") -> list[str]:
        """Return the names of the folders in a folder, sorted; none when it does not exist."""
        found = self._select(relative, is_recursive=False)
        return sorted(
            info.base_name for info in found if info.type == pa.fs.FileType.Directory and _is_shown(info.base_name)
        )

    def files(self, relative: str = "") -> list[Entry]:
        """Return the files in a folder and in those below it, sorted; none when it does not exist."""
        cut = len(self.root) + 1 if self.root else 0
        entries = []
        for info in self._select(relative, is_recursive=True):
            name = info.path[cut:]
            if info.type == pa.fs.FileType.File and all(map(_is_shown, name.split("/"))):
                mtime_ns = info.mtime_ns if info.mtime_ns is not None and info.mtime_ns > 0 else None
                entries.append(Entry(relative=name, size_bytes=info.size, mtime_ns=mtime_ns))
        return sorted(entries, key=lambda entry: entry.relative)

    def _select(self, relative: str, *, is_recursive: bool) -> list[Any]:
        selector = pa.fs.FileSelector(self.path(relative), recursive=is_recursive, allow_not_found=True)
        for _ in range(LIST_ATTEMPTS - 1):
            try:
                return list(self.filesystem.get_file_info(selector))
            except FileNotFoundError:  # retention removed a folder while we were looking at it
                continue
        return list(self.filesystem.get_file_info(selector))

    def open_input(self, relative: str) -> Any:
        """Open a file for reading anywhere in it.

        Raises:
            OSError: there is none, or it cannot be read.
        """
        return self.filesystem.open_input_file(self.path(relative))

    def read(self, relative: str) -> bytes:
        """Return a whole (small) file.

        Raises:
            OSError: there is none, or it cannot be read.
        """
        with self.open_input(relative) as file:
            return bytes(file.read())

    def write_whole(self, relative: str, raw: bytes) -> None:
        """Write a file so that a reader sees all of it or none.

        Raises:
            OSError: it cannot be written; what was there before is untouched.
        """
        with self.writing(relative) as path, self.filesystem.open_output_stream(path) as file:
            file.write(raw)

    @contextlib.contextmanager
    def writing(self, relative: str, *, mtime_ns: int | None = None) -> Iterator[str]:
        """Give a path to write to; when the block ends without an error, the file is there, whole and durable.

        With an error nothing is there: on this machine what was there before, in a store nothing, for a client that
        closes an upload completes it. What must not get lost is never written over in a store.

        Args:
            mtime_ns: what the file shall give as the time it was written; ignored in object stores.
        """
        path = self.path(relative)
        if not self.is_local:
            if self.filesystem.type_name in _NEEDS_FOLDERS:
                self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            try:
                yield path
            except BaseException:
                with contextlib.suppress(OSError):  # the error that counts is on its way; a torn object is found later
                    self.delete(relative)
                raise
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        in_progress = target.with_name(f"{IN_PROGRESS_PREFIX}{target.name}.{os.getpid()}.tmp")
        try:
            yield str(in_progress)
            if mtime_ns is not None:
                os.utime(in_progress, ns=(mtime_ns, mtime_ns))
            _sync(in_progress)
            in_progress.replace(target)
            _sync(target.parent)
        finally:
            in_progress.unlink(missing_ok=True)

    def remove_unfinished(self, relative: str) -> None:
        """Remove what killed writers of a file left of it on this machine; a store shows nothing of an open upload."""
        if self.is_local:
            target = Path(self.path(relative))
            for path in target.parent.glob(f"{IN_PROGRESS_PREFIX}{target.name}.*.tmp"):
                path.unlink(missing_ok=True)

    def delete(self, relative: str) -> None:
        """Delete a file that may be gone already."""
        try:
            self.filesystem.delete_file(self.path(relative))
        except FileNotFoundError:
            return

    def move(self, relative: str, to: Location) -> None:
        """Move a file to the same place below another location; a crash leaves it in one place at least, whole.

        Raises:
            OSError: it cannot be read, written or deleted.
        """
        if self.is_local and to.is_local:
            target = Path(to.path(relative))
            target.parent.mkdir(parents=True, exist_ok=True)
            if os.stat(self.path(relative)).st_dev == os.stat(target.parent).st_dev:
                os.replace(self.path(relative), target)
                return
        with (
            to.writing(relative) as path,
            self.open_input(relative) as source,
            to.filesystem.open_output_stream(path) as sink,
        ):
            shutil.copyfileobj(source, sink, COPY_BYTES)
        self.delete(relative)


def _with_single_puts(uri: str) -> str:
    """Let a small object be written by one request, where an upload in parts has three; stores bill by the request."""
    return f"{uri}{'&' if '?' in uri else '?'}allow_delayed_open=true"


def _is_shown(name: str) -> bool:
    return not name.startswith((".", "_"))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
