"""A file system in memory that loses, when its power is cut, whatever was not synced."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from region.log.filesystem import Buffer


class PowerSupply:
    """What all disks of a region hang on: cut once, they all stop in the same instant."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_on = True


class _File:
    """Content as programs see it, and how to undo what was written since the last sync."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.undo: list[tuple[int, bytes, int]] = []  # position, bytes before, length before

    def change(self, position: int, data: bytes) -> None:
        self.undo.append((position, bytes(self.content[position : position + len(data)]), len(self.content)))
        self.content.extend(bytes(max(0, position - len(self.content))))
        self.content[position : position + len(data)] = data

    def cut(self, size: int) -> None:
        self.undo.append((size, bytes(self.content[size:]), len(self.content)))
        del self.content[size:]
        self.content.extend(bytes(size - len(self.content)))

    def lose_unsynced(self) -> None:
        while self.undo:
            position, before, length = self.undo.pop()
            self.content[position : position + len(before)] = before
            del self.content[length:]


class PowerCutFileSystem:
    """Files in memory. When the power is cut every byte and every name that was not synced is gone.

    `sync_works=False` patches the sync out: it returns at once and does nothing.
    """

    def __init__(self, supply: PowerSupply, *, root: Path, sync_seconds: float = 0.003) -> None:
        self.sync_works = True
        self.bytes_lost = 0
        self._supply = supply
        self._sync_seconds = sync_seconds
        self._root = root
        self._names: dict[Path, _File | None] = {root: None}  # None: a directory
        self._durable_names: dict[Path, _File | None] = {root: None}
        self._handles: dict[int, _File] = {}
        self._next_handle = 1_000

    def unsynced_bytes(self) -> int:
        """Return how many bytes a power cut would take back now."""
        files = [file for file in self._names.values() if file is not None]
        return sum(max(0, len(file.content) - (file.undo[0][2] if file.undo else len(file.content))) for file in files)

    def on_new_supply(self, supply: PowerSupply) -> PowerCutFileSystem:
        """Return the disk as it is found after the power came back. Call it with the old supply off."""
        found = PowerCutFileSystem(supply, root=self._root, sync_seconds=self._sync_seconds)
        found.bytes_lost = self.unsynced_bytes()
        names = self._durable_names
        found._names = {
            path: file for path, file in names.items() if path == self._root or self._reachable(path, names)
        }
        for file in {id(file): file for file in found._names.values() if file is not None}.values():
            file.lose_unsynced()
        found._durable_names = dict(found._names)
        return found

    def _reachable(self, path: Path, names: dict[Path, _File | None]) -> bool:
        return all(parent in names for parent in path.parents if self._root in (parent, *parent.parents))

    def _powered(self) -> None:
        if not self._supply.is_on:
            raise OSError(errno.EIO, "the power is off")

    def _file(self, path: Path) -> _File:
        file = self._names.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return file

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        with self._supply.lock:
            self._powered()
            if create and path not in self._names:
                if path.parent not in self._names:
                    raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))
                self._names[path] = _File()
            self._next_handle += 1
            self._handles[self._next_handle] = self._file(path)
            return self._next_handle

    def close(self, handle: int) -> None:
        self._handles.pop(handle, None)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        data = b"".join(buffers)
        with self._supply.lock:
            self._powered()
            self._handles[handle].change(position, data)
        return len(data)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        with self._supply.lock:
            self._powered()
            return bytes(self._handles[handle].content[position : position + size])

    def size(self, handle: int) -> int:
        with self._supply.lock:
            self._powered()
            return len(self._handles[handle].content)

    def truncate(self, handle: int, size: int) -> None:
        with self._supply.lock:
            self._powered()
            self._handles[handle].cut(size)

    def fdatasync(self, handle: int) -> None:
        with self._supply.lock:
            self._powered()
            file = self._handles[handle]
            changes = len(file.undo)
        if not self.sync_works:
            return
        time.sleep(self._sync_seconds)  # in the flusher's thread; the power may go meanwhile
        with self._supply.lock:
            self._powered()
            del file.undo[:changes]

    def fsync_directory(self, path: Path) -> None:
        with self._supply.lock:
            self._powered()
            if not self.sync_works:
                return
            for name in [name for name in self._durable_names if name.parent == path and name not in self._names]:
                del self._durable_names[name]
            self._durable_names.update({name: file for name, file in self._names.items() if name.parent == path})

    def try_lock(self, handle: int) -> bool:
        return True

    def rename(self, source: Path, target: Path) -> None:
        with self._supply.lock:
            self._powered()
            self._names[target] = self._file(source)
            del self._names[source]

    def remove(self, path: Path) -> None:
        with self._supply.lock:
            self._powered()
            self._file(path)
            del self._names[path]

    def remove_directory(self, path: Path) -> None:
        with self._supply.lock:
            self._powered()
            del self._names[path]

    def list_directory(self, path: Path) -> list[str]:
        with self._supply.lock:
            self._powered()
            if path not in self._names:
                raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
            return [child.name for child in self._names if child.parent == path and child != path]

    def make_directory(self, path: Path) -> None:
        with self._supply.lock:
            self._powered()
            for missing in [each for each in [*reversed(path.parents), path] if self._root in each.parents]:
                self._names.setdefault(missing, None)

    def exists(self, path: Path) -> bool:
        with self._supply.lock:
            self._powered()
            return path in self._names

    def is_directory(self, path: Path) -> bool:
        with self._supply.lock:
            self._powered()
            return path in self._names and self._names[path] is None

    def allocate(self, handle: int, position: int, size: int) -> None:
        with self._supply.lock:
            self._powered()
            length = len(self._handles[handle].content)
            if position + size > length:
                self._handles[handle].change(length, bytes(position + size - length))

    def sync_file_system(self, handle: int) -> None:
        raise OSError(errno.ENOSYS, "not a file system of its own")

    def free_bytes(self, path: Path) -> int:
        return 1 << 40

    def on_own_file_system(self, path: Path) -> bool:
        return False
