"""Build hook: turns the contracts below proto/ into modules (git-ignored, never committed).

`broker.proto` becomes region/api/_pb, the contracts of the native API become sdk/georelay/_pb, which brokers use too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BROKER_CONTRACTS: Final = ("broker.proto",)  # below proto/


class ProtobufBuildHook(BuildHookInterface[Any]):
    """Runs protoc from grpcio-tools before a wheel or an editable install is made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate the modules. Raises RuntimeError when protoc refuses a contract."""
        del version, build_data
        root = Path(self.root)
        sys.path.insert(0, str(root / "sdk"))
        try:
            import build_hook
        finally:
            sys.path.remove(str(root / "sdk"))
        proto = root / "proto"
        build_hook.generate(BROKER_CONTRACTS, source=proto, package=root / "region" / "api" / "_pb")
        build_hook.generate(build_hook.CONTRACTS, source=proto, package=root / "sdk" / build_hook.PACKAGE)
