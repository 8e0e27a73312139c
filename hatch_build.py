"""Build hook: turns proto/broker.proto into region/api/_pb/broker_pb2.py (git-ignored, never committed).

The module gets a descriptor pool of its own: protobuf knows every name once per pool, and a user's stubs made from
the same contract under another file name must load beside ours.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProtobufBuildHook(BuildHookInterface[Any]):
    """Runs protoc from grpcio-tools before a wheel or an editable install is made."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate the modules. Raises RuntimeError when protoc refuses the file."""
        del version, build_data
        from grpc_tools import protoc

        root = Path(self.root)
        target = root / "region" / "api" / "_pb"
        target.mkdir(parents=True, exist_ok=True)
        (target / "__init__.py").write_text('"""Generated from proto/ by the build hook; do not edit."""\n')
        code = protoc.main(
            [
                "protoc",
                f"-I{root / 'proto'}",
                f"--python_out={target}",
                f"--pyi_out={target}",
                str(root / "proto" / "broker.proto"),
            ]
        )
        if code != 0:
            raise RuntimeError(f"protoc ended with {code} for proto/broker.proto; see its message above")
        module = target / "broker_pb2.py"
        generated = module.read_text()
        private = generated.replace("_descriptor_pool.Default()", "_descriptor_pool.DescriptorPool()")
        if private == generated:
            raise RuntimeError("protoc no longer writes _descriptor_pool.Default(); change this hook")
        module.write_text(private)
        sys.stdout.flush()
