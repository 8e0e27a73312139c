"""What one end of a link has to say and its carrier has not taken yet: in which order it leaves. Pure.

Rule 1: the part that introduces this end leaves before everything else.
Rule 2: what belongs to no session is urgent: it leaves before records.
Rule 3: of one session nothing overtakes anything that it depends on: while the part that opens a session waits, the
        session is held, and what is said about it waits behind that part.
Rule 4: a frame is closed at `frame_bytes`; a larger single part travels alone.
"""

from __future__ import annotations

from collections import deque


class Outbox:
    """Encoded parts, each a tuple of buffers that are copied only into the frame.

    Invariants: 1 size_bytes = bytes of all that waits   2 a held session has a part that waits.

    Args:
        frame_bytes: a frame is closed at this size.
    """

    def __init__(self, *, frame_bytes: int) -> None:
        self.size_bytes = 0
        self._frame_bytes = frame_bytes
        self._urgent: deque[tuple[bytes, ...]] = deque()
        self._ordered: deque[tuple[bytes, ...]] = deque()
        self._ordered_count = 0  # ever
        self._taken_count = 0  # of them
        self._held: dict[int, int] = {}  # session -> how many ordered parts must have left

    @property
    def has_urgent(self) -> bool:
        """Return whether something waits that nothing may hold up."""
        return bool(self._urgent)

    def introduce(self, part: bytes) -> None:
        """Let a part leave before everything else."""
        self._urgent.appendleft((part,))
        self.size_bytes += len(part)

    def hurry(self, part: bytes) -> None:
        """Let a part leave before all ordered ones, behind the urgent ones before it."""
        self._urgent.append((part,))
        self.size_bytes += len(part)

    def queue(self, *buffers: bytes) -> None:
        """Let a part leave behind all ordered ones before it."""
        self._ordered.append(buffers)
        self._ordered_count += 1
        self.size_bytes += sum(map(len, buffers))

    def hold(self, session: int) -> None:
        """Let what is said about a session from now on wait for the newest ordered part."""
        self._held[session] = self._ordered_count

    def is_held(self, session: int) -> bool:
        """Return whether something about the session may not be urgent now."""
        return session in self._held

    def take(self, *, only_urgent: bool) -> list[bytes]:
        """Return the buffers of the next frame; they wait no more. `only_urgent`: the ordered parts stay."""
        buffers: list[bytes] = []
        size = self._fill(buffers, self._urgent, 0)
        if not only_urgent:
            before = len(self._ordered)
            size = self._fill(buffers, self._ordered, size)
            self._taken_count += before - len(self._ordered)
            if self._held:
                self._held = {row: count for row, count in self._held.items() if count > self._taken_count}
        self.size_bytes -= size
        return buffers

    def _fill(self, buffers: list[bytes], parts: deque[tuple[bytes, ...]], size: int) -> int:
        while parts:
            part_bytes = sum(map(len, parts[0]))
            if buffers and size + part_bytes > self._frame_bytes:
                break
            buffers.extend(parts.popleft())
            size += part_bytes
        return size

    def clear(self) -> None:
        """Forget everything."""
        self._urgent.clear()
        self._ordered.clear()
        self._held.clear()
        self.size_bytes = 0
