"""Turns contracts into Python modules without a service framework: protoc, a pool of their own, flat names.

Both distributions use it: `georelay` (this folder) as its hatchling build hook, `georelay-server` (the folder above)
through its own hook. `python sdk/build_hook.py` does the same by hand.

Rule 1: what is generated is never committed.
Rule 2: every contract gets a descriptor pool of its own: protobuf knows every name once per pool, and a user's stubs
        made from the same contract under another file name must load beside ours.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SDK: Final = Path(__file__).resolve().parent
NAMES: Final = ("admin", "streams", "carried", "routes")
CONTRACTS: Final = tuple(f"georelay/v1/{name}.proto" for name in NAMES)  # below proto/
PACKAGE: Final = "georelay/_pb"  # below the SDK's folder
_NOTE: Final = '"""Generated from proto/ by the build hook; do not edit."""\n'


class ContractsBuildHook(BuildHookInterface[Any]):
    """Generates the SDK's modules before a wheel, an sdist or an editable install of it is made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate the modules. Raises RuntimeError when protoc refuses a contract."""
        del version
        source = contracts_folder(Path(self.root))
        generate(CONTRACTS, source=source, package=Path(self.root) / PACKAGE)
        if self.target_name == "sdist":  # a wheel is made from an sdist too, and there is no folder above it then
            build_data["force_include"].update({str(source / name): f"proto/{name}" for name in CONTRACTS})


def contracts_folder(sdk: Path) -> Path:
    """Return the folder `proto` of the checkout that `sdk` is in, or of the sdist that it is."""
    return next(folder for folder in (sdk / "proto", sdk.parent / "proto") if folder.is_dir())


def generate(contracts: Sequence[str], *, source: Path, package: Path) -> None:
    """Write `<name>_pb2.py` and `.pyi` of each contract (a path below `source`) into the folder `package`.

    Raises:
        RuntimeError: protoc refused a contract; it has printed why.
    """
    from grpc_tools import protoc

    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(_NOTE)
    with tempfile.TemporaryDirectory() as scratch:
        code = protoc.main(
            ["protoc", f"-I{source}", f"--python_out={scratch}", f"--pyi_out={scratch}"]
            + [str(source / contract) for contract in contracts]
        )
        if code != 0:
            raise RuntimeError(f"protoc ended with {code} for {', '.join(contracts)}; see its message above")
        for contract in contracts:
            stem = Path(scratch) / contract.removesuffix(".proto")
            module = stem.with_name(f"{stem.name}_pb2.py")
            (package / module.name).write_text(_with_private_pool(module.read_text()))
            (package / f"{module.name}i").write_text(module.with_suffix(".pyi").read_text())
    sys.stdout.flush()


def _with_private_pool(generated: str) -> str:
    private = generated.replace("_descriptor_pool.Default()", "_descriptor_pool.DescriptorPool()")
    if private == generated:
        raise RuntimeError("protoc no longer writes _descriptor_pool.Default(); change this hook")
    return private


if __name__ == "__main__":
    generate(CONTRACTS, source=contracts_folder(SDK), package=SDK / PACKAGE)
