"""A path's settings as arguments of the kernel's netem."""

from __future__ import annotations

import pytest

from georelay.errors import ConfigError
from mesh.testbed.netem_core import PACKETS_MAX, netem_arguments
from mesh.testbed.path_core import PathSettings


def test_delay_and_loss_have_the_units_of_netem() -> None:
    found = netem_arguments(PathSettings(delay_us=35_000, loss_ppm=10_000))
    assert found == {"delay": 35_000, "loss": 1.0, "limit": PACKETS_MAX}


def test_a_cap_holds_what_the_wire_and_the_queue_before_it_hold() -> None:
    found = netem_arguments(PathSettings(delay_us=35_000, rate_bits_s=50_000_000, queue_us=100_000))
    assert found["rate"] == "50000000bit"
    assert found["limit"] == 562  # packets of 1500 bytes in 135 ms


def test_a_narrow_path_still_holds_a_few_packets() -> None:
    assert netem_arguments(PathSettings(rate_bits_s=10_000))["limit"] == 100


def test_jitter_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="--engine router"):
        netem_arguments(PathSettings(jitter_us=1))
