"""What operators ask of a region: its brokers, and where the replicas of its partitions are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from georelay.ids import GroupId
from region.controller.service import ControllerService
from region.controller.topic import Homes, TopicView
from region.kafka.ports import BrokerStatus, PartitionReplicas
from region.multiraft.host import Host


class Operations:
    """The answers of one broker; changes are committed by the controller's leader."""

    def __init__(self, *, controller: ControllerService, host: Host) -> None:
        self._controller = controller
        self._host = host

    def brokers_status(self) -> Sequence[BrokerStatus]:
        """Return the brokers of this region with their states, ascending by id."""
        admin = {row.broker: row.admin for row in self._controller.state.brokers.values()}
        moving = self._moving()
        return [
            BrokerStatus(
                id=row["id"],
                state=str(row["state"]).lower(),
                alive=self._host.is_alive(row["id"]),
                kafka=row["kafka"],
                admin=admin.get(row["id"], ""),
                replicas=row["replicas"],
                leaders=self._leads(row["id"]),
                moving=moving.get(row["id"], 0),
            )
            for row in sorted(self._controller.brokers_status(), key=lambda row: int(row["id"]))
        ]

    def _leads(self, broker: int) -> int:
        """Return how many groups a broker leads, as far as this one knows."""
        groups = [assignment.group_id for assignment in self._controller.state.assignments()]
        return sum(self._host.leaders.leader(group) == broker for group in groups)

    def _moving(self) -> Mapping[int, int]:
        """Return by broker the replicas that are wanted on it or away from it and are not there yet."""
        moving: dict[int, int] = {}
        for assignment in self._controller.state.assignments():
            for broker in {*assignment.voters} ^ {*assignment.target}:
                moving[broker] = moving.get(broker, 0) + 1
        return moving

    def replicas_status(self, view: TopicView) -> Sequence[PartitionReplicas]:
        """Return where the replicas of every partition of a local name are, ascending."""
        rows = [
            row
            for row in self._controller.assignments_status(view.definition.name)
            if view.homes is Homes.ONE or row["origin"] == view.origin
        ]
        return [
            PartitionReplicas(
                partition=row["partition"],
                voters=tuple(row["voters"]),
                target=tuple(row["target"]),
                learners=tuple(row["learners"]),
                behind_entries=self._behind(GroupId(row["group"]), row),
                group=row["group"],
            )
            for row in sorted(rows, key=lambda row: int(row["partition"]))
        ]

    def _behind(self, group_id: GroupId, row: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
        group = self._host.groups.get(group_id)
        if group is None or not group.node.is_leader:
            return ()
        rows = []
        for learner in row["learners"]:
            catch_up = group.catch_up_of(learner)
            if catch_up is not None:
                rows.append((learner, max(0, catch_up.last - catch_up.match)))
        return tuple(rows)
