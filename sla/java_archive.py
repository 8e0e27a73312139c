"""Where the start-up archive of Spark's JVM is, and the options that use it.

Spark loads some ten thousand classes before the first query. An archive holds them as the JVM keeps them in memory:
with one a session and its first query take less than half the CPU (JEP 350, dynamic archives of Java 13 and newer). The
JVM looks at version, class path and times of the jars by itself, and starts without an archive that does not fit.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark


def archive_path(prefix: str = sys.prefix) -> Path:
    """Return where the archive of the installed Spark belongs, whether it is there or not."""
    return Path(prefix, "share", "georelay", f"spark-{pyspark.__version__}.jsa")


def archive_options(path: Path) -> str:
    """Return the JVM's options that start from an archive; empty without one.

    A path with white space is left out: what takes these options splits them there.
    """
    if not path.is_file() or any(character.isspace() or character == '"' for character in str(path)):
        return ""
    return f"-XX:SharedArchiveFile={path} -Xlog:cds*=off -Xlog:class+path*=off"  # it says nothing of one that is old
