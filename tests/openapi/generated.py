"""`make client`: a client that openapi-python-client makes of a mesh's own OpenAPI document publishes and reads.

    python -m tests.openapi.generated BIN FOLDER

BIN is the environment of the generator, FOLDER takes what it makes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from loadtest.mesh_process import MeshProcess

PACKAGE: Final = "georelay_generated"
USES: Final = Path(__file__).with_name("generated_client.py")


async def run(programs: Path, folder: Path) -> int:
    """Return the exit code of the first of both that failed, 0 where none did."""
    with tempfile.TemporaryDirectory() as directory:
        async with MeshProcess(Path(directory), regions="us", brokers_per_region=1) as mesh:
            document = f"{mesh.gateway}/v1/openapi.json"
            return await generate(programs, folder, document) or await use(programs, folder, mesh.gateway)


async def generate(programs: Path, folder: Path, document: str) -> int:
    """Make the client of the document at a URL."""
    command = [str(programs / "openapi-python-client"), "generate", "--url", document, "--meta", "none"]
    command += ["--output-path", str(folder / PACKAGE), "--overwrite"]
    path = {"PATH": f"{programs}:{os.environ['PATH']}"}
    process = await asyncio.create_subprocess_exec(*command, env=os.environ | path)
    return await process.wait()


async def use(programs: Path, folder: Path, gateway: str) -> int:
    """Let it publish and read, in an environment that has nothing of ours."""
    command = [str(programs / "python"), str(USES), gateway]
    process = await asyncio.create_subprocess_exec(*command, env=os.environ | {"PYTHONPATH": str(folder)})
    return await process.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(run(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute())))
