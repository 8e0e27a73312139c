"""Geo watermarks: what counts, what does not, what never goes back, and when it is known."""

from __future__ import annotations

from georelay.ids import Epoch, Offset, RegionNumber
from mesh.replication.geo_core import GeoWatermarks, ToldWatermarks

HOME, EU, AP = RegionNumber(1), RegionNumber(2), RegionNumber(3)
REGIONS = (HOME, EU, AP)


def led(epoch: int = 1, *, start: int = 0, committed: int = 0) -> GeoWatermarks:
    geo = GeoWatermarks(HOME)
    geo.begin(Epoch(epoch), start=Offset(start), committed=Offset(committed))
    return geo


def ack(geo: GeoWatermarks, region: RegionNumber, offset: int, epoch: int = 1) -> bool:
    return geo.acknowledged(region, epoch=Epoch(epoch), offset=Offset(offset))


def end(geo: GeoWatermarks, k: int, committed: int = 100) -> int:
    return geo.geo_committed(k, committed=Offset(committed), among=REGIONS)


def test_the_home_counts_itself_and_each_further_region_its_acknowledgement() -> None:
    geo = led()
    assert (end(geo, 1), end(geo, 2), end(geo, 3)) == (100, 0, 0)
    assert ack(geo, EU, 70)
    assert ack(geo, AP, 40)
    assert (end(geo, 1), end(geo, 2), end(geo, 3)) == (100, 70, 40)
    assert end(geo, 4) == 0  # more than there are


def test_nothing_counts_beyond_what_the_home_itself_has_committed() -> None:
    geo = led()
    ack(geo, EU, 90)
    assert end(geo, 2, committed=50) == 50


def test_an_acknowledgement_of_an_older_session_epoch_counts_for_nothing() -> None:
    geo = led(2)
    assert not ack(geo, EU, 70, epoch=1)
    assert end(geo, 2) == 0
    assert not ack(geo, EU, 70, epoch=3)
    assert end(geo, 2) == 0


def test_what_was_acknowledged_before_an_epoch_began_is_forgotten_with_it() -> None:
    geo = led()
    ack(geo, EU, 70)
    geo.begin(Epoch(2), start=Offset(80), committed=Offset(80))
    assert geo.acked(EU) is None
    assert geo.regions_at(Offset(70), committed=Offset(100), among=REGIONS) == (HOME,)


def test_a_region_that_does_not_hold_the_topic_any_more_does_not_count() -> None:
    geo = led()
    ack(geo, EU, 70)
    ack(geo, AP, 40)
    assert geo.geo_committed(2, committed=Offset(100), among=(HOME, AP)) == 40


def test_the_watermark_does_not_go_back_when_a_new_leader_has_heard_nobody() -> None:
    geo = led()
    ack(geo, EU, 70)
    assert end(geo, 2) == 70
    geo.begin(Epoch(1), start=Offset(0), committed=Offset(100))
    assert end(geo, 2) == 70


def test_an_epoch_that_begins_below_the_watermark_cuts_it() -> None:
    geo = led()
    ack(geo, EU, 70)
    assert end(geo, 2) == 70
    geo.begin(Epoch(2), start=Offset(60), committed=Offset(60))
    assert end(geo, 2) == 60  # and records that epoch 2 writes at 60.. are others


def test_a_new_leader_knows_its_watermark_when_it_has_reached_what_was_committed_before_it() -> None:
    geo = led(committed=100)
    assert not geo.is_known(2, committed=Offset(100), among=REGIONS)
    ack(geo, EU, 99)
    assert not geo.is_known(2, committed=Offset(100), among=REGIONS)  # AP may have had all 100
    ack(geo, EU, 100)
    assert geo.is_known(2, committed=Offset(100), among=REGIONS)
    assert not geo.is_known(3, committed=Offset(100), among=REGIONS)


def test_a_new_leader_knows_its_watermark_when_every_region_was_heard() -> None:
    geo = led(committed=100)
    ack(geo, EU, 10)
    ack(geo, AP, 20)
    assert geo.is_known(2, committed=Offset(100), among=REGIONS)
    assert end(geo, 2) == 20


def test_the_holders_of_a_record_are_named_the_home_first() -> None:
    geo = led()
    ack(geo, AP, 40)
    ack(geo, EU, 70)
    assert geo.regions_at(Offset(40), committed=Offset(100), among=REGIONS) == (HOME, EU, AP)
    assert geo.regions_at(Offset(41), committed=Offset(100), among=REGIONS) == (HOME, EU)
    assert geo.regions_at(Offset(101), committed=Offset(100), among=REGIONS) == ()


def test_more_regions_never_have_more_than_fewer() -> None:
    geo = led()
    ack(geo, EU, 70)
    ack(geo, AP, 70)
    assert end(geo, 3) == 70
    geo.begin(Epoch(1), start=Offset(0), committed=Offset(100))
    assert end(geo, 2) == 70  # never asked for before


def test_a_mirror_counts_itself_as_the_second_region_and_is_told_of_more() -> None:
    told = ToldWatermarks()
    told.begin(Epoch(1), start=Offset(0))
    assert told.geo_committed(2, committed=Offset(50)) == 50
    assert told.is_known(2)
    assert (told.geo_committed(3, committed=Offset(50)), told.is_known(3)) == (0, False)
    assert told.told(3, Offset(30))
    assert not told.told(3, Offset(20))
    assert (told.geo_committed(3, committed=Offset(50)), told.is_known(3)) == (30, True)
    told.told(3, Offset(60))
    assert told.geo_committed(3, committed=Offset(50)) == 50  # not beyond what is here


def test_what_four_regions_have_three_have_too_but_not_the_other_way_round() -> None:
    told = ToldWatermarks()
    told.told(4, Offset(30))
    assert told.geo_committed(3, committed=Offset(50)) == 30
    assert told.geo_committed(5, committed=Offset(50)) == 0


def test_a_mirror_in_a_new_epoch_keeps_only_what_lies_below_its_start() -> None:
    told = ToldWatermarks()
    told.begin(Epoch(1), start=Offset(0))
    told.told(3, Offset(30))
    told.begin(Epoch(2), start=Offset(20))
    assert told.geo_committed(3, committed=Offset(50)) == 20
    assert not told.is_known(3)
