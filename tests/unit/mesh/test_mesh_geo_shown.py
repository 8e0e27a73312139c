"""What readers were shown is never taken back when more regions are asked for, at the home and at a mirror."""

from __future__ import annotations

from georelay.ids import Epoch, Offset, RegionNumber
from mesh.replication.geo_core import GeoWatermarks, ToldWatermarks

HOME, EU, AP = RegionNumber(1), RegionNumber(2), RegionNumber(3)
REGIONS = (HOME, EU, AP)


def test_a_home_goes_on_showing_what_it_showed_when_fewer_regions_were_asked_for() -> None:
    geo = GeoWatermarks(HOME)
    geo.begin(Epoch(1), start=Offset(0), committed=Offset(0))
    geo.acknowledged(EU, epoch=Epoch(1), offset=Offset(30))
    geo.raise_shown(3, Offset(70))
    geo.raise_shown(3, Offset(60))
    shown = [geo.shown_end(k, committed=Offset(100), among=REGIONS) for k in (2, 3, 4)]
    assert shown == [70, 70, 0]
    assert geo.geo_committed(2, committed=Offset(100), among=REGIONS) == 30


def test_a_mirror_goes_on_showing_it_and_an_epoch_cuts_it_a_new_leader_does_not() -> None:
    told = ToldWatermarks()
    told.begin(Epoch(1), start=Offset(0))
    told.raise_shown(3, Offset(70))
    told.begin(Epoch(1), start=Offset(0))  # another leader of the same epoch
    assert told.geo_committed(3, committed=Offset(100)) == 70
    assert not told.is_known(3)
    told.begin(Epoch(2), start=Offset(40))
    assert told.geo_committed(3, committed=Offset(100)) == 40
