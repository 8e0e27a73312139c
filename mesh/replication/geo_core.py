"""Which records are committed in k regions, as the leader of their home knows it. Pure.

Rule 1: a region counts from what it acknowledged in the CURRENT session epoch to THIS leader. What it said in an older
        epoch may be gone since: a promise to another home can have cut it off.
Rule 2: the home counts itself with its own committed high watermark, and nothing counts beyond that.
Rule 3: a watermark never goes back: once k regions had a record in an epoch, it is kept while n - k + 1 regions answer
        a forced move. Only an epoch that begins below it (`--accept-loss`) cuts it.
Rule 4: a new leader, or a new epoch, knows less than was shown before it until enough regions have acknowledged:
        `is_known` says when its watermark cannot be behind anything that was ever shown. Until then readers wait.

Why rule 4 is decidable: whatever was shown lay at or below what was committed when this leader began (the bar). The
watermark is known when it has reached the bar, or when every region has been heard and it is what it is.

Rule 5: what readers were shown under another setting stays shown, and counts for nobody who asks which regions have it.
"""

from __future__ import annotations

from collections.abc import Iterable

from georelay.ids import Epoch, Offset, RegionNumber

_START = Offset(0)


class GeoWatermarks:
    """Acknowledged positions of one stream's mirrors.

    Invariants: 1 an acknowledgement is of the current epoch   2 geo_committed(k) <= committed at the home, and
    geo_committed(k) <= geo_committed(k - 1)   3 a floor was acknowledged by enough regions in the epoch of its record
    4 geo_committed(k) <= shown_end(k) <= committed at the home.
    """

    def __init__(self, home: RegionNumber) -> None:
        """Begin without an epoch: nothing counts but the home itself."""
        self.home = home
        self.epoch = Epoch(0)
        self._bar = _START
        self._acked: dict[RegionNumber, Offset] = {}
        self._floors: dict[int, Offset] = {}
        self._shown: dict[int, Offset] = {}

    def begin(self, epoch: Epoch, *, start: Offset, committed: Offset) -> None:
        """Begin to lead, or begin an epoch: forget every acknowledgement.

        Args:
            start: lowest one of the epochs that began since the last call; what was geo-committed at or above it
                before is not that record any more.
            committed: at the home now: nothing beyond it was ever shown.
        """
        if epoch != self.epoch:
            self._floors = {k: min(floor, start) for k, floor in self._floors.items()}
            self._shown = {k: min(shown, start) for k, shown in self._shown.items()}
        self.epoch = epoch
        self._bar = committed
        self._acked.clear()

    def acknowledged(self, region: RegionNumber, *, epoch: Epoch, offset: Offset) -> bool:
        """Follow what a mirror has committed; return whether that was news. Another epoch's word counts for nothing."""
        if epoch != self.epoch or region == self.home or offset <= self._acked.get(region, Offset(-1)):
            return False
        self._acked[region] = offset
        return True

    def raise_shown(self, k: int, offset: Offset) -> None:
        """Remember that readers were shown everything below `offset` already, when fewer than `k` were asked for."""
        self._shown[k] = max(self._shown.get(k, _START), offset)

    def shown_end(self, k: int, *, committed: Offset, among: Iterable[RegionNumber]) -> Offset:
        """Return the first offset that readers who want `k` regions are not shown; arguments as of `geo_committed`."""
        shown = max((offset for more, offset in self._shown.items() if more >= k), default=_START)
        return max(self.geo_committed(k, committed=committed, among=among), min(shown, committed))

    def geo_committed(self, k: int, *, committed: Offset, among: Iterable[RegionNumber]) -> Offset:
        """Return the first offset that is not known to be committed in `k` regions, the home included.

        Args:
            committed: high watermark of the home. among: the regions that hold the topic now.
        """
        if k <= 1:
            return committed
        counted = sorted((self._acked[region] for region in among if region in self._acked), reverse=True)
        found = min(counted[k - 2], committed) if len(counted) >= k - 1 else _START
        floor = max((offset for more, offset in self._floors.items() if more >= k), default=_START)
        if found > floor:
            floor = self._floors[k] = found
        return min(floor, committed)

    def is_known(self, k: int, *, committed: Offset, among: Iterable[RegionNumber]) -> bool:
        """Return whether the watermark cannot be behind anything that was shown before this leader or epoch began."""
        regions = [region for region in among if region != self.home]
        if k <= 1 or all(region in self._acked for region in regions):
            return True
        return self.shown_end(k, committed=committed, among=regions) >= self._bar

    def acked(self, region: RegionNumber) -> Offset | None:
        """Return what a region has acknowledged to this leader in this epoch, None before it did."""
        return self._acked.get(region)

    def regions_at(
        self, following: Offset, *, committed: Offset, among: Iterable[RegionNumber]
    ) -> tuple[RegionNumber, ...]:
        """Return the regions that have everything below `following`, the home first, the others ascending."""
        if committed < following:
            return ()
        holders = sorted(region for region in among if self._acked.get(region, Offset(-1)) >= following)
        return (self.home, *holders)


class ToldWatermarks:
    """What a mirror's leader was told by its home, per k. Rule 3 above holds here too.

    A region that counts itself as the second one needs no telling for k = 2: what it has committed, its home has.
    """

    def __init__(self) -> None:
        self.epoch = Epoch(0)
        self._told: dict[int, Offset] = {}
        self._heard: set[int] = set()  # by this leader

    def begin(self, epoch: Epoch, *, start: Offset) -> None:
        """Begin to lead, or begin an epoch; `start`: the lowest one of those that began since the last call."""
        if epoch != self.epoch:
            self._told = {k: min(offset, start) for k, offset in self._told.items()}
        self.epoch = epoch
        self._heard.clear()

    def told(self, k: int, watermark: Offset) -> bool:
        """Follow the home's word; return whether that was news. What k regions have, any fewer have too."""
        is_news = k not in self._heard or watermark > self._told.get(k, Offset(-1))
        self._heard.add(k)
        self._told[k] = max(self._told.get(k, _START), watermark)
        return is_news

    def raise_shown(self, k: int, offset: Offset) -> None:
        """Remember that readers were shown everything below `offset` already, when fewer than `k` were asked for."""
        self._told[k] = max(self._told.get(k, _START), offset)

    def geo_committed(self, k: int, *, committed: Offset) -> Offset:
        """Return the first offset of this mirror that is not known to be committed in `k` regions."""
        if k <= 2:
            return committed
        best = max((offset for known, offset in self._told.items() if known >= k), default=_START)
        return min(best, committed)

    def is_known(self, k: int) -> bool:
        """Return whether the home has said so to this leader: it never says less than was shown anywhere."""
        return k <= 2 or any(known >= k for known in self._heard)
