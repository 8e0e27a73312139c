"""The simulator is a package of its own (`python -m tests.sim`); its tests import it from the repository's root."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
