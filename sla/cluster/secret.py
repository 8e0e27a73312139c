"""The secret of a cluster: one settings file that masters, workers and jobs share, mode 0600.

Who holds it may run programs as the user of the workers. It never travels: each side proves that it knows it, and what
they say to each other is encrypted (Spark's `spark.network.crypto`, AES-GCM).

Source: Spark's security guide, "Spark RPC"; SPARK-47172 for the cipher. The standalone
master takes no secret in a file of its own (`spark.authenticate.secret.file` is for Kubernetes).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

from sla.errors import UsageError
from sla.spark_properties import OWNER_ONLY, encode_properties, read_properties

FILE_NAME: Final = "secret.conf"
SECRET_BYTES: Final = 32
_KEY: Final = "spark.authenticate.secret"
_SECRET_CHARACTERS_MIN: Final = 32
# Only a master reads the last one; its REST port would take jobs from anybody, and Spark opens it by default.
_REQUIRED: Final = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",  # Spark's default, CTR, lets the network change what is said
    "spark.master.rest.enabled": "false",
}


def ensure_secret(path: Path) -> bool:
    """Make the file when it is missing; return whether it was made.

    Raises:
        UsageError: a file that stands there is none of ours, or others can read it.
    """
    made = False
    if not path.exists():
        made = _write(path)
    check_secret(path)
    return made


def _write(path: Path) -> bool:
    content = encode_properties(_REQUIRED | {_KEY: secrets.token_hex(SECRET_BYTES)})
    in_progress = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(in_progress, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, OWNER_ONLY)
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        # A link, not a rename: of two that begin at once the first one's secret stays.
        os.link(in_progress, path)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(FileNotFoundError):
            in_progress.unlink()
    return True


def check_secret(path: Path) -> None:
    """Refuse a file that would leave a cluster open.

    Raises:
        UsageError: it is missing, others can read it, or it does not switch on all that we rely on.
    """
    if not path.is_file():
        raise UsageError(f"there is no secret in {path}: copy {FILE_NAME} from the master's directory (chmod 600)")
    settings = dict(read_properties(path))
    if len(settings.get(_KEY, "")) < _SECRET_CHARACTERS_MIN:
        raise UsageError(f"{path} needs {_KEY} with at least {_SECRET_CHARACTERS_MIN} characters")
    for key, value in _REQUIRED.items():
        if settings.get(key, "").lower() != value.lower():
            raise UsageError(f"{path} must say `{key} {value}`")
