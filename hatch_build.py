"""Build hook: turns the contracts below proto/ into modules below region/api/_pb/ (git-ignored, never committed).

The modules get descriptor pools of their own: protobuf knows every name once per pool, and a user's stubs made from
the same contract under another file name must load beside ours.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CONTRACTS: Final = ("broker.proto", "georelay/v1/admin.proto")  # below proto/


class ProtobufBuildHook(BuildHookInterface[Any]):
    """Runs protoc from grpcio-tools before a wheel or an editable install is made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate the modules. Raises RuntimeError when protoc refuses a contract."""
        del version, build_data
        from grpc_tools import protoc

        source = Path(self.root) / "proto"
        target = Path(self.root) / "region" / "api" / "_pb"
        target.mkdir(parents=True, exist_ok=True)
        code = protoc.main(
            ["protoc", f"-I{source}", f"--python_out={target}", f"--pyi_out={target}"]
            + [str(source / contract) for contract in CONTRACTS]
        )
        if code != 0:
            raise RuntimeError(f"protoc ended with {code} for {', '.join(CONTRACTS)}; see its message above")
        for contract in CONTRACTS:
            module = (target / contract).with_name(f"{Path(contract).stem}_pb2.py")
            _use_private_pool(module)
            _mark_packages(module.parent, up_to=target)
        sys.stdout.flush()


def _use_private_pool(module: Path) -> None:
    generated = module.read_text()
    private = generated.replace("_descriptor_pool.Default()", "_descriptor_pool.DescriptorPool()")
    if private == generated:
        raise RuntimeError("protoc no longer writes _descriptor_pool.Default(); change this hook")
    module.write_text(private)


def _mark_packages(folder: Path, *, up_to: Path) -> None:
    """Make a package of `folder` and of what lies between it and `up_to`."""
    for package in (folder, *folder.parents):
        (package / "__init__.py").write_text('"""Generated from proto/ by the build hook; do not edit."""\n')
        if package == up_to:
            return
