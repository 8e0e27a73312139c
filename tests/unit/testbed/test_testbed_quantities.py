"""Quantities on the command line."""

from __future__ import annotations

import pytest

from georelay.errors import ConfigError
from mesh.testbed.quantities_core import parse_duration_us, parse_rate_bits_s, parse_share_ppm


@pytest.mark.parametrize(
    ("text", "us"), [("70ms", 70_000), ("1.5s", 1_500_000), ("200us", 200), ("0", 0), ("60s", 60_000_000)]
)
def test_durations(text: str, us: int) -> None:
    assert parse_duration_us(text) == us


@pytest.mark.parametrize(("text", "bits"), [("50mbit", 50_000_000), ("1gbit", 10**9), ("0", 0), ("800kbit", 800_000)])
def test_rates(text: str, bits: int) -> None:
    assert parse_rate_bits_s(text) == bits


@pytest.mark.parametrize(("text", "ppm"), [("1%", 10_000), ("0.1%", 1_000), ("5ppm", 5), ("100%", 1_000_000)])
def test_shares(text: str, ppm: int) -> None:
    assert parse_share_ppm(text) == ppm


@pytest.mark.parametrize("text", ["", "70", "ms", "-1ms", "1e3ms", "0.5us", "70 m s", "61s", "NaNms"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="70ms"):
        parse_duration_us(text)


@pytest.mark.parametrize("text", ["101%", "1", "x%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="1%"):
        parse_share_ppm(text)
