"""Changing users, lists and quotas, seen from one broker: the wish goes where one for a topic goes.

Rule 1: who orders is said in definitions.py.
Rule 2: a change is answered once this broker has it: whoever was given a right may use it here at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from georelay.errors import PolicyViolation, Unavailable
from georelay.fields import INT64_MAX, Fields, JsonObject
from region.controller.commands import Command
from region.controller.definition_orders import BY, CHANGE, Ordered, SecurityOrders
from region.controller.definitions import ControlPort
from region.controller.routing import Route
from region.controller.state_core import ControllerState, Done
from region.controller.topology import Topology


class SecurityDefinitions:
    """Wishes of administrators.

    Args:
        commit: proposes a command on this broker and returns its outcome, or raises why it was refused.
        ordered: told the index of each definition that this broker, as leader of the definitions home, ordered.
        noted: told of what was ordered by this broker as that leader, with who asked for it.
        applied: returns once this broker has applied a definition of security with that index.
    """

    def __init__(
        self,
        *,
        state: ControllerState,
        topology: Callable[[], Topology],
        route: Route,
        commit: Callable[[Command], Awaitable[Done]],
        ordered: Callable[[int], None],
        noted: Callable[[Ordered], None],
        applied: Callable[[int], Awaitable[None]],
    ) -> None:
        self.control: ControlPort | None = None
        self._state = state
        self._topology = topology
        self._route = route
        self._applied = applied
        self._orders = SecurityOrders(
            books=state,
            commit=commit,
            ordered=ordered,
            noted=noted,
            older_regions=lambda _: [region.name for region in topology().regions],  # nobody knows before mesh control
        )

    async def change(self, wish: JsonObject, *, by: str) -> None:
        """Have a wish of security_wishes fulfilled; return once this broker knows. `by`: who wishes it.

        Raises:
            BadRequest, PolicyViolation, Unavailable: nothing was changed.
            HomeUnreachable: the definitions home cannot be reached; nothing was changed.
            OutcomeUnknown: it may be so, or some of several lists are changed; ask again.
        """
        result = await self._route.retrying(lambda: self._ask_home({"wish": wish, BY: by}))
        await self._applied(Fields(result, "answer").integer("index", low=0, high=INT64_MAX))

    async def serve_change(self, body: JsonObject) -> JsonObject:
        """Fulfil a wish, as leader of the definitions home."""
        if not self._topology().is_definitions_home:
            raise PolicyViolation(f"region {self._topology().own.name} is not the definitions home of this mesh")
        if self._state.mesh.has_ceded:
            return await self._mesh_control().call(CHANGE, body)
        return await self._orders.change(body)

    def _mesh_control(self) -> ControlPort:
        control = self.control
        if control is None:
            raise Unavailable("mesh control orders definitions, and this broker does not take part in it")
        return control

    async def _ask_home(self, body: JsonObject) -> JsonObject:
        topology = self._topology()
        if self._state.mesh.has_ceded or topology.definitions_home == 0:
            return await self._mesh_control().call(CHANGE, body)
        if topology.is_definitions_home:
            return await self._route.to_leader(CHANGE, body, self.serve_change)
        return await self._route.to_region(topology.definitions_home, CHANGE, body)
