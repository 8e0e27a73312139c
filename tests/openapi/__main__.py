"""`make openapi`: schemathesis sends to a mesh of this checkout what its own OpenAPI document allows, and does not.

    python -m tests.openapi SCHEMATHESIS [EXAMPLES] [SEED]

Left out: streams that do not end, pages, metrics, and the live view, which a mesh without `georelay-sla live` has not.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from loadtest.mesh_process import MeshProcess

CHECKS: Final = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
LEFT_OUT: Final = "/events$|^/v1/socket$|^/console|^/v1/live$|^/metrics"
ANSWER_S_MAX: Final = 45  # a read waits for 30 s when it is asked to
RUN_S_MAX: Final = 240


async def run(schemathesis: str, examples: str, seed: str) -> int:
    """Return schemathesis' exit code."""
    with tempfile.TemporaryDirectory() as directory:
        async with MeshProcess(Path(directory), regions="us,eu", brokers_per_region=1) as mesh:
            command = [
                *(schemathesis, "run", f"{mesh.gateway}/v1/openapi.json", "--seed", seed, "-n", examples, "--no-color"),
                *("--checks", ",".join((*CHECKS, "refused_and_not_broken")), "--exclude-path-regex", LEFT_OUT),
                *("--phases", "examples,coverage,fuzzing", "--request-timeout", str(ANSWER_S_MAX)),
                *("--max-time", str(RUN_S_MAX), "--continue-on-failure", "--warnings", "off"),
            ]
            hooks = {"SCHEMATHESIS_HOOKS": str(Path(__file__).with_name("hooks.py"))}
            process = await asyncio.create_subprocess_exec(*command, env=os.environ | hooks)
            return await process.wait()


if __name__ == "__main__":
    program, *rest = sys.argv[1:]
    sys.exit(asyncio.run(run(program, *(rest + ["10", "1"][len(rest) :]))))
