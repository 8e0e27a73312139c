"""A disk with a page cache: what was not synced may be lost, kept or torn when the power goes.

Model, after what POSIX promises and Linux does:
- A write lands in the cache. `fdatasync` moves the content AND the length of its file to the disk.
- At a power cut every 512-byte sector that was written and not synced is on the disk or not, independently; the file's
  length is the old one, the new one, or between. Sectors of a longer file that did not arrive read as zeros.
- A name (created, removed, renamed) is durable after `fsync_directory`; without it every change may or may not have
  arrived, a rename as one change.
- A process that is killed loses nothing: the cache is the kernel's.
- A failed sync drops the dirty mark: the next one reports success and the bytes are not on the disk. Some file systems
  go on showing those bytes (ext4, XFS: pages kept as clean), others the former ones (Btrfs); see Rebello et al., "Can
  Applications Recover from fsync Failures?", 2020. A disk is of one kind or the other.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.sim.clockwork import PowerCut

SECTOR_BYTES: Final = 512
Buffer = bytes | bytearray | memoryview
Mark = Callable[[str], None]


class Inode:
    """One file: `content` as the cache shows it, `durable` as the platters hold it."""

    __slots__ = ("bad_sectors", "content", "dirty_from", "dirty_to", "durable", "locked", "stable_to", "version")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.dirty_from = -1  # bytes; -1: nothing is dirty
        self.dirty_to = -1
        self.locked = False
        self.bad_sectors: set[int] = set()
        self.version = 0  # counts the changes of `durable`
        self.stable_to = 0  # no byte of `durable` below it changed since somebody looked and set it

    def touch(self, start: int, end: int) -> None:
        """Note that bytes [start, end) differ from the disk."""
        if self.dirty_from < 0:
            self.dirty_from, self.dirty_to = start, end
        else:
            self.dirty_from = min(self.dirty_from, start)
            self.dirty_to = max(self.dirty_to, end)

    def sync(self) -> None:
        """Bring the disk up to the cache."""
        if self.dirty_from < 0:
            return
        content, durable = self.content, self.durable
        start = self.dirty_from
        durable.extend(bytes(max(0, start - len(durable))))  # a hole: what was there was given up by a failed sync
        end = min(self.dirty_to, len(content))
        self.stable_to = min(self.stable_to, start)
        if end > start:
            durable[start:end] = content[start:end]
        if len(durable) > len(content):
            del durable[len(content) :]
        self.dirty_from = self.dirty_to = -1
        self.version += 1

    def give_up(self, *, keep: bool) -> None:
        """Forget that pages are dirty; `keep` them in the cache as if they were clean."""
        if not keep:
            self.content = bytearray(self.durable)
        self.dirty_from = self.dirty_to = -1

    def cut_power(self, rng: random.Random, mark: Mark) -> None:
        """Let the disk decide what of the unsynced bytes arrived."""
        if self.dirty_from >= 0:
            way = rng.random()
            if way < 0.25:
                if self.content != self.durable:
                    mark("disk.bytes_lost")
            elif way < 0.5:
                self.durable[:] = self.content
            else:
                self._tear(rng, mark)
        self.dirty_from = self.dirty_to = -1
        self.content = bytearray(self.durable)
        self.locked = False
        self.stable_to = 0
        self.version += 1

    def _tear(self, rng: random.Random, mark: Mark) -> None:
        old, new = self.durable, self.content
        size = rng.choice((len(old), len(new), rng.randint(min(len(old), len(new)), max(len(old), len(new)))))
        result = bytearray(old[:size])
        result.extend(bytes(size - len(result)))
        arrived = lost = 0
        odds = rng.choice((0.2, 0.5, 0.8))
        start = max(self.dirty_from, 0) // SECTOR_BYTES * SECTOR_BYTES
        for position in range(start, size, SECTOR_BYTES):
            sector = new[position : min(position + SECTOR_BYTES, size)]
            if result[position : position + len(sector)] == sector:
                continue
            if rng.random() < odds:
                result[position : position + len(sector)] = sector
                arrived += 1
            else:
                lost += 1
        if size != len(new):
            mark("disk.size_lost")
        if arrived and lost:
            mark("disk.sector_torn")
        if lost:
            mark("disk.bytes_lost")
        self.durable = result


class Change:
    """One change of names, in one directory or (a rename) in two."""

    __slots__ = ("edits",)

    def __init__(self, edits: list[tuple[Folder, str, Node | None]]) -> None:
        self.edits = edits

    def settle(self) -> None:
        """Make it durable."""
        for folder, name, node in self.edits:
            folder.version += 1
            if node is None:
                folder.durable.pop(name, None)
            else:
                folder.durable[name] = node


class Folder:
    """One directory."""

    __slots__ = ("changes", "durable", "names", "version")

    def __init__(self) -> None:
        self.version = 0  # counts the changes of `durable`
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.changes: list[Change] = []


Node = Inode | Folder


def mounted() -> Folder:
    """Return an empty disk, mounted at /sim: that directory is there for good."""
    root = Folder()
    root.names["sim"] = root.durable["sim"] = Folder()
    return root


class SimDisk:
    """Implements region.log.filesystem.FileSystem; every handle dies with the process that opened it.

    Attributes:
        power_cut_in: the power goes after so many operations; -1: never.
        fail_syncs, fail_writes: so many of the next ones fail with EIO.
        full: every write that makes a file longer fails with ENOSPC.
        capacity_bytes: what `free_bytes` starts from.
    """

    def __init__(self, *, rng: random.Random, mark: Mark) -> None:
        self.root = mounted()
        self.power_cut_in = -1
        self.powered = True
        self.fail_syncs = 0
        self.fail_writes = 0
        self.full = False
        self.faulty = False  # it has failed operations that the process saw
        self.damaged = False  # a fault made durable bytes wrong: this broker may refuse to start
        self.own_file_system = rng.random() < 0.5
        self.keeps_failed_pages = rng.random() < 0.5
        self.on_sync_failed: Callable[[], None] = lambda: None
        self.sync_us = 200
        self.capacity_bytes = 1 << 40
        self.used_bytes = 0
        self.syncs = 0
        self._rng = rng
        self._mark = mark
        self.names_version = 0  # counts the changes of durable names
        self._open: dict[int, Inode] = {}
        self._folders: dict[Path, Folder] = {}  # found before, in the cache's names
        self._next_handle = 3

    # --- finding things -------------------------------------------------------------------------------

    def find(self, path: Path, *, durable: bool = False) -> Node | None:
        """Return what has this name, as the cache or as the platters have it."""
        node: Node | None = self.root
        for part in path.parts[1:]:
            if not isinstance(node, Folder):
                return None
            node = (node.durable if durable else node.names).get(part)
        return node

    def _folder(self, path: Path) -> Folder:
        known = self._folders.get(path)
        if known is not None:
            return known
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        if not isinstance(node, Folder):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
        self._folders[path] = node
        return node

    def _named(self, path: Path) -> Node | None:
        """Return what has this name in the cache, through its folder."""
        folder = self._folders.get(path.parent)
        return self.find(path) if folder is None else folder.names.get(path.name)

    def _step(self) -> None:
        if not self.powered:
            raise PowerCut
        if self.power_cut_in >= 0:
            if self.power_cut_in == 0:
                self.powered = False
                self._mark("crash.inside_a_write_cycle")
                raise PowerCut
            self.power_cut_in -= 1

    def _change(self, folder: Folder, edits: list[tuple[Folder, str, Node | None]]) -> None:
        change = Change(edits)
        if any(node is None or isinstance(node, Folder) for _, _, node in edits):
            self._folders.clear()
        for touched, name, node in edits:
            if node is None:
                touched.names.pop(name, None)
            else:
                touched.names[name] = node
            if change not in touched.changes:
                touched.changes.append(change)

    # --- FileSystem -----------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        self._step()
        node = self._named(path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            if self.full:
                self._mark("disk.full")
                raise OSError(errno.ENOSPC, "no space left on device", str(path))
            folder = self._folder(path.parent)
            node = Inode()
            self._change(folder, [(folder, path.name, node)])
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, "is a directory", str(path))
        handle = self._next_handle
        self._next_handle += 1
        self._open[handle] = node
        return handle

    def close(self, handle: int) -> None:
        inode = self._open.pop(handle, None)
        if inode is None:
            raise OSError(errno.EBADF, f"handle {handle} is not open")
        inode.locked = False

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        self._step()
        inode = self._open[handle]
        data = b"".join(buffers)
        if self.fail_writes > 0:
            self.fail_writes -= 1
            self._mark("disk.write_failed")
            raise OSError(errno.EIO, "input/output error")
        end = position + len(data)
        if end > len(inode.content):
            if self.full:
                self._mark("disk.full")
                short = len(data) // 2
                self._write(inode, data[:short], position)
                if short:
                    return short
                raise OSError(errno.ENOSPC, "no space left on device")
            self.used_bytes += end - len(inode.content)
        self._write(inode, data, position)
        return len(data)

    def _write(self, inode: Inode, data: bytes, position: int) -> None:
        content = inode.content
        if position > len(content):
            inode.touch(len(content), position)
            content.extend(bytes(position - len(content)))
        content[position : position + len(data)] = data
        inode.touch(position, position + len(data))

    def pread(self, handle: int, size: int, position: int) -> bytes:
        inode = self._open[handle]
        if not self.powered:
            raise PowerCut
        if inode.bad_sectors:
            touched = range(position // SECTOR_BYTES, (position + max(size, 1) - 1) // SECTOR_BYTES + 1)
            if any(sector in inode.bad_sectors for sector in touched):
                self._mark("disk.unreadable_sector")
                raise OSError(errno.EIO, "unreadable sector")
        return bytes(inode.content[position : position + size])

    def size(self, handle: int) -> int:
        return len(self._open[handle].content)

    def truncate(self, handle: int, size: int) -> None:
        self._step()
        inode = self._open[handle]
        before = len(inode.content)
        if size < before:
            del inode.content[size:]
            self.used_bytes -= before - size
        elif size > before:
            inode.content.extend(bytes(size - before))
            self.used_bytes += size - before
        if size != before:
            inode.touch(min(size, before), max(size, before))

    def allocate(self, handle: int, position: int, size: int) -> None:
        """Make the file reach to `position + size`; the new bytes are zeros."""
        self._step()
        inode = self._open[handle]
        before, end = len(inode.content), position + size
        if end > before:
            if self.full:
                self._mark("disk.full")
                raise OSError(errno.ENOSPC, "no space left on device")
            inode.content.extend(bytes(end - before))
            inode.touch(before, end)
            self.used_bytes += end - before

    def fdatasync(self, handle: int) -> None:
        self._step()
        inode = self._open[handle]
        self.syncs += 1
        if self.fail_syncs > 0:
            self.fail_syncs -= 1
            self._fail_sync([inode])
        inode.sync()

    def sync_file_system(self, handle: int) -> None:
        """Sync every file and name of the disk."""
        self._step()
        if self.fail_syncs > 0:
            self.fail_syncs -= 1
            self._fail_sync([inode for _, inode in self.files()])
        self._sync_below(self.root)

    def _fail_sync(self, inodes: Sequence[Inode]) -> None:
        self._mark("disk.sync_failed")
        for inode in inodes:
            if inode.dirty_from >= 0:
                inode.give_up(keep=self.keeps_failed_pages)
                if self.keeps_failed_pages:
                    self._mark("disk.failed_pages_kept")
        staged = [inode for path, inode in self.files() if path.suffix == ".staged"]
        if any(inode not in staged for inode in inodes):  # what is only staged counts for nothing, and is staged again
            self.on_sync_failed()
        raise OSError(errno.EIO, "input/output error")

    def _sync_below(self, folder: Folder) -> None:
        self._settle(folder)
        for node in folder.names.values():
            if isinstance(node, Folder):
                self._sync_below(node)
            else:
                node.sync()

    def free_bytes(self, path: Path) -> int:
        """Return what is left for files."""
        return 0 if self.full else max(0, self.capacity_bytes - self.used_bytes)

    def on_own_file_system(self, path: Path) -> bool:
        """Return whether the data directory has the file system for itself."""
        return self.own_file_system

    def try_lock(self, handle: int) -> bool:
        inode = self._open[handle]
        if inode.locked:
            return False
        inode.locked = True
        return True

    def fsync_directory(self, path: Path) -> None:
        self._step()
        self._settle(self._folder(path))

    def _settle(self, folder: Folder) -> None:
        if not folder.changes:
            return
        self.names_version += 1
        for change in folder.changes:
            change.settle()
            for other, _, _ in change.edits:
                if other is not folder and change in other.changes:
                    other.changes.remove(change)
        folder.changes = []

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        node = self.find(source)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
        old, new = self._folder(source.parent), self._folder(target.parent)
        self._change(old, [(old, source.name, None), (new, target.name, node)])

    def remove(self, path: Path) -> None:
        self._step()
        folder = self._folder(path.parent)
        if path.name not in folder.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        self._change(folder, [(folder, path.name, None)])

    def remove_directory(self, path: Path) -> None:
        self._step()
        if self._folder(path).names:
            raise OSError(errno.ENOTEMPTY, "directory is not empty", str(path))
        parent = self._folder(path.parent)
        self._change(parent, [(parent, path.name, None)])

    def list_directory(self, path: Path) -> list[str]:
        return list(self._folder(path).names)

    def make_directory(self, path: Path) -> None:
        self._step()
        node: Node = self.root
        for part in path.parts[1:]:
            if not isinstance(node, Folder):
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", str(path))
            child = node.names.get(part)
            if child is None:
                child = Folder()
                self._change(node, [(node, part, child)])
            node = child

    def exists(self, path: Path) -> bool:
        return self._named(path) is not None

    def is_directory(self, path: Path) -> bool:
        return isinstance(self.find(path), Folder)

    # --- faults ---------------------------------------------------------------------------------------

    def process_died(self) -> None:
        """Close every handle and lock; the cache stays."""
        for inode in self._open.values():
            inode.locked = False
        self._open.clear()

    def cut_power(self) -> None:
        """Lose what the disk did not get."""
        self.process_died()
        self.names_version += 1
        self._folders.clear()
        self._cut_below(self.root, set())
        self.power_cut_in = -1
        self.powered = True

    def _cut_below(self, folder: Folder, seen: set[int]) -> None:
        way = self._rng.random()
        for change in folder.changes:
            if id(change) in seen:
                continue
            seen.add(id(change))
            if way < 0.3 or (way >= 0.6 and self._rng.random() < 0.5):
                self._mark("disk.name_lost")
            else:
                change.settle()
        folder.changes = []
        for node in list(folder.durable.values()):
            if isinstance(node, Folder):
                self._cut_below(node, seen)
            else:
                node.cut_power(self._rng, self._mark)
        folder.names = dict(folder.durable)

    def strike(self, *, syncs: int = 0, writes: int = 0) -> None:
        """Fail so many of the next syncs and writes."""
        self.fail_syncs += syncs
        self.fail_writes += writes
        self.faulty = True

    def fill(self) -> None:
        """Leave no room."""
        self.full = self.faulty = True

    def empty(self) -> None:
        """Make room again."""
        self.full = False

    def _sealed(self) -> list[tuple[Path, Inode]]:
        """Return the segments that are not written to any more."""
        rows = [(path, inode) for path, inode in self.files() if path.suffix == ".log" and path.parent.name.isdigit()]
        newest = {path.parent: path for path, _ in rows}
        return [(path, inode) for path, inode in rows if newest[path.parent] != path and inode.dirty_from < 0]

    def flip_bit(self, *, sealed: bool = False) -> Path | None:
        """Change one durable bit of one file, of a sealed segment if so wanted; return which file."""
        files = self._sealed() if sealed else self.files()
        files = [(path, inode) for path, inode in files if inode.durable and path.name != "LOCK"]
        if not files:
            return None
        path, inode = self._rng.choice(files)
        position = self._rng.randrange(len(inode.durable))
        bit = 1 << self._rng.randrange(8)
        inode.durable[position] ^= bit
        if position < len(inode.content):
            inode.content[position] ^= bit
        self.damaged = True
        self._mark("disk.bit_flipped")
        return path

    def spoil_sector(self, *, sealed: bool = False) -> Path | None:
        """Make one sector of one log file unreadable, of a sealed segment if so wanted; return which file."""
        files = self._sealed() if sealed else self.files()
        files = [(path, inode) for path, inode in files if inode.durable and path.suffix == ".log"]
        if not files:
            return None
        path, inode = self._rng.choice(files)
        inode.bad_sectors.add(self._rng.randrange(len(inode.durable)) // SECTOR_BYTES)
        self.damaged = True
        return path

    def heal(self) -> None:
        """Work from now on; what was lost stays lost."""
        self.full = False
        self.fail_syncs = self.fail_writes = 0
        self.power_cut_in = -1
        self.sync_us = 200

    def files(self, folder: Folder | None = None, at: Path = Path("/")) -> list[tuple[Path, Inode]]:
        """Return every file by name, in order."""
        found: list[tuple[Path, Inode]] = []
        for name, node in sorted((folder or self.root).names.items()):
            if isinstance(node, Folder):
                found.extend(self.files(node, at / name))
            else:
                found.append((at / name, node))
        return found

    def wipe(self) -> None:
        """Put an empty disk in its place."""
        self.process_died()
        self.names_version += 1
        self._folders.clear()
        self.root = mounted()
        self.used_bytes = 0
