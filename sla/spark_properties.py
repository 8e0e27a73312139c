"""Files of Spark settings, as `spark-submit --properties-file` takes them: how a secret reaches Spark unseen.

Rule 1: a secret is never an argument of a process: everybody on the machine can list those.
Rule 2: a file that holds one is readable by its owner alone, and refused when it is not.

Source: the format is that of java.util.Properties; of it only what Spark's own templates use is read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sla.errors import UsageError

FILE_BYTES_MAX: Final = 64 * 1024
OWNER_ONLY: Final = 0o600
_LINE: Final = re.compile(r"([^\s=:]+)(?:\s*[=:]\s*|\s+)(.*)")
_SECRET: Final = re.compile(r"secret|password|passphrase|token|access[.]?key|credential", re.IGNORECASE)


# For spark.redaction.regex: what Spark hides in its pages, event log and plans; its own default knows fewer names.
REDACTED: Final = f"(?i){_SECRET.pattern}"


def is_secret(key: str) -> bool:
    """Return whether the value of a setting must not be seen."""
    return _SECRET.search(key) is not None


def encode_properties(settings: Mapping[str, str]) -> bytes:
    """Return the bytes of a settings file.

    Raises:
        UsageError: a key or value that the format cannot hold on one line.
    """
    lines = []
    for key, value in settings.items():
        if not re.fullmatch(r"[^\s=:#!\\]+", key) or re.search(r"[\n\r\0]", value) or value != value.strip():
            raise UsageError(f"the Spark setting {key!r} or its value cannot be written to a settings file")
        lines.append(f"{key}={_escaped(value)}\n")
    return "".join(lines).encode("ascii")


def _escaped(value: str) -> str:
    units = value.replace("\\", "\\\\").encode("utf-16-be")
    pairs = (int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2))
    return "".join(chr(unit) if 0x20 <= unit < 0x7F else f"\\u{unit:04x}" for unit in pairs)


def decode_properties(text: str, name: str) -> list[tuple[str, str]]:
    r"""Return the settings of a file in their order.

    Args:
        name: of the file, for errors.

    Raises:
        UsageError: a line without a value, or one with a backslash: escapes and continued lines are not read.
    """
    settings = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        match = _LINE.fullmatch(stripped)
        if match is None or "\\" in stripped:
            raise UsageError(f"{name}, line {number}: write `key value` on one line, without a backslash")
        settings.append((match[1], match[2]))
    return settings


def read_properties(path: Path) -> list[tuple[str, str]]:
    """Return the settings of a file.

    Raises:
        UsageError: it cannot be read or understood, or holds a secret that others can read.
    """
    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            raw = file.read(FILE_BYTES_MAX + 1)
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UsageError(f"the settings file {path} cannot be read: {reason}") from None
    if len(raw) > FILE_BYTES_MAX:
        raise UsageError(f"the settings file {path} is longer than {FILE_BYTES_MAX} bytes")
    settings = decode_properties(text, str(path))
    if any(is_secret(key) for key, _ in settings):
        refuse_if_shared(path, state)
    return settings


def refuse_if_shared(path: Path, state: os.stat_result) -> None:
    """Refuse a file with a secret that others than its owner can read or change.

    Raises:
        UsageError: the line says what to do.
    """
    if state.st_uid not in (os.geteuid(), 0):
        raise UsageError(f"{path} holds a secret and belongs to another user")
    if stat.S_IMODE(state.st_mode) & 0o077:
        raise UsageError(f"{path} holds a secret that other users can read: run chmod 600 {path}")
