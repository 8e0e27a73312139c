"""One file whose writes stay in this process until they are synced: a kill -9 then does what a power cut does.

The page cache of the kernel survives the death of a process, so killing a broker alone never loses a write. Here
writes are kept in order and reach the kernel at `flush` only; a kill in the middle of it leaves a torn file.
"""

from __future__ import annotations

import os
import threading
from typing import Final

_CUT: Final = None


class UnsyncedFile:
    """The content of a file as programs see it: what the kernel has, and what was written since the last flush."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changes: list[tuple[int, bytes | None]] = []  # (position, data), or (length, None) for a cut

    def write(self, position: int, data: bytes) -> None:
        """Keep a write."""
        with self._lock:
            self._changes.append((position, data))

    def cut(self, size: int) -> None:
        """Keep a change of length."""
        with self._lock:
            self._changes.append((size, _CUT))

    def size(self, handle: int) -> int:
        """Return the length with everything that was written."""
        with self._lock:
            return self._size(handle)

    def read(self, handle: int, size: int, position: int) -> bytes:
        """Return up to `size` bytes from `position`, as written."""
        with self._lock:
            if not self._changes:
                return os.pread(handle, size, position)
            window = bytearray(size)
            there = os.pread(handle, size, position)
            window[: len(there)] = there
            for at, data in self._changes:
                if data is _CUT:
                    keep = min(size, max(0, at - position))
                    window[keep:] = bytes(size - keep)
                else:
                    _lay_over(window, position, at, data)
            return bytes(window[: max(0, self._size(handle) - position)])

    def flush(self, handle: int) -> None:
        """Give everything to the kernel, in order. Raises OSError; what was not given stays."""
        with self._lock:
            while self._changes:
                at, data = self._changes[0]
                if data is _CUT:
                    os.ftruncate(handle, at)
                else:
                    _write_all(handle, data, at)
                del self._changes[0]

    def _size(self, handle: int) -> int:
        size = os.fstat(handle).st_size
        for at, data in self._changes:
            size = at if data is _CUT else max(size, at + len(data))
        return size


def _lay_over(window: bytearray, start: int, at: int, data: bytes) -> None:
    """Write what of `data` (at `at`) falls into the window (at `start`)."""
    first, last = max(start, at), min(start + len(window), at + len(data))
    if first < last:
        window[first - start : last - start] = data[first - at : last - at]


def _write_all(handle: int, data: bytes, position: int) -> None:
    rest = memoryview(data)
    while rest:
        done = os.pwrite(handle, rest, position)
        rest, position = rest[done:], position + done
