"""File systems for tests of the log: one that records and fails, one that forgets at a crash; and entries to store."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from georelay.ids import Epoch, Offset, RaftIndex, Term
from georelay.wire.crc import crc32c
from mesh.replication.stream_header import EntryType, StreamHeader
from region.log.entry import FIRST_CHAIN, Entry, EntryDraft, control_header, seal_entry
from region.log.filesystem import SECTOR_BYTES, Buffer, FileSystem, OsFileSystem


class EntryMaker:
    """Makes the entries of one log as a leader would: indexes, offsets, chain and checksums follow each other."""

    def __init__(self) -> None:
        self.index, self.next_offset, self.chain, self.epoch, self.append_us = (
            0,
            0,
            FIRST_CHAIN,
            1,
            1_700_000_000_000_000,
        )

    def rewind(self, last: Entry | None) -> None:
        """Continue after `last`, as after a truncation."""
        self.index = last.index if last else 0
        self.chain = last.chain if last else FIRST_CHAIN
        self.next_offset = last.next_offset if last else 0

    def data(
        self, payload: bytes = b"payload", *, records: int = 1, term: int = 1, timestamp_ms: int = 1_700_000_000_000
    ) -> Entry:
        return self._owning(EntryType.DATA, payload, records=records, term=term, timestamp_ms=timestamp_ms)

    def marker(self, payload: bytes, *, term: int = 1) -> Entry:
        return self._owning(EntryType.TXN_MARKER, payload, records=1, term=term, timestamp_ms=1_700_000_000_000)

    def _owning(self, kind: EntryType, payload: bytes, *, records: int, term: int, timestamp_ms: int) -> Entry:
        header = StreamHeader(
            type=kind,
            entry_region=1,
            record_count=records,
            epoch=Epoch(self.epoch),
            base_offset=Offset(self.next_offset),
            append_us=self.append_us,
            received_ns=1_700_000_000_000_000_001,
            max_timestamp_ms=timestamp_ms,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            payload_crc=crc32c(payload),
            digest=bytes(range(16)),
        )
        return self._seal(EntryDraft(header=header, payload=payload), term)

    def control(self, kind: EntryType = EntryType.NOOP, *, term: int = 1) -> Entry:
        header = control_header(
            kind,
            next_offset=Offset(self.next_offset),
            epoch=Epoch(self.epoch),
            append_us=self.append_us,
            digest=bytes(16),
        )
        return self._seal(EntryDraft(header=header, payload=b""), term)

    def begin_epoch(self, epoch: int, start: int, *, term: int = 1) -> Entry:
        self.epoch, self.next_offset = epoch, start
        return self.control(EntryType.EPOCH, term=term)

    def _seal(self, draft: EntryDraft, term: int) -> Entry:
        entry = seal_entry(draft, term=Term(term), index=RaftIndex(self.index + 1), previous_chain=self.chain)
        self.rewind(entry)
        return entry


@dataclass
class Event:
    """One call that reached the file system, or `post` for tokens handed out."""

    kind: str
    path: Path
    size: int = 0


@dataclass
class RecordingFileSystem:
    """Passes everything to the operating system, remembers the order, and fails on demand.

    `fault(kind, path)` may return an OSError to raise, or an int: the number of bytes a write then takes.
    `sync_works=False` patches the sync calls out.
    """

    events: list[Event] = field(default_factory=list)
    fault: Callable[[str, Path], OSError | int | None] = lambda _kind, _path: None
    sync_works: bool = True
    under: FileSystem = field(default_factory=OsFileSystem)
    paths: dict[int, Path] = field(default_factory=dict)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def unsynced_files(self) -> set[Path]:
        """Return the files whose writes no sync has covered when the newest event happened."""
        dirty: set[Path] = set()
        for event in self.events:
            if event.kind == "write":
                dirty.add(event.path)
            elif event.kind == "sync":
                dirty.discard(event.path)
        return {path for path in dirty if path.suffix != ".index"}

    def posts_before_sync(self) -> int:
        """Return how many `post` events came while written bytes or created names were not yet durable."""
        dirty: set[Path] = set()
        early = 0
        for event in self.events:
            if event.path.suffix in {".index", ".tmp"}:
                continue
            if event.kind == "write":
                dirty.add(event.path)
            elif event.kind == "create":
                dirty.add(event.path.parent)
            elif event.kind in {"sync", "sync_directory"}:
                dirty.discard(event.path)
            elif event.kind == "post" and dirty:
                early += 1
        return early

    def _note(self, kind: str, path: Path, size: int = 0) -> None:
        fault = self.fault(kind, path)
        if isinstance(fault, OSError):
            raise fault
        self.events.append(Event(kind, path, size))

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        if create and not self.under.exists(path):
            self._note("create", path)
        handle = self.under.open(path, create=create, write=write)
        self.paths[handle] = path
        return handle

    def close(self, handle: int) -> None:
        self.under.close(handle)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        path = self.paths[handle]
        fault = self.fault("write", path)
        if isinstance(fault, int):
            return self.under.pwritev(handle, [b"".join(buffers)[:fault]], position)
        self._note("write", path, sum(map(len, buffers)))
        return self.under.pwritev(handle, buffers, position)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        fault = self.fault("read", self.paths[handle])
        if isinstance(fault, OSError):
            raise fault
        return self.under.pread(handle, size, position)

    def size(self, handle: int) -> int:
        return self.under.size(handle)

    def truncate(self, handle: int, size: int) -> None:
        self._note("truncate", self.paths[handle], size)
        self.under.truncate(handle, size)

    def fdatasync(self, handle: int) -> None:
        if self.sync_works:
            self.under.fdatasync(handle)
            self._note("sync", self.paths[handle])

    def try_lock(self, handle: int) -> bool:
        return self.under.try_lock(handle)

    def fsync_directory(self, path: Path) -> None:
        if self.sync_works:
            self.under.fsync_directory(path)
            self._note("sync_directory", path)

    def rename(self, source: Path, target: Path) -> None:
        self._note("rename", target)
        self.under.rename(source, target)

    def remove(self, path: Path) -> None:
        self._note("remove", path)
        self.under.remove(path)

    def remove_directory(self, path: Path) -> None:
        self.under.remove_directory(path)

    def list_directory(self, path: Path) -> list[str]:
        return self.under.list_directory(path)

    def make_directory(self, path: Path) -> None:
        self._note("make_directory", path)
        self.under.make_directory(path)

    def exists(self, path: Path) -> bool:
        return self.under.exists(path)

    def is_directory(self, path: Path) -> bool:
        return self.under.is_directory(path)

    def allocate(self, handle: int, position: int, size: int) -> None:
        self._note("allocate", self.paths[handle], size)
        self.under.allocate(handle, position, size)

    def sync_file_system(self, handle: int) -> None:
        self.under.sync_file_system(handle)
        self._note("sync_all", self.paths[handle])

    def free_bytes(self, path: Path) -> int:
        return self.under.free_bytes(path)

    def on_own_file_system(self, path: Path) -> bool:
        return self.under.on_own_file_system(path)


class _File:
    """One file: what programs see, what the disk has, and which sectors differ."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = b""
        self.dirty: set[int] = set()

    def crash(self, keep: Callable[[], bool]) -> None:
        disk = bytearray(self.durable)
        if len(self.content) < len(disk) and keep():
            del disk[len(self.content) :]
        for sector in sorted(self.dirty):
            start, end = sector * SECTOR_BYTES, min((sector + 1) * SECTOR_BYTES, len(self.content))
            if start < end and keep():
                disk.extend(bytes(max(0, end - len(disk))))
                disk[start:end] = self.content[start:end]
        self.content, self.durable, self.dirty = disk, bytes(disk), set()


