"""Geo acknowledgements of one hosted stream: who has which records, who waits for that, and what consumers may see.

Rule 1: at the home only its leader counts, and only what mirrors acknowledge to it in the current epoch (geo_core).
Rule 2: a level that cannot be given is refused before anything is stored. What is stored is answered when its level is
        reached, or as pending: at its deadline, and when this broker stops leading or another region sequences it.
Rule 3: consumers of a topic with min.insync.regions = k see what is geo-committed(k): at the home by its leader's
        count, at a mirror for k = 2 what it has committed itself, for k > 2 what its home told. Other replicas of the
        region know no more than they knew as leaders; they never show more.
        A mirror whose log lacks an epoch that control decided shows nothing at or beyond its start: that may be what
        this region alone has, as a home of before.
Rule 4: what was shown is never taken back. After an election it may not be known yet how much was shown: who asks for
        the end then waits (`until_known`). Of a topic that asked for fewer regions once, that acknowledgements do not
        tell: everything that its new leader found in its log may have been shown, and has to reach the regions first.
Rule 5: while fewer than k regions are within the topic's lag bounds, publishes of any level are slowed, then refused.
Rule 6: what a region on its way out acknowledges is not counted: it takes its copy along. It still is one of the
        regions that a majority, or all, is taken of: control asks it as long as it is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from georelay.clock import Clock
from georelay.durability import Durability
from georelay.errors import Busy, NotEnoughRegions, NotLeader, OffsetOutOfRange, PolicyViolation, Unavailable
from georelay.ids import Epoch, Offset, RegionNumber
from mesh.replication.geo_core import GeoWatermarks, ToldWatermarks
from mesh.replication.level import AskedLevel
from mesh.replication.ports import Published, WatermarkListener
from region.geo.counters import GeoCounters, Refusal
from region.geo.lag_core import LagBounds, LagMeter, pause_ms, stream_pressure
from region.geo.ports import GeoStream
from region.geo.waiters import WAITERS_MAX, GeoWaiter, GeoWaiters

KNOWN_WAIT_S: Final = 2.0  # how long who asks for the end waits for it after an election
TOLD_FROM_REGIONS: Final = 3  # with two, a mirror counts the home and itself


class GeoSettings(Protocol):
    """What a topic says about regions (region.controller.topic.TopicDefinition)."""

    @property
    def min_insync_regions(self) -> int:
        """Regions that have what consumers see, 1 or more."""

    @property
    def insync_raised(self) -> bool:
        """Whether it asked for fewer regions before: consumers may have seen more than a new leader can tell."""

    @property
    def max_geo_lag_ms(self) -> int:
        """Bound of the lag in time, 0: none."""

    @property
    def max_geo_lag_records(self) -> int:
        """Bound of the lag in records, 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A publish that the home takes: what its answer waits for."""

    level: int
    deadline_ms: int
    pause_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """Who has one record, as its home's leader knows now.

    Args:
        regions: the home first; none while the home itself has not committed it.
        level: how many regions; more than are named where it is known and by whom is not.
        is_lost: another record has this offset, or none: the epoch table gives the offset to another epoch.
    """

    regions: tuple[RegionNumber, ...]
    level: int
    is_lost: bool
    epoch: Epoch


def _stays(_: RegionNumber) -> bool:
    return False


class StreamGeo:
    """Attached to a stream as `stream.geo`; implements what home and mirror sessions tell and ask."""

    def __init__(
        self,
        stream: GeoStream,
        *,
        settings: GeoSettings,
        regions: Callable[[], Sequence[RegionNumber]],
        clock: Clock,
        counters: GeoCounters,
        is_leaving: Callable[[RegionNumber], bool] = _stays,
    ) -> None:
        """`regions` tells which regions hold the topic, the home among them; `is_leaving` which of them drain."""
        self._is_leaving = is_leaving
        self._held_back: dict[RegionNumber, Offset] = {}  # acknowledged in this epoch by regions that leave
        self._stream = stream
        self._settings = settings
        self._regions = regions
        self._clock = clock
        self._counters = counters
        self._k = settings.min_insync_regions
        self._bounds = _bounds_of(settings)
        self._home = GeoWatermarks(stream.home)
        self._told = ToldWatermarks()
        self._meter = LagMeter()
        self._metered = Offset(0)  # what the meter has seen
        self._leads = False
        self._led_home = False
        self._epoch = Epoch(0)
        self._shown = Offset(0)  # newest watermark that readers were woken for
        self._bar = Offset(0)  # end of the log when this broker began to lead, or the epoch began
        self._remembers = False  # this leader knows what readers were shown before more regions were asked for
        self._was_known = False
        self._sessions: dict[RegionNumber, dict[Hashable, WatermarkListener]] = {}
        self._curious: list[asyncio.Future[None]] = []
        self._closed = False
        self._waiters = GeoWaiters(clock, counters, regions_at=self._regions_at, is_current=self._is_current)
        stream.add_waiter(self._log_moved)

    @property
    def min_insync_regions(self) -> int:
        """Return how many regions have what consumers see."""
        return self._k

    def follow_topic(self, settings: GeoSettings, *, has_served: bool = True) -> None:
        """Follow changed settings; what readers were shown stays shown.

        Args:
            has_served: readers may have been shown something under the settings of before.
        """
        self._follow()
        shown = self.visible_end if has_served else Offset(0)
        if settings.min_insync_regions > self._k:
            self._remembers = has_served and self._leads and self.is_visible_end_known
        if settings.min_insync_regions != self._k:
            self._was_known = False  # mirrors are told of the new number, whatever else happens
        self._settings, self._k = settings, settings.min_insync_regions
        self._bounds = _bounds_of(settings)
        if self._k > 1:
            self._home.raise_shown(self._k, shown)
            self._told.raise_shown(self._k, shown)
        self._moved()

    # --- what consumers may see -------------------------------------------------------------------

    @property
    def visible_end(self) -> Offset:
        """Return the first offset that consumers are not shown: log start..high watermark."""
        stream = self._stream
        if self._k <= 1:
            return stream.high_watermark
        self._follow()
        if stream.is_home:
            end = self._home.shown_end(self._k, committed=stream.high_watermark, among=self._regions())
        else:
            end = self._mirrored(self._k)
        return max(end, min(stream.log_start, stream.high_watermark))

    def watermark(self, k: int) -> Offset:
        """Return the first offset that is not known here to be committed in `k` regions."""
        self._follow()
        stream = self._stream
        if stream.is_home:
            return self._home.geo_committed(k, committed=stream.high_watermark, among=self._regions())
        return self._mirrored(k)

    def _mirrored(self, k: int) -> Offset:
        """Return the first offset of a mirror that is not known to be committed in `k` regions."""
        stream = self._stream
        agreed = stream.high_watermark
        for epoch, start in reversed(stream.decided_table):
            if epoch <= self._epoch:
                break
            agreed = min(agreed, start)
        return self._told.geo_committed(k, committed=agreed)

    @property
    def is_visible_end_known(self) -> bool:
        """Return whether `visible_end` cannot be behind what was shown before, by this broker or another."""
        if self._k <= 1:
            return True
        self._follow()
        stream = self._stream
        if not stream.is_leader:
            return not stream.is_home and self._k < TOLD_FROM_REGIONS
        if self._settings.insync_raised and not self._remembers:
            return self.visible_end >= self._bar
        if not stream.is_home:
            return self._told.is_known(self._k)
        return self._home.is_known(self._k, committed=stream.high_watermark, among=self._regions())

    async def until_known(self) -> None:
        """Return when `visible_end` is known.

        Raises:
            NotLeader: a replica that does not lead. Unavailable: too few regions have answered for KNOWN_WAIT_S.
        """
        if self.is_visible_end_known:
            return
        if not self._stream.is_leader:
            raise NotLeader("only the leader of the stream in this region knows what other regions have")
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._curious.append(news)
        try:
            async with asyncio.timeout(KNOWN_WAIT_S):
                await news
        except TimeoutError:
            raise Unavailable(
                f"what {self._k} regions have of {self._stream.topic}/{self._stream.partition} is not known yet: "
                "too few of them have answered since the leader was elected"
            ) from None
        finally:
            if news in self._curious:
                self._curious.remove(news)

    # --- publishes --------------------------------------------------------------------------------

    def admit(self, asked: AskedLevel) -> Admission | None:
        """Judge a publish before it is stored; None: it is answered at its commit, nothing is to be waited for.

        Raises:
            PolicyViolation: more regions than hold the topic. NotEnoughRegions: too few are reached, or within the lag
            bounds. Busy: too many wait already.
        """
        stream = self._stream
        waits = asked.is_geo or (asked.as_topic and self._k > 1)
        if (not waits and self._bounds.are_off) or not (stream.is_home and stream.is_leader):
            return None  # elsewhere the stream itself refuses it
        self._follow()
        regions = self._regions()
        level = max(asked.durability.regions_of(max(1, len(regions))), self._k if asked.as_topic else 1)
        if level > len(regions) and not (asked.needs_live and level == self._k):
            self._counters.refusals[Refusal.TOO_FEW_REGIONS] += 1
            raise PolicyViolation(f"{level} regions are asked for: {stream.topic} is in {len(regions)}")
        live = 1 + len(self._live(regions))
        if asked.needs_live and level > live:
            self._counters.refusals[Refusal.TOO_FEW_LIVE] += 1
            raise NotEnoughRegions(
                f"{level} regions are asked for, {live} of {stream.topic}/{stream.partition} are reached now; "
                "nothing was stored"
            )
        slowed_ms = self._check_lag(regions)
        if level <= 1 and not slowed_ms:
            return None
        if self._waiters.open_count >= WAITERS_MAX:
            raise Busy(f"{WAITERS_MAX} publishes of {stream.topic}/{stream.partition} wait for other regions already")
        return Admission(level=level, deadline_ms=asked.deadline_ms, pause_ms=slowed_ms)

    def gate(self, admission: Admission, stored: asyncio.Future[Published], records: int) -> asyncio.Future[Published]:
        """Return the future of a publish that is answered at its level; `stored` resolves at its commit here.

        A duplicate is `stored` where its ORIGINAL is, so it waits for the original's level.
        """
        deadline_ns = self._clock.monotonic_ns() + admission.deadline_ms * 1_000_000
        waiter = GeoWaiter(level=admission.level, records=records, deadline_ns=deadline_ns, pause_ms=admission.pause_ms)
        self._waiters.add(waiter, stored, self.watermark)
        return waiter.answer

    def _check_lag(self, regions: Sequence[RegionNumber]) -> int:
        """Return how much later a publish is to be answered, in ms. Raises NotEnoughRegions."""
        bounds = self._bounds
        if bounds.are_off:
            return 0
        committed, now_us = self._stream.high_watermark, self._clock.wall_ns() // 1000
        pressure = stream_pressure(
            (
                self._meter.pressure(self._home.acked(region), committed=committed, now_us=now_us, bounds=bounds)
                for region in regions
                if region != self._stream.home
            ),
            bounds.regions,
        )
        if pressure >= 1:
            self._counters.refusals[Refusal.LAG] += 1
            raise NotEnoughRegions(
                f"fewer than {bounds.regions} regions are within max.geo.lag of {self._stream.topic}/"
                f"{self._stream.partition}; nothing was stored"
            )
        slowed_ms = pause_ms(pressure)
        self._counters.slowed += slowed_ms > 0
        return slowed_ms

    def holders(self, epoch: Epoch, offset: Offset) -> Holders:
        """Return who has the record that was sequenced at (epoch, offset); at the leader of the home.

        Raises:
            NotLeader: this broker is not that. OffsetOutOfRange: no such record was ever committed.
        """
        stream = self._stream
        if not (stream.is_home and stream.is_leader):
            raise NotLeader("only the leader of its home knows which regions have a record")
        self._follow()
        if epoch > stream.epoch:
            raise NotLeader(f"epoch {epoch} of {stream.topic}/{stream.partition} began elsewhere; ask there")
        table = stream.epoch_table()
        sequenced_in = max((row for row in table if row[1] <= offset), default=(Epoch(0), Offset(0)))[0]
        is_over = any(row[0] > epoch for row in table)
        if sequenced_in != epoch and (is_over or sequenced_in):
            return Holders(regions=(), level=0, is_lost=True, epoch=stream.epoch)
        if offset >= stream.high_watermark:
            if is_over:
                return Holders(regions=(), level=0, is_lost=True, epoch=stream.epoch)
            raise OffsetOutOfRange(f"offset {offset} of {stream.topic}/{stream.partition} is not committed")
        regions = self._regions_at(Offset(offset + 1))
        level = len(regions)
        while level < len(self._regions()) and self.watermark(level + 1) > offset:
            level += 1
        return Holders(regions=regions, level=level, is_lost=False, epoch=stream.epoch)

    async def resolve(
        self, epoch: Epoch, offset: Offset, durability: Durability, *, wait_ms: int
    ) -> tuple[Holders, bool]:
        """Return who has a record, and whether they are enough for `durability`, which is waited for up to `wait_ms`.

        Raises:
            PolicyViolation: more regions than hold the topic. Others as `holders`.
        """
        count = len(self._regions())
        level = durability.regions_of(count)
        if level > count:
            raise PolicyViolation(f"{level} regions are asked about: {self._stream.topic} is in {count}")
        holders = self.holders(epoch, offset)
        if not holders.is_lost and holders.level < level and wait_ms > 0:
            waiter = GeoWaiter(
                level=level,
                records=1,
                deadline_ns=self._clock.monotonic_ns() + wait_ms * 1_000_000,
                pause_ms=0,
                is_counted=False,
            )
            found: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
            found.set_result(Published(epoch=epoch, base_offset=offset, append_us=0))
            self._waiters.add(waiter, found, self.watermark)
            await waiter.answer
            holders = self.holders(epoch, offset)
        return holders, not holders.is_lost and holders.level >= level

    def _regions_at(self, following: Offset) -> tuple[RegionNumber, ...]:
        if not self._led_home:
            return ()  # nobody counts here
        return self._home.regions_at(following, committed=self._stream.high_watermark, among=self._regions())

    def _is_current(self, published: Published, following: Offset) -> bool:
        """Return whether a batch that this home stored is counted here, and still what has its offsets."""
        self._follow()
        if self._closed or not self._led_home:
            return False
        if published.epoch == self._epoch:
            return True
        rows = (epoch for epoch, start in reversed(self._stream.epoch_table()) if start < following)
        return next(rows, None) == published.epoch

    def _live(self, regions: Sequence[RegionNumber]) -> list[RegionNumber]:
        return [region for region in regions if self._sessions.get(region) and not self._is_leaving(region)]

    # --- what home sessions tell ------------------------------------------------------------------

    def joined(self, region: RegionNumber, session: Hashable, listener: WatermarkListener) -> None:
        """A mirror of the current epoch is served: its region is reached."""
        self._sessions.setdefault(region, {})[session] = listener
        listener.watermark_moved()

    def left(self, region: RegionNumber, session: Hashable) -> None:
        """That session is over."""
        of_region = self._sessions.get(region, {})
        of_region.pop(session, None)
        if not of_region:
            self._sessions.pop(region, None)

    def acknowledged(self, region: RegionNumber, *, epoch: Epoch, offset: Offset) -> None:
        """Count what a mirror has committed, as it says in a session of `epoch`; of one that leaves, if it is kept."""
        was_held_back = region in self._held_back
        self._follow()
        if not self._led_home:
            return
        if self._is_leaving(region):
            if epoch == self._epoch:
                self._held_back[region] = offset
        elif self._home.acknowledged(region, epoch=epoch, offset=offset) or was_held_back:
            self._moved()

    def watermark_to_tell(self) -> tuple[int, Offset] | None:
        """Return (k, watermark) for mirrors that cannot know it themselves; None when there is nothing to tell."""
        if self._k < TOLD_FROM_REGIONS or not self._led_home or not self.is_visible_end_known:
            return None
        return self._k, self.visible_end

    # --- what a mirror session tells --------------------------------------------------------------

    def told(self, k: int, watermark: Offset) -> None:
        """Follow the home's word, given in a session of this mirror's current epoch."""
        self._follow()
        if self._told.told(k, watermark):
            self._moved()

    # --- following the log ------------------------------------------------------------------------

    def _log_moved(self) -> None:
        self._follow()
        if self._led_home:
            self._measure()
        if self._waiters.open_count or self._curious or self._k > 1:
            self._moved(by_log=True)

    def _follow(self) -> None:
        """Notice another leader, home or epoch. Called before anything is answered: nobody tells of an election won."""
        stream = self._stream
        leads, epoch = stream.is_leader, stream.epoch
        led_home = leads and stream.is_home
        if leads == self._leads and epoch == self._epoch and led_home == self._led_home:
            if self._held_back:
                self._count_kept()
            return
        self._held_back.clear()
        was_leading, had_epoch = self._led_home, self._epoch
        # Several may have begun since: what the lowest start cuts off is cut off.
        start = min((row[1] for row in stream.epoch_table() if row[0] > had_epoch), default=Offset(0))
        if was_leading and not led_home:
            self._waiters.give_up_above(Offset(-1))
        elif epoch != had_epoch:
            self._waiters.give_up_above(start)
        self._leads, self._epoch, self._led_home = leads, epoch, led_home
        self._was_known = self._remembers = False
        self._bar = stream.next_offset
        if stream.home != self._home.home:
            self._home = GeoWatermarks(stream.home)
        self._told.begin(epoch, start=start)
        self._home.begin(epoch, start=start, committed=stream.next_offset)
        self._shown = min(self._shown, start) if epoch != had_epoch else self._shown
        if led_home:
            self._meter.begin(stream.next_offset)
            self._metered = stream.next_offset

    def _count_kept(self) -> None:
        """Count what regions acknowledged while they were to leave, once they stay after all."""
        kept = [region for region in self._held_back if not self._is_leaving(region)]
        for region in kept:
            self._home.acknowledged(region, epoch=self._epoch, offset=self._held_back.pop(region))
        if kept:
            self._moved()

    def _measure(self) -> None:
        """Note how old the newest committed records are, where the topic bounds that."""
        stream, first = self._stream, self._metered
        if not self._bounds.max_ms or stream.high_watermark <= first:
            return
        self._metered = stream.high_watermark
        with suppress(OffsetOutOfRange):  # deleted already
            entries = stream.read(first, 1)
            if entries:
                self._meter.committed(first, entries[0].header().append_us)

    def _moved(self, *, by_log: bool = False) -> None:
        """Answer whoever waited for what is known now."""
        for level in self._waiters.levels():
            self._waiters.reached(level, self.watermark(level))
        if self._curious and self.is_visible_end_known:
            curious, self._curious = self._curious, []
            for news in curious:
                if not news.done():
                    news.set_result(None)
        if self._bounds.max_ms and self._led_home:
            acked = [self._home.acked(region) or Offset(0) for region in self._regions() if region != self._stream.home]
            self._meter.forget_below(min(acked, default=Offset(0)))
        if self._k > 1:
            self._show(by_log=by_log)

    def _show(self, *, by_log: bool) -> None:
        end, is_known = self.visible_end, self.is_visible_end_known
        has_moved, has_become_known = end > self._shown, is_known and not self._was_known
        self._shown, self._was_known = max(end, self._shown), is_known
        if has_moved or has_become_known:
            self._tell()
        if has_moved and not by_log:  # the log wakes them itself
            self._stream.wake_readers()

    def _tell(self) -> None:
        for sessions in list(self._sessions.values()):
            for listener in list(sessions.values()):
                listener.watermark_moved()

    def close(self) -> None:
        """The stream is not served here any more."""
        self._closed = True
        self._waiters.close()

    # --- what is shown ----------------------------------------------------------------------------

    def watermarks(self) -> dict[int, Offset]:
        """Return the watermark of every level that somebody asks for, at the leader of the home."""
        if not (self._stream.is_leader and self._stream.is_home):
            return {}
        levels = {self._k, *self._waiters.levels()} - {1}
        return {k: self.watermark(k) for k in sorted(levels)}


def _bounds_of(settings: GeoSettings) -> LagBounds:
    return LagBounds(
        max_ms=settings.max_geo_lag_ms,
        max_records=settings.max_geo_lag_records,
        regions=max(2, settings.min_insync_regions),
    )
