"""Asking mesh control from any broker of the mesh.

Rule 1: a question goes to the leader as far as it is known, else to the replicas in turn; hints are followed.
Rule 2: replicas to which there is an open link come first, before the one that led lately: a region that is gone costs
        no time.
Rule 3: a question whose answer was lost is not sent again here: who asks knows whether that is safe.
Rule 4: every question names the control that is meant; one of another generation is not answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from georelay.errors import (
    Busy,
    ControlUnavailable,
    GeorelayError,
    HomeUnreachable,
    NotLeader,
    OutcomeUnknown,
    Unavailable,
)
from georelay.fields import FieldError, Fields, JsonObject
from georelay.ids import BrokerId, region_of
from region.controller.mesh_rows import ControlRow

PREFIX: Final = "control."
ALONE: Final = (
    "no majority of mesh control can be reached from here: topics, users, regions and homes cannot be changed; "
    "publishing and consuming go on, also to other regions as far as links are up"
)
ATTEMPT_S: Final = 2.0
PAUSE_S: Final = 0.1


class _Newer(Unavailable):
    """The asked broker knows a newer control, and has said which."""


class AskBroker(Protocol):
    """Carries a question to one broker."""

    async def __call__(self, broker: BrokerId, method: str, body: Mapping[str, Any], *, timeout_s: float) -> JsonObject:
        """Return the answer. Raises HomeUnreachable (nothing was sent), OutcomeUnknown, or what it answers."""


class ControlCalls:
    """The way to control.

    Args:
        row: who control is, as known here. founders: whom to ask while that is unknown.
        leader: the broker of the leader as a replica on this broker knows it, -1 unknown.
        here: answers a question on this broker.
        newer: told of a control that another broker knows, and this one does not.
    """

    def __init__(
        self,
        *,
        me: BrokerId,
        row: Callable[[], ControlRow | None],
        founders: Callable[[], Sequence[BrokerId]],
        leader: Callable[[], int],
        ask: AskBroker,
        here: Callable[[str, JsonObject], Awaitable[JsonObject]],
        link_is_open: Callable[[BrokerId], bool],
        newer: Callable[[ControlRow], None],
    ) -> None:
        self._me = me
        self._row = row
        self._founders = founders
        self._leader = leader
        self._ask = ask
        self._here = here
        self._link_is_open = link_is_open
        self._newer = newer
        self._led_lately = BrokerId(-1)
        self._turn = 0

    async def call(self, method: str, body: JsonObject, *, timeout_s: float) -> JsonObject:
        """Ask the leader.

        Raises:
            ControlUnavailable: no leader was found in time; nothing was done.
            OutcomeUnknown: it was asked, and the answer is lost. Others: what it answers.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        last: GeorelayError | None = None
        while True:
            for broker in self._candidates():
                left_s = deadline_s - loop.time()
                if left_s <= 0:
                    break
                try:
                    return await self._follow(broker, method, body, deadline_s)
                except (HomeUnreachable, NotLeader, Unavailable, Busy) as error:
                    last = error
            if loop.time() + PAUSE_S >= deadline_s:
                raise ControlUnavailable(ALONE if last is None else f"{ALONE} ({last})") from last
            await asyncio.sleep(PAUSE_S)

    async def read(self, method: str, body: JsonObject) -> JsonObject:
        """Ask any replica, the leader first.

        Raises:
            ControlUnavailable: none answered. Others: what it answers.
        """
        last: GeorelayError | None = None
        for broker in self._candidates():
            try:
                return await self._send(broker, method, body, ATTEMPT_S)
            except (HomeUnreachable, NotLeader, Unavailable, Busy, OutcomeUnknown) as error:
                last = error
        raise ControlUnavailable(ALONE if last is None else f"{ALONE} ({last})") from last

    def _candidates(self) -> list[BrokerId]:
        row = self._row()
        brokers = [member.broker for member in row.members if not member.retired] if row is not None else []
        known = list(dict.fromkeys(brokers or self._founders()))
        self._turn += 1
        turned = known[self._turn % len(known) :] + known[: self._turn % len(known)] if known else []
        leader = self._leader()
        first = BrokerId(leader) if leader > 0 else self._led_lately
        turned.sort(key=lambda broker: (not (broker == self._me or self._link_is_open(broker)), broker != first))
        return ([first] if leader > 0 and first not in turned else []) + turned

    async def _follow(self, broker: BrokerId, method: str, body: JsonObject, deadline_s: float) -> JsonObject:
        loop = asyncio.get_running_loop()
        try:
            answer = await self._send(broker, method, body, max(deadline_s - loop.time(), 0.05))
        except NotLeader as error:
            if error.leader in (-1, broker):
                raise
            leader = BrokerId(error.leader)
            answer = await self._send(leader, method, body, max(deadline_s - loop.time(), 0.05))
            broker = leader
        self._led_lately = broker
        return answer

    async def _send(self, broker: BrokerId, method: str, body: JsonObject, timeout_s: float) -> JsonObject:
        row = self._row()
        envelope: JsonObject = {
            "generation": 0 if row is None else row.generation,
            "control_id": "" if row is None else row.control_id,
            "body": body,
        }
        name = f"{PREFIX}{method}"
        try:
            return self._read(await self._exchange(broker, name, envelope, timeout_s), broker)
        except _Newer:
            row = self._row()
            if row is None:
                raise
            envelope |= {"generation": row.generation, "control_id": row.control_id}
            return self._read(await self._exchange(broker, name, envelope, timeout_s), broker)

    async def _exchange(self, broker: BrokerId, name: str, envelope: JsonObject, timeout_s: float) -> JsonObject:
        if broker == self._me:
            return await self._here(name, envelope)
        return dict(await self._ask(broker, name, envelope, timeout_s=timeout_s))

    def _read(self, answer: JsonObject, broker: BrokerId) -> JsonObject:
        try:
            fields = Fields(answer, "answer")
            if fields.has("newer"):
                self._newer(ControlRow.from_json(fields.value("newer")))
                raise _Newer(f"broker {broker} (region {region_of(broker)}) knows a newer mesh control; ask again")
            result = fields.value("ok")
        except FieldError as error:
            raise OutcomeUnknown(f"the answer of broker {broker} is not readable: {error}") from error
        if not isinstance(result, dict):
            raise OutcomeUnknown(f"the answer of broker {broker} is not an object")
        return result


def read_where(answer: JsonObject) -> ControlRow | None:
    """Return which control a broker follows, from its answer to "control.where". Raises FieldError."""
    row = Fields(Fields(answer, "answer").value("ok"), "where").value("row")
    return None if row is None else ControlRow.from_json(row)
