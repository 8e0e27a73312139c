"""The table of carriers has the medians of the runs of each."""

from __future__ import annotations

from loadtest.bench.links import FIGURES, table


def test_a_line_for_each_carrier_delay_and_rate_has_the_medians_of_its_runs() -> None:
    runs = [
        {"carrier": carrier, "delay_ms": 20.0, "rate": rate, **dict.fromkeys(FIGURES, figure)}
        for carrier, rate, figures in (("grpc", 1000, (9.0, 1.0, 2.0)), ("framed", 0, (5.0,)))
        for figure in figures
    ]
    assert table(runs)[2:] == [
        "| 20 | 1000 | grpc | 2.0 | 2.0 | 2 | 2 | 2 | 2.0 |",
        "| 20 | all it can | framed | 5.0 | 5.0 | 5 | 5 | 5 | 5.0 |",
    ]
