"""tools/quickest_python.sh: which Python set-up takes."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "quickest_python.sh"


def fake_python(folder: Path, name: str, cost: int | None) -> str:
    """A program that answers the bench with `cost`, or fails as a Python does that is too old or has no venv."""
    program = folder / name
    program.write_text("#!/bin/sh\nexit 1\n" if cost is None else f"#!/bin/sh\necho {cost}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("first", "second", "taken"),
    [
        (100, 89, "second"),
        (100, 90, "first"),  # not worth a surprise
        (100, 150, "first"),
        (None, 100, "second"),
        (100, None, "first"),
        (None, None, "first"),  # set-up says what it lacks
    ],
)
def test_the_first_python_that_serves_is_taken_unless_another_is_clearly_quicker(
    tmp_path: Path, first: int | None, second: int | None, taken: str
) -> None:
    pythons = {"first": fake_python(tmp_path, "first", first), "second": fake_python(tmp_path, "second", second)}
    run = subprocess.run(["bash", SCRIPT, *pythons.values()], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == pythons[taken]
    assert bool(run.stderr) == (taken == "second" and first is not None)
