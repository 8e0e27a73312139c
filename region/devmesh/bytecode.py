"""Our modules are compiled once, before ten processes import all of them at the same time.

Compiling takes as long as everything else that an import does, and a package that is installed editable is compiled by
whoever imports it first: that is ten processes at once, and all of them again at every start where Python is told to
leave nothing behind (PYTHONDONTWRITEBYTECODE).

Rule 1: what is compiled already costs a look at each file (0.05 s).
Rule 2: where nothing can be written (a read-only installation) nothing is lost but time.
"""

from __future__ import annotations

import compileall
import importlib.util
from typing import Final

PACKAGES: Final = ("georelay", "mesh", "region", "gateway")
_SILENT: Final = 2


def compile_packages() -> None:
    """Compile the modules that are newer than their compiled form, into the places where Python looks for them."""
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        for folder in () if spec is None else spec.submodule_search_locations or ():
            compileall.compile_dir(folder, quiet=_SILENT)
