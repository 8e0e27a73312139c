"""The code of another commit of this repository, made ready to run beside this one with the same Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from loadtest.campaign.mesh import CampaignFailed

CHECKOUT: Final = Path(__file__).resolve().parents[2]
GENERATE: Final = """
import sys
from pathlib import Path
root = Path.cwd()
sys.path[:0] = [str(root / "sdk"), str(root)]
import build_hook, hatch_build
build_hook.generate(hatch_build.BROKER_CONTRACTS, source=root / "proto", package=root / "region" / "api" / "_pb")
build_hook.generate(build_hook.CONTRACTS, source=root / "proto", package=root / "sdk" / build_hook.PACKAGE)
"""


def unpack_version(commit: str, folder: Path) -> Path:
    """Write the code of a commit into a new folder and compile its contracts; return the folder.

    The dependencies are those that are installed: a version that needs others cannot be run so.

    Raises:
        CampaignFailed: no git, no such commit, or its contracts do not compile.
    """
    folder.mkdir(parents=True)
    archive = _run(["git", "archive", "--format=tar", commit], CHECKOUT, f"cannot take {commit} from git")
    _run(["tar", "x"], folder, f"cannot unpack {commit}", given=archive)
    _run([sys.executable, "-P", "-c", GENERATE], folder, f"the contracts of {commit} do not compile")
    return folder


def _run(words: list[str], folder: Path, failed: str, given: bytes = b"") -> bytes:
    try:
        done = subprocess.run(words, cwd=folder, input=given, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise CampaignFailed(f"{failed}: {words[0]} is not installed") from error
    if done.returncode:
        raise CampaignFailed(f"{failed}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
