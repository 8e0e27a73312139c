"""The judgement of a flood."""

from __future__ import annotations

import pytest

from loadtest.campaign.flood import Measured, Phase, is_hurt, measured, percentile
from loadtest.campaign.mesh import CampaignFailed


def of(p99_ms: float) -> Measured:
    return Measured(name="x", records=1, p50_ms=1, p99_ms=p99_ms, max_ms=p99_ms)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99)) == (50.0, 99.0, 7.0)


def test_a_record_belongs_to_the_phase_in_which_it_was_sent() -> None:
    rows = [(0.9, 1.0), (1.0, 5.0), (1.9, 3.0), (2.0, 9.0)]
    phase = measured(Phase(name="x", start_s=1.0, end_s=2.0), rows)
    assert (phase.records, phase.p50_ms, phase.max_ms) == (2, 3.0, 5.0)


def test_a_phase_without_records_is_a_failed_campaign() -> None:
    with pytest.raises(CampaignFailed, match="no record was read in the phase 'x'"):
        measured(Phase(name="x", start_s=1.0, end_s=2.0), [(3.0, 1.0)])


@pytest.mark.parametrize(
    ("before", "under", "hurt"), [(30.0, 59.0, False), (30.0, 61.0, True), (2.0, 11.0, False), (2.0, 13.0, True)]
)
def test_twice_the_latency_is_hurt_but_for_the_noise_of_the_machine(before: float, under: float, hurt: bool) -> None:
    assert is_hurt(of(before), of(under)) is hurt
