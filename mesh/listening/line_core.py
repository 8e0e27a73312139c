"""Bytes of a connection into lines. Pure.

Rule 1: no more than one line's limit is buffered; a longer line is dropped to its end and reported once.
Rule 2: what telnet itself says (RFC 854: IAC and what follows) is taken out; 0xFF is no byte of UTF-8.
Rule 3: a line ends with LF; a CR before it, and NUL after a CR, do not belong to it.
"""

from __future__ import annotations

import enum
from typing import Final

IAC: Final = 0xFF  # telnet: interpret as command
_SUB_BEGIN: Final = 0xFA
_SUB_END: Final = 0xF0
_WITH_OPTION: Final = range(0xFB, 0xFF)  # WILL, WON'T, DO, DON'T: one byte follows


class Overlong:
    """Stands for a line that was over the limit."""

    def __repr__(self) -> str:
        return "OVERLONG"


OVERLONG: Final = Overlong()
Line = bytes | Overlong


class _Telnet(enum.Enum):
    TEXT = "text"
    COMMAND = "command"  # IAC came
    OPTION = "option"  # one byte more
    INSIDE = "inside"  # of a sub-negotiation
    INSIDE_COMMAND = "inside_command"  # IAC came there


class LineBuffer:
    """Collects the lines of one connection.

    Args:
        line_bytes_max: of one line, its end not counted; may be changed at any time.
    """

    def __init__(self, line_bytes_max: int) -> None:
        self.line_bytes_max = line_bytes_max
        self._buffer = bytearray()
        self._is_dropping = False
        self._telnet = _Telnet.TEXT

    @property
    def buffered_bytes(self) -> int:
        """Return the bytes held of a line that has not ended."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Line]:
        """Return the lines that `data` completes, in order."""
        if self._telnet is not _Telnet.TEXT or IAC in data:
            data = self._without_telnet(data)
        *ended, rest = data.split(b"\n")
        lines: list[Line] = []
        for part in ended:
            self._take(part, lines)
            if not self._is_dropping:
                lines.append(bytes(self._buffer).rstrip(b"\r\0"))
            self._is_dropping = False
            self._buffer.clear()
        self._take(rest, lines)
        return lines

    def _take(self, part: bytes, lines: list[Line]) -> None:
        if self._is_dropping:
            return
        if len(self._buffer) + len(part) > self.line_bytes_max + 2:  # CR, NUL
            self._buffer.clear()
            self._is_dropping = True
            lines.append(OVERLONG)
        else:
            self._buffer += part

    def _without_telnet(self, data: bytes) -> bytes:
        text, state = bytearray(), self._telnet
        for byte in data:
            match state:
                case _Telnet.TEXT if byte == IAC:
                    state = _Telnet.COMMAND
                case _Telnet.TEXT:
                    text.append(byte)
                case _Telnet.COMMAND if byte in _WITH_OPTION:
                    state = _Telnet.OPTION
                case _Telnet.COMMAND:
                    state = _Telnet.INSIDE if byte == _SUB_BEGIN else _Telnet.TEXT
                case _Telnet.OPTION:
                    state = _Telnet.TEXT
                case _Telnet.INSIDE if byte == IAC:
                    state = _Telnet.INSIDE_COMMAND
                case _Telnet.INSIDE_COMMAND:
                    state = _Telnet.TEXT if byte == _SUB_END else _Telnet.INSIDE
        self._telnet = state
        return bytes(text)
