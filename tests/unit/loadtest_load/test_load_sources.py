"""What readers of a load are held against: the ends that regions tell."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from loadtest.load import sources

ENDS = {"us:1": {0: 7, 1: 3}, "eu:1": {0: 9}}


class Told:
    """A consumer of one region, which tells what ENDS has of it and nothing else."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._ends = ENDS.get(settings["bootstrap.servers"], {})

    def get_watermark_offsets(self, place: TopicPartition, *, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        if place.partition not in self._ends:
            raise KafkaException("nobody answers")
        return 0, self._ends[place.partition]

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("regions", "ends"),
    [
        (["us:1", "eu:1"], {("orders", 0): 9, ("orders", 1): 3}),
        (["ap:1", "eu:1"], {("orders", 0): 9}),
        (["ap:1"], {}),
    ],
)
def test_an_end_is_the_highest_that_a_region_tells_and_none_where_no_region_does(
    monkeypatch: pytest.MonkeyPatch, regions: list[str], ends: dict[sources.Spot, int]
) -> None:
    monkeypatch.setattr(sources, "Consumer", Told)
    assert sources.ends_of(regions, {}, [("orders", 0), ("orders", 1)]) == ends
