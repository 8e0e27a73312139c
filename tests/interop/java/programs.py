"""Java programs as child processes: one that is run to its end, and ones that serve until they are stopped."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
SECONDS_MAX: Final = 300
STOP_SECONDS_MAX: Final = 20
QUIET: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


class StepFailed(Exception):
    """A program did not do what it should; the text says what it said."""


class Java:
    """A class path, and a folder for what programs write."""

    def __init__(self, jars: Sequence[Path], scratch: Path) -> None:
        self.scratch = scratch
        self._path = ":".join(map(str, [scratch, *jars]))

    def compile(self, source: str) -> None:
        """Compile a program of this folder."""
        command = ["javac", "-cp", self._path, "-d", str(self.scratch), str(HERE / source)]
        subprocess.run(command, check=True)

    async def run(self, program: str, *arguments: str, may_fail: bool = False, seconds: int = SECONDS_MAX) -> str:
        """Return what a program printed. Raises StepFailed: it failed, or did not end."""
        try:
            done = await asyncio.to_thread(
                subprocess.run,
                self._command(program, arguments),
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise StepFailed(f"{program} did not end in {seconds} s") from None
        if done.returncode and not may_fail:
            raise StepFailed(f"{program} {' '.join(arguments)}: {_last(done.stdout + done.stderr)}")
        return done.stdout + done.stderr

    @contextlib.asynccontextmanager
    async def serving(self, program: str, *arguments: str) -> AsyncIterator[subprocess.Popen[bytes]]:
        """Start a program and stop it in the end; what it says is in scratch/<program>.log."""
        said = self.scratch / f"{program.rsplit('.', 1)[-1]}.log"
        with said.open("wb") as output:
            process = subprocess.Popen(self._command(program, arguments), stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _command(self, program: str, arguments: Sequence[str]) -> list[str]:
        return ["java", "-Xmx400m", QUIET, "-cp", self._path, program, *arguments]


def _last(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    return " | ".join(lines[-3:])[:600]


async def until(condition: object, *, seconds: float, what: str) -> None:
    """Wait until a callable without arguments returns something true. Raises StepFailed."""
    assert callable(condition)
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not await asyncio.to_thread(condition):
        if loop.time() > end:
            raise StepFailed(f"{what} did not come true in {seconds:.0f} s")
        await asyncio.sleep(0.5)
