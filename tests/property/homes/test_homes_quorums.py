"""Random long lives of one stream in three and five regions: what k regions acknowledged survives every forced move.

The shipping book, choice and agreeing prefix over logs that are lists of (epoch, offset). Regions publish, replicate,
promise to attempts that are taken over by others, come back late, and become home again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import given

from georelay.errors import Fenced
from georelay.ids import Epoch, Offset, RegionNumber, StreamKey
from mesh.home.home_book_core import Beginning, Ending, HomeBook
from mesh.home.home_row import HomeRow, MoveKind
from mesh.home.promise_core import PromiseAnswer, agreeing_length, answers_needed, choose
from mesh.replication.ports import EpochRow
from mesh.replication.stream_header import first_digest
from tests.tiers import first

KEY = StreamKey(b"q" * 16, RegionNumber(0), 0)


@dataclass
class Region:
    number: RegionNumber
    log: list[int] = field(default_factory=list)  # the epoch that sequenced each offset
    rows: list[EpochRow] = field(default_factory=lambda: [(Epoch(1), Offset(0))])
    fence: int = 1

    @property
    def epoch(self) -> int:
        return self.rows[-1][0]

    def digest(self, length: int) -> bytes:
        return hashlib.blake2b(bytes(self.log[:length]), digest_size=16).digest() if length else first_digest(KEY)

    def open(self, epoch: int, start: int) -> None:
        del self.log[start:]
        self.rows.append((Epoch(epoch), Offset(start)))
        self.fence = max(self.fence, epoch)


class Mesh:
    def __init__(self, size: int, level: int) -> None:
        self.level = level
        self.regions = {RegionNumber(number): Region(RegionNumber(number)) for number in range(1, size + 1)}
        self.first = HomeRow.first(
            KEY.topic_id, 0, home=RegionNumber(1), regions=tuple(self.regions), digest=first_digest(KEY)
        )
        self.book = HomeBook()
        self.index = 0
        self.answers: dict[RegionNumber, PromiseAnswer] = {}
        self.acked_by: dict[int, set[RegionNumber]] = {}  # offset -> regions, in the home's present epoch
        self.acked: set[tuple[int, int]] = set()

    @property
    def row(self) -> HomeRow:
        return self.book.row(KEY) or self.first

    @property
    def home(self) -> Region:
        return self.regions[self.row.home]

    def serves(self) -> bool:
        return self.home.epoch == self.row.epoch

    def publish(self) -> None:
        home = self.home
        if self.serves() and home.fence <= home.epoch:
            home.log.append(home.epoch)

    def replicate(self, number: RegionNumber) -> None:
        home, mirror = self.home, self.regions[number]
        if mirror is home or not self.serves() or mirror.fence > home.epoch:
            return
        following = next((row for row in self.row.table if row[0] > mirror.epoch), None)
        if following is not None and len(mirror.log) >= following[1]:
            assert mirror.log[: following[1]] == home.log[: following[1]]
            mirror.open(following[0], following[1])
        elif len(mirror.log) < len(home.log) and home.log[: len(mirror.log)] == mirror.log:
            mirror.log.append(home.log[len(mirror.log)])
        self.acknowledge(mirror)

    def acknowledge(self, mirror: Region) -> None:
        if mirror.epoch != self.home.epoch:
            return
        for offset, epoch in enumerate(mirror.log):
            holders = self.acked_by.setdefault(offset, set())
            holders.add(mirror.number)
            if len(holders) + 1 >= self.level:
                self.acked.add((epoch, offset))
        if self.level == 1:
            self.acked.update((epoch, offset) for offset, epoch in enumerate(self.home.log))

    def begin(self) -> None:
        self.index += 1
        wish = Beginning(key=KEY, move_id=f"m{self.index}", kind=MoveKind.FORCED, target=RegionNumber(0))
        self.book.begin(wish, first=self.first, regions=tuple(self.regions), index=self.index)
        self.answers = {}

    def promise(self, number: RegionNumber) -> None:
        moving, region = self.row.moving, self.regions[number]
        if moving is None or region.fence >= moving.epoch:
            return
        region.fence = moving.epoch
        length = agreeing_length(region.rows, end=Offset(len(region.log)), table=self.row.table)
        self.answers[number] = PromiseAnswer(region=number, length=length, digest=region.digest(length))

    def end(self) -> None:
        if self.row.moving is None:
            return
        choice = choose(self.row, self.answers, regions=self.row.regions, level=self.level)
        if choice is None or not choice.is_enough:
            return
        self.index += 1
        ending = Ending(
            key=KEY, move_id=self.row.moving.move_id, home=choice.home, start=choice.start, digest=choice.digest
        )
        self.book.end(ending, regions=tuple(self.regions), index=self.index)
        self.acked_by = {}
        self.answers = {}
        self.open_home()

    def open_home(self) -> None:
        if self.home.epoch < self.row.epoch and len(self.home.log) >= self.row.start:
            self.home.open(self.row.epoch, self.row.start)

    def check(self) -> None:
        assert self.row.fault() == ""
        assert self.acked <= {(epoch, offset) for offset, epoch in enumerate(self.home.log)}


@pytest.mark.parametrize(("size", "level"), first(3, [(3, 2), (5, 3), (5, 5), (3, 3), (5, 2)]))
@given(data=st.data())
def test_what_k_regions_acknowledged_survives_when_enough_regions_promise(
    size: int, level: int, data: st.DataObject
) -> None:
    mesh = Mesh(size, level)
    steps = st.sampled_from(["publish", "publish", "replicate", "replicate", "replicate", "promise", "begin", "end"])
    for _ in range(data.draw(st.integers(10, 80))):
        step = data.draw(steps)
        region = RegionNumber(data.draw(st.integers(1, size)))
        match step:
            case "publish":
                mesh.publish()
            case "replicate":
                mesh.replicate(region)
            case "promise":
                mesh.promise(region)
            case "begin":
                mesh.begin()
            case _:
                mesh.end()
        mesh.check()


@given(size=st.integers(1, 9), level=st.integers(1, 9))
def test_any_so_many_regions_meet_any_k(size: int, level: int) -> None:
    needed = answers_needed(regions=size, level=level)
    assert 1 <= needed <= size
    assert needed + min(level, size) == size + 1


def test_an_attempt_that_another_took_the_place_of_cannot_end() -> None:
    mesh = Mesh(3, 2)
    mesh.begin()
    old = mesh.row.moving
    mesh.begin()
    assert old is not None and mesh.row.moving is not None and mesh.row.moving.epoch == old.epoch + 1
    ending = Ending(key=KEY, move_id=old.move_id, home=RegionNumber(2), start=Offset(0), digest=first_digest(KEY))
    with pytest.raises(Fenced):
        mesh.book.end(ending, regions=tuple(mesh.regions), index=99)
