"""Changing users, lists and quotas, seen from one broker: the wish goes to the definitions home, like one for a topic.

Rule 1: only the controller leader of the definitions home orders.
Rule 2: a change is answered once this broker has it: whoever was given a right may use it here at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from georelay.errors import Busy, PolicyViolation
from georelay.fields import INT64_MAX, Fields, JsonObject
from region.controller import security_wishes
from region.controller.commands import Command, DefineSecurity
from region.controller.routing import Route
from region.controller.security_rules import SECURITY_LEVEL
from region.controller.state_core import ControllerState, Done
from region.controller.topology import Topology
from region.security.definition import SECRET_BYTES, Kind, Secret, SecurityDefinition, kind_of

CHANGE: Final = "security.change"
TRIES_MAX: Final = 5  # against other administrators


class SecurityDefinitions:
    """Wishes of administrators.

    Args:
        commit: proposes a command on this broker and returns its outcome, or raises why it was refused.
        ordered: told the index of each definition that this broker, as leader of the definitions home, ordered.
        applied: returns once this broker has applied a definition of security with that index.
    """

    def __init__(
        self,
        *,
        state: ControllerState,
        topology: Topology,
        route: Route,
        commit: Callable[[Command], Awaitable[Done]],
        ordered: Callable[[int], None],
        applied: Callable[[int], Awaitable[None]],
        new_secret: Callable[[], bytes] = lambda: secrets.token_bytes(SECRET_BYTES),
    ) -> None:
        self._state = state
        self._topology = topology
        self._route = route
        self._commit = commit
        self._ordered = ordered
        self._applied = applied
        self._new_secret = new_secret

    async def change(self, wish: JsonObject) -> None:
        """Have a wish of security_wishes fulfilled; return once this broker knows.

        Raises:
            BadRequest, PolicyViolation: nothing was changed (of several lists: not all of them).
            HomeUnreachable: the definitions home cannot be reached; nothing was changed.
            Unavailable, OutcomeUnknown: it may be so; ask again.
        """
        result = await self._route.retrying(lambda: self._ask_home({"wish": wish}))
        await self._applied(Fields(result, "answer").integer("index", low=0, high=INT64_MAX))

    async def serve_change(self, body: JsonObject) -> JsonObject:
        """Fulfil a wish, as leader of the definitions home."""
        if not self._topology.is_definitions_home:
            raise PolicyViolation(f"region {self._topology.own.name} is not the definitions home of this mesh")
        if self._state.feature_level < SECURITY_LEVEL:
            raise PolicyViolation("the definitions home has brokers that know no users: upgrade them, then ask again")
        wish = Fields(body, CHANGE).value("wish")
        for _ in range(TRIES_MAX):
            try:
                return {"index": await self._fulfil(dict(wish) if isinstance(wish, dict) else {})}
            except Busy:
                continue  # somebody else was first: judge the wish against what is there now
        raise Busy("others change the same users or lists all the time; ask again")

    async def _fulfil(self, wish: JsonObject) -> int:
        planned = security_wishes.plan(self._state.security, wish)
        if any(kind_of(definition) is Kind.USER for definition in planned) and not self._state.security.secret():
            await self._order(Secret(value=self._new_secret()))
        for definition in planned:
            await self._order(definition)
        return self._state.security.index

    async def _order(self, definition: SecurityDefinition) -> None:
        known = self._state.security.find(kind_of(definition), definition.key)
        replaces = 0 if known is None else known.index
        done = await self._commit(DefineSecurity(definition=definition, replaces=replaces))
        self._ordered(done.definition_index)

    async def _ask_home(self, body: JsonObject) -> JsonObject:
        if self._topology.is_definitions_home:
            return await self._route.to_leader(CHANGE, body, self.serve_change)
        return await self._route.to_region(self._topology.definitions_home, CHANGE, body)