@dataclass
class _NameChange:
    """A change of names that is durable once one of `directories` is synced."""

    directories: set[Path]
    apply: Callable[[dict[Path, _File | None]], None]


class CrashFileSystem:
    """Files in memory. `crash` keeps what was synced; of the rest each 512-byte sector and each name may be lost."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._names: dict[Path, _File | None] = {}  # None: a directory
        self._durable_names: dict[Path, _File | None] = {}
        self._changes: list[_NameChange] = []
        self._handles: dict[int, _File] = {}
        self._next_handle = 1000
        self.sync_works = True
        self.free = 1 << 40
        self.calls_left: int | None = None  # calls that change something before the power goes; None: it stays

    def crash(self, *, keep: float | None = None) -> None:
        """Lose power: `keep` is the share of un-synced sectors and names that survive; None: drawn each time."""
        self.calls_left = None
        share = self._random.choice([0.0, 0.3, 0.7, 1.0]) if keep is None else keep
        for change in self._changes:
            if self._random.random() < share:
                change.apply(self._durable_names)
        names = dict(self._durable_names)
        roots = {path for path in names if names[path] is None and path.parent == path}
        self._names = {path: file for path, file in names.items() if path in roots or self._reachable(path, names)}
        self._durable_names = dict(self._names)
        self._changes.clear()
        self._handles.clear()
        for file in {id(file): file for file in self._names.values() if file is not None}.values():
            file.crash(lambda: self._random.random() < share)

    @staticmethod
    def _reachable(path: Path, names: dict[Path, _File | None]) -> bool:
        return all(parent in names for parent in path.parents)

    def _powered(self) -> None:
        if self.calls_left is None:
            return
        if self.calls_left == 0:
            raise OSError(errno.EIO, "the power is off")
        self.calls_left -= 1

    def _change(self, directories: set[Path], apply: Callable[[dict[Path, _File | None]], None]) -> None:
        self._powered()
        apply(self._names)
        self._changes.append(_NameChange(directories, apply))

    def _file(self, path: Path) -> _File:
        file = self._names.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return file

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        if create and path not in self._names:
            if path.parent not in self._names:
                raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))
            made = _File()
            self._change({path.parent}, lambda names: names.update({path: made}))
        self._next_handle += 1
        self._handles[self._next_handle] = self._file(path)
        return self._next_handle

    def close(self, handle: int) -> None:
        self._handles.pop(handle, None)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        self._powered()
        file, data = self._handles[handle], b"".join(buffers)
        file.content.extend(bytes(max(0, position - len(file.content))))
        file.content[position : position + len(data)] = data
        file.dirty.update(range(position // SECTOR_BYTES, (position + len(data) - 1) // SECTOR_BYTES + 1))
        return len(data)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        return bytes(self._handles[handle].content[position : position + size])

    def size(self, handle: int) -> int:
        return len(self._handles[handle].content)

    def truncate(self, handle: int, size: int) -> None:
        self._powered()
        file = self._handles[handle]
        del file.content[size:]
        file.content.extend(bytes(size - len(file.content)))

    def fdatasync(self, handle: int) -> None:
        self._powered()
        if self.sync_works:
            file = self._handles[handle]
            file.durable, file.dirty = bytes(file.content), set()

    def try_lock(self, handle: int) -> bool:
        return handle in self._handles

    def fsync_directory(self, path: Path) -> None:
        self._powered()
        if not self.sync_works:
            return
        for change in self._changes:
            if path in change.directories:
                change.apply(self._durable_names)
        self._changes = [change for change in self._changes if path not in change.directories]

    def rename(self, source: Path, target: Path) -> None:
        below = f"{source}/"  # texts are compared: paths take ten times as long, and were half of what some tests cost

        def move(names: dict[Path, _File | None]) -> None:
            for path in [path for path in names if f"{path}/".startswith(below)]:
                del names[path]
            names.update({target / path.relative_to(source): file for path, file in moved.items()})

        moved = {path: file for path, file in self._names.items() if f"{path}/".startswith(below)}
        if not moved:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
        self._change({source.parent, target.parent}, move)

    def remove(self, path: Path) -> None:
        self._file(path)
        self._change({path.parent}, lambda names: (names.pop(path, None), None)[1])

    def remove_directory(self, path: Path) -> None:
        self._change({path.parent}, lambda names: (names.pop(path, None), None)[1])

    def list_directory(self, path: Path) -> list[str]:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        names = (str(child).rpartition("/") for child in self._names)
        return [name for folder, _, name in names if folder == str(path) and name]

    def make_directory(self, path: Path) -> None:
        for missing in [parent for parent in [*reversed(path.parents), path] if parent not in self._names]:
            self._change({missing.parent}, lambda names, missing=missing: names.update({missing: None}))  # type: ignore[misc]

    def exists(self, path: Path) -> bool:
        return path in self._names

    def is_directory(self, path: Path) -> bool:
        return path in self._names and self._names[path] is None

    def allocate(self, handle: int, position: int, size: int) -> None:
        self._powered()
        content = self._handles[handle].content
        content.extend(bytes(max(0, position + size - len(content))))

    def sync_file_system(self, handle: int) -> None:
        if self.sync_works:
            for file in {id(file): file for file in self._names.values() if file is not None}.values():
                file.durable, file.dirty = bytes(file.content), set()
            for change in self._changes:
                change.apply(self._durable_names)
            self._changes.clear()

    def free_bytes(self, path: Path) -> int:
        return self.free

    def on_own_file_system(self, path: Path) -> bool:
        return False

    def flip(self, path: Path, position: int, bit: int = 0) -> None:
        """Damage one bit of what the disk has."""
        file = self._file(path)
        file.content[position] ^= 1 << bit
        file.durable = bytes(file.content)

    def put(self, path: Path, content: bytes) -> None:
        """Make a durable file with this content."""
        file = _File()
        file.content, file.durable = bytearray(content), content
        self._names[path] = self._durable_names[path] = file

    def content(self, path: Path) -> bytes:
        return bytes(self._file(path).content)

    def make_durable_directory(self, path: Path) -> None:
        self.make_directory(path)
        for change in self._changes:
            change.apply(self._durable_names)
        self._changes.clear()


@pytest.fixture
def make() -> EntryMaker:
    return EntryMaker()


@pytest.fixture
def recording_fs() -> RecordingFileSystem:
    return RecordingFileSystem()


@pytest.fixture
def crash_fs() -> Callable[[int], CrashFileSystem]:
    return CrashFileSystem


@pytest.fixture
def entry_maker() -> Callable[[], EntryMaker]:
    return EntryMaker
