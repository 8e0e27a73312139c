"""Any schedule of commits, acknowledgements, elections, epochs and lost messages: never above what k regions hold."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from georelay.ids import Epoch, Offset, RegionNumber
from mesh.replication.geo_core import GeoWatermarks, ToldWatermarks

REGIONS = tuple(RegionNumber(number) for number in range(1, 6))
HOME = REGIONS[0]
MIRRORS = st.sampled_from(REGIONS[1:])


class Watermarks(RuleBasedStateMachine):
    """Regions hold prefixes of one history per epoch; the home hears some of what they say, late or never."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = Epoch(1)
        self.end = Offset(0)  # of the home's log
        self.committed = Offset(0)
        self.start = Offset(0)
        self.held = dict.fromkeys(REGIONS[1:], Offset(0))  # committed in each mirror, of the home's history
        self.in_epoch = dict.fromkeys(REGIONS[1:], Epoch(1))
        self.said: list[tuple[RegionNumber, Epoch, Offset]] = []  # on its way
        self.shown: dict[int, Offset] = {}
        self.loss_allowed = False
        self.home = self._new_leader()
        self.told = ToldWatermarks()
        self.told.begin(self.epoch, start=Offset(0))

    def _new_leader(self) -> GeoWatermarks:
        home = GeoWatermarks(HOME)
        home.begin(self.epoch, start=self.start, committed=self.end)
        return home

    @rule(records=st.integers(1, 5))
    def append(self, records: int) -> None:
        self.end = Offset(self.end + records)

    @rule(part=st.floats(0, 1))
    def commit(self, part: float) -> None:
        self.committed = Offset(self.committed + int((self.end - self.committed) * part + 0.5))

    @rule(records=st.integers(1, 5), regions=st.sets(MIRRORS))
    def records_are_committed_in(self, records: int, regions: set[RegionNumber]) -> None:
        self.end = self.committed = Offset(self.end + records)
        for region in regions:
            self.in_epoch[region] = self.epoch
            self.held[region] = self.end

    @rule(count=st.integers(1, 8))
    def home_hears_the_newest(self, count: int) -> None:
        for region, epoch, offset in self.said[-count:]:
            self.home.acknowledged(region, epoch=epoch, offset=offset)

    @rule(region=MIRRORS, part=st.floats(0, 1))
    def mirror_commits(self, region: RegionNumber, part: float) -> None:
        if self.in_epoch[region] == self.epoch:
            held = self.held[region]
            self.held[region] = Offset(held + max(0, int((self.committed - held) * part + 0.5)))

    @rule(region=MIRRORS)
    def mirror_follows_the_epoch(self, region: RegionNumber) -> None:
        self.in_epoch[region] = self.epoch

    @rule(region=MIRRORS)
    def mirror_speaks(self, region: RegionNumber) -> None:
        self.said.append((region, self.in_epoch[region], self.held[region]))

    @rule(data=st.data(), again=st.booleans())
    def home_hears(self, data: st.DataObject, again: bool) -> None:
        if self.said:
            row = data.draw(st.integers(0, len(self.said) - 1))
            region, epoch, offset = self.said[row] if again else self.said.pop(row)
            self.home.acknowledged(region, epoch=epoch, offset=offset)

    @rule()
    def another_leader(self) -> None:
        self.home = self._new_leader()

    @rule()
    def the_same_broker_leads_again(self) -> None:
        self.home.begin(self.epoch, start=self.start, committed=self.end)

    @rule(part=st.floats(0, 1))
    def an_epoch_begins_with_accepted_loss(self, part: float) -> None:
        self.start = Offset(int(self.committed * part))
        self._begin_epoch()

    @rule()
    def an_epoch_begins_at_the_end(self) -> None:
        self.committed = self.start = self.end
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        # What mirrors have committed is on its way when the epoch begins: that is when it could be counted wrongly.
        self.said += [(region, self.in_epoch[region], held) for region, held in self.held.items()]
        self.epoch = Epoch(self.epoch + 1)
        self.end = self.committed = self.start
        self.held = {region: min(held, self.start) for region, held in self.held.items()}
        self.shown = {k: min(offset, self.start) for k, offset in self.shown.items()}
        self.home.begin(self.epoch, start=self.start, committed=self.end)
        self.told.begin(self.epoch, start=self.start)

    @invariant()
    def never_above_what_k_regions_hold(self) -> None:
        above = None
        for k in range(1, len(REGIONS) + 1):
            claimed = self.home.geo_committed(k, committed=self.committed, among=REGIONS)
            holders = 1 + sum(held >= claimed for held in self.held.values())
            assert claimed <= self.committed
            assert holders >= k or claimed == 0, (k, claimed, self.held)
            assert above is None or claimed <= above, "more regions have more than fewer"
            above = claimed

    @invariant()
    def what_is_known_is_not_behind_what_was_shown(self) -> None:
        for k in range(2, len(REGIONS) + 1):
            claimed = self.home.geo_committed(k, committed=self.committed, among=REGIONS)
            if self.home.is_known(k, committed=self.committed, among=REGIONS):
                assert claimed >= min(self.shown.get(k, Offset(0)), self.committed), (k, claimed, self.shown)
                self.told.told(k, claimed)
            self.shown[k] = max(self.shown.get(k, Offset(0)), claimed)

    @invariant()
    def a_mirror_never_shows_what_fewer_regions_hold(self) -> None:
        for k in range(3, len(REGIONS) + 1):
            for region, held in self.held.items():
                claimed = self.told.geo_committed(k, committed=held)
                holders = 1 + sum(other >= claimed for other in self.held.values())
                assert holders >= k or claimed == 0, (region, k, claimed, self.held)


TestWatermarks = Watermarks.TestCase
TestWatermarks.settings = settings(stateful_step_count=40)
