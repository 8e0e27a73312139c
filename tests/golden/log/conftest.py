"""The file systems and entry maker of the unit tests of the log, for the tests of this folder too."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_PATH = Path(__file__).parents[2] / "unit" / "log" / "conftest.py"
_SPEC = importlib.util.spec_from_file_location(f"{__name__}_shared", _PATH)
assert _SPEC is not None and _SPEC.loader is not None
_SHARED = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = _SHARED
_SPEC.loader.exec_module(_SHARED)

make = _SHARED.make
crash_fs = _SHARED.crash_fs
entry_maker = _SHARED.entry_maker
