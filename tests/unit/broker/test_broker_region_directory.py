"""Regions tell each other where their brokers are: in answers, and in the question itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from georelay.errors import BadRequest
from georelay.ids import BrokerId, RegionNumber
from mesh.replication.settings import BrokerAddress
from region.broker.region_directory import RegionDirectory
from region.controller.registration import BrokerRegistration

US, EU, AP = RegionNumber(1), RegionNumber(2), RegionNumber(3)


def registration(broker: int, link: str) -> BrokerRegistration:
    return BrokerRegistration(
        broker=BrokerId(broker), disk_uuid="d", kafka_host="h", kafka_port=1, grpc="", link=link, admin=""
    )


class Told:
    def __init__(self, brokers: Mapping[BrokerId, BrokerRegistration]) -> None:
        self.learned: list[tuple[int, list[tuple[int, str]]]] = []
        self.directory = RegionDirectory(
            own=EU,
            others=[US],
            registrations=lambda: brokers,
            request=self._request,
            learned=self._learn,
            is_linked=lambda _region: True,
        )

    async def _request(self, **_: Any) -> dict[str, Any]:
        raise AssertionError("nobody is asked here")

    def _learn(self, region: RegionNumber, rows: Sequence[BrokerAddress]) -> None:
        self.learned.append((region, [(row.broker_id, row.address) for row in rows]))


@pytest.fixture
def told() -> Told:
    return Told({BrokerId(2001): registration(2001, "10.0.0.1:1")})


def test_who_asks_is_found_where_it_says_that_its_region_is(told: Told) -> None:
    asked: dict[str, Any] = {"brokers": [{"broker": 1001, "link": "10.9.9.9:7"}]}
    assert told.directory.serve(asked, US) == {"brokers": [{"broker": 2001, "link": "10.0.0.1:1"}]}
    assert told.learned == [(1, [(1001, "10.9.9.9:7")])]


def test_an_older_broker_that_says_nothing_is_answered_all_the_same(told: Told) -> None:
    assert told.directory.serve({}, US) == {"brokers": [{"broker": 2001, "link": "10.0.0.1:1"}]}
    assert told.learned == []


def test_nobody_speaks_for_another_region_and_a_region_that_left_is_not_learned(told: Told) -> None:
    told.directory.know(AP)
    with pytest.raises(BadRequest, match="1001 is not one of region 3"):
        told.directory.serve({"brokers": [{"broker": 1001, "link": "10.9.9.9:7"}]}, AP)
    told.directory.forget(AP)
    told.directory.serve({"brokers": [{"broker": 3001, "link": "10.9.9.9:7"}]}, AP)
    assert told.learned == []
