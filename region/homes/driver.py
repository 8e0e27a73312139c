"""At the leader of mesh control: every attempt in the book is carried on until it is over, whoever began it.

Rule 1: the book is the only list of what is to be done. A leader that was just elected finds there what another began.
Rule 2: an attempt is in one wave at a time; waves hold streams of one kind, home and target. A wave that still waits
        for some of its streams keeps no newer attempt of another one waiting, and no other wave.
        Nothing that goes wrong with a wave ends the attempts: they are taken up again after a pause.
Rule 3: only what an operator said to this leader is not in the book: that loss is accepted. A new leader is told again.
        It holds for the wish that was meant: for every attempt with its first name (Wave, rule 6), whether or not
        anybody heard that it began anew, and for no other wish that takes its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from georelay.clock import Clock
from georelay.errors import GeorelayError
from georelay.ids import Epoch, RegionNumber, StreamKey
from mesh.home.home_row import HomeRow, first_id
from mesh.home.move_core import Move
from region.controller.topic import TopicDefinition
from region.homes.home_requests import WAVE_STREAMS_MAX
from region.homes.levels import coordinators_need_lease, is_coordination, needs_lease, protected_level
from region.homes.part import HomesPart, MeshTopics
from region.homes.ports import AskRegion, Control
from region.homes.tasks import OwnedTasks
from region.homes.wave import Wave

log = structlog.get_logger()

WAVES_MAX: Final = 8  # at a time
KEPT_MAX: Final = 100_000  # streams of forced moves that a leader still tells the level of
AGAIN_S: Final = 0.5  # after a wave that ended early


class MoveDriver:
    """Carries attempts on while this broker leads control. Arguments: see Wave.

    Args:
        over: called with each stream whose attempt is over.
    """

    def __init__(
        self,
        *,
        part: HomesPart,
        topics: MeshTopics,
        control: Control,
        ask: AskRegion,
        clock: Clock,
        is_heard: Callable[[RegionNumber], bool],
        leases_over: Callable[[RegionNumber], bool],
        over: Callable[[StreamKey], None],
    ) -> None:
        self._part = part
        self._topics = topics
        self._control = control
        self._ask = ask
        self._clock = clock
        self._is_heard = is_heard
        self._leases_over = leases_over
        self._over = over
        self._carried: dict[StreamKey, Move] = {}
        self._accepted: set[tuple[StreamKey, str]] = set()  # first names of the attempts whose loss an operator accepts
        self._kept: dict[tuple[StreamKey, Epoch], int] = {}
        self._wake = asyncio.Event()
        self._tasks = OwnedTasks()

    def start(self) -> None:
        """Begin: this broker was elected."""
        self._wake.set()
        self._tasks.spawn(self._drive(), "home-moves")

    def stop(self) -> None:
        """End at once: this broker leads no more. What was sent takes effect or not; the book will say."""
        self._tasks.cancel()
        self._carried.clear()
        self._accepted.clear()
        self._kept.clear()

    def wake(self) -> None:
        """Look at the book: attempts were begun."""
        self._wake.set()

    def accept_loss(self, attempts: Mapping[StreamKey, str]) -> None:
        """End these attempts, named by a move id, with as many promises as there are."""
        self._accepted.update((key, first_id(move_id)) for key, move_id in attempts.items())
        for key in attempts:
            move = self._carried.get(key)
            if move is not None:
                move.accept_loss = move.accept_loss or self._is_accepted(key, move.moving.move_id)

    def _is_accepted(self, key: StreamKey, move_id: str) -> bool:
        return (key, first_id(move_id)) in self._accepted

    def kept_level(self, key: StreamKey, epoch: Epoch) -> int:
        """Return which acknowledgements the start of `epoch` kept, 1 for all; known for what this leader ended."""
        move = self._carried.get(key)
        if move is not None and move.moving.epoch == epoch and move.choice is not None:
            return move.choice.kept_level
        return self._kept.get((key, epoch), 1)

    def needs_lease(self, row: HomeRow) -> bool:
        """Return whether the attempt of a row can end only when the home's leases are over, or it promises itself."""
        move = self._carried.get(row.key)
        if move is not None:
            return move.needs_lease
        topic = self._topics.find(row.topic_id)
        return topic is not None and self._needs_lease(topic)

    def carried(self, key: StreamKey) -> Move | None:
        """Return the attempt that is being carried on for a stream."""
        return self._carried.get(key)

    async def _drive(self) -> None:
        slots = asyncio.Semaphore(WAVES_MAX)
        while True:
            await self._wake.wait()
            self._wake.clear()
            free = [row for row in self._part.book.attempts() if self._is_free(row)]
            for moves in _waves(move for move in map(self._move_of, free) if move is not None):
                self._carried.update((move.row.key, move) for move in moves)
                self._tasks.spawn(self._carry(moves, slots), "home-wave")

    def _is_free(self, row: HomeRow) -> bool:
        """Return whether nobody carries the attempt of `row`: what is carried may be an older one of the stream."""
        move = self._carried.get(row.key)
        return move is None or row.moving is None or move.moving.epoch != row.moving.epoch

    def _move_of(self, row: HomeRow) -> Move | None:
        topic = self._topics.find(row.topic_id)
        if topic is None or row.moving is None:
            return None
        return Move(
            row,
            level=protected_level(topic, regions=len(row.regions)),
            needs_lease=self._needs_lease(topic),
            accept_loss=self._is_accepted(row.key, row.moving.move_id),
        )

    def _needs_lease(self, topic: TopicDefinition) -> bool:
        return coordinators_need_lease(self._topics.topics()) if is_coordination(topic) else needs_lease(topic)

    async def _carry(self, moves: list[Move], slots: asyncio.Semaphore) -> None:
        wave = Wave(
            moves,
            part=self._part,
            control=self._control,
            ask=self._ask,
            clock=self._clock,
            is_heard=self._is_heard,
            leases_over=self._leases_over,
            begun_anew=self._note_begun_anew,
        )
        try:
            await wave.run(slots)
        except GeorelayError as error:
            log.warning("home.wave_ended", streams=len(wave.open), reason=str(error))
            await asyncio.sleep(AGAIN_S)  # the book says what is left; a leader that was deposed is stopped
        except Exception:  # a fault of one stream: without this its wave would begin anew at once, for ever
            log.exception("home.wave_failed", streams=len(wave.open))
            await asyncio.sleep(AGAIN_S)
        finally:
            for move in moves:
                self._note_kept(move)
                if self._carried.get(move.row.key) is move:
                    del self._carried[move.row.key]
                self._forget_accepted(move)
                self._over(move.row.key)
            self._wake.set()

    def _note_begun_anew(self, key: StreamKey) -> None:
        self._over(key)
        self._wake.set()

    def _forget_accepted(self, move: Move) -> None:
        """Drop what was accepted for a wish of which no attempt is under way any more."""
        key, wish = move.row.key, first_id(move.moving.move_id)
        row = self._part.book.row(key)
        if row is None or row.moving is None or first_id(row.moving.move_id) != wish:
            self._accepted.discard((key, wish))

    def _note_kept(self, move: Move) -> None:
        if move.choice is not None and move.choice.kept_level > 1:
            self._kept[move.row.key, move.moving.epoch] = move.choice.kept_level
            while len(self._kept) > KEPT_MAX:
                del self._kept[next(iter(self._kept))]


def _waves(moves: Iterable[Move]) -> list[list[Move]]:
    """Return the attempts in waves: one kind, home and target each."""
    groups: dict[tuple[str, int, int], list[Move]] = {}
    for move in moves:
        groups.setdefault((str(move.moving.kind), move.row.home, move.moving.target), []).append(move)
    return [
        group[at : at + WAVE_STREAMS_MAX] for group in groups.values() for at in range(0, len(group), WAVE_STREAMS_MAX)
    ]
