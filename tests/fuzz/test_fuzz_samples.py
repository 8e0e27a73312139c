"""A sample of every fuzz run in every test run; `make fuzz` is the long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import first

ROOT = Path(__file__).parents[2]
# A process each: what a driver holds, logs and leaves behind is its own.


def sample(driver: str, inputs: int, seed: int, *options: str) -> str:
    """Run a driver and return what it says; a violation fails the test, with the bytes that caused it."""
    flags = ["--inputs", str(inputs), "--seed", str(seed), *options]
    command = [sys.executable, "-m", f"tests.fuzz.fuzz_{driver}", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=200)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 violations" in done.stdout
    return done.stdout


@pytest.mark.parametrize("inputs", first(1, (1_500, 5_000)))
def test_mutated_packets_and_blobs_raise_only_the_errors_of_gossip(inputs: int) -> None:
    sample("gossip", inputs, 7)


@pytest.mark.parametrize("inputs", first(1, (1_200, 4_000)))
def test_mutated_frames_are_decoded_or_refused_and_links_live_on_or_close(inputs: int) -> None:
    sample("links", inputs, 11)


@pytest.mark.parametrize("inputs", first(1, (600, 3_000)))
def test_wounded_inputs_at_every_listener_break_nothing(inputs: int) -> None:
    assert sample("listeners", inputs, 7).count(f"{inputs} inputs") == 5


@pytest.mark.parametrize("inputs", first(1, (1_200, 5_000)))
def test_mutated_conversations_break_no_rule_of_the_text_protocol(inputs: int) -> None:
    sample("text", inputs, 7)


def test_mutated_frames_raise_only_the_protocol_error() -> None:
    sample("wire", 2_000, 7)


@pytest.mark.slow
def test_seven_thousand_mutated_frames_hit_nine_branches_of_ten() -> None:
    assert "decoder branches hit" in sample("wire", 7_000, 7, "--coverage")
