"""The directory that a run works in: gone when the run is over, but for what explains a failure.

Rule: what an error names is there to be read. When a run fails, its logs, configurations and answers stay where they
are, and a line on standard error says where; data, which may be gigabytes, goes.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

KEPT_SUFFIXES: Final = (".log", ".toml", ".json")
DATA_FOLDER: Final = "brokers"  # of brokers, whose segments are called *.log too


@contextlib.contextmanager
def scratch_directory(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a directory below `parent` (default: the system's for temporary files) and delete it at the end."""
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield directory
    except Exception:
        _keep_what_explains(directory)
        raise
    except BaseException:
        shutil.rmtree(directory)
        raise
    shutil.rmtree(directory)


def _keep_what_explains(directory: Path) -> None:
    for path in sorted(directory.rglob("*"), reverse=True):  # what is inside comes before the folder
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):  # something in it was kept
                path.rmdir()
        elif path.suffix not in KEPT_SUFFIXES or DATA_FOLDER in path.parts:
            path.unlink()
    if any(directory.iterdir()):
        sys.stderr.write(f"its logs are left in {directory}\n")
    else:
        directory.rmdir()
