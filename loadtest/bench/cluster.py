"""Brokers of one place that are measured: their processes, and the clients that speak with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.bench.client_process import ClientProcess
from loadtest.bench.mesh_asks import SYNCS, metric, pids_of
from loadtest.login import PLAIN, Settings, settings_of
from loadtest.mesh_process import MeshProcess

ASK_S = 90


@dataclass(frozen=True, slots=True)
class Node:
    """A node: `name` as its own protocol has it, `address` for clients, `pid` of its process."""

    name: str
    address: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Running nodes of one kind.

    Args:
        protocol: which clients speak with it (loadtest.bench.client).
        packages: folder with Python packages that only its clients need.
        settings: of the topics that are made. signed_in: how clients connect.
        leaders: returns the name or address of the leader of each topic; None: the clients ask.
        leader_aware: clients find the leader by themselves, whatever servers they are given.
        syncs: returns how many syncs the nodes have done, where they tell.
    """

    protocol: str
    nodes: Sequence[Node]
    packages: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    signed_in: Settings = field(default_factory=lambda: PLAIN)
    leaders: Callable[[Sequence[str]], Sequence[str]] | None = None
    leader_aware: bool = False
    syncs: Callable[[], float] = lambda: 0.0

    @property
    def pids(self) -> dict[str, int]:
        """Return the processes of the nodes by name."""
        return {node.name: node.pid for node in self.nodes}

    def servers(self, without: Node | None = None) -> str:
        """Return the addresses that clients are given, without one node unless they find leaders by themselves."""
        return ",".join(node.address for node in self.nodes if self.leader_aware or node is not without)

    def create(self, topics: Sequence[str]) -> None:
        """Make topics."""
        self._ask("create", topics, settings=dict(self.settings))

    def leader(self, topics: Sequence[str]) -> Node:
        """Return the node that leads most of the topics."""
        found = self.leaders(topics) if self.leaders else self._ask("leaders", topics)["leaders"]
        return max(self.nodes, key=lambda node: sum(leader in (node.name, node.address) for leader in found))

    def client(self, role: str, order: Mapping[str, object]) -> ClientProcess:
        """Start a client."""
        words = ("loadtest.bench.client", self.protocol, role)
        return ClientProcess(*words, order=order, settings=self.signed_in, packages=self.packages)

    def _ask(self, role: str, topics: Sequence[str], **more: object) -> dict[str, list[str]]:
        order = {"servers": self.servers(), "topics": list(topics), **more}
        answer: dict[str, list[str]] = self.client(role, order).result(ASK_S)
        return answer


def clusters_of(mesh: MeshProcess) -> dict[str, Cluster]:
    """Return the brokers of each region of a mesh, its home first."""
    return {region: _of_region(mesh, region) for region in mesh.endpoints["regions"]}


def _of_region(mesh: MeshProcess, region: str) -> Cluster:
    pids, addresses = pids_of(mesh, region), mesh.endpoints["regions"][region]["kafka"]
    return Cluster(
        protocol="kafka",
        nodes=[Node(name, address, pids[name]) for name, address in zip(pids, addresses, strict=True)],
        signed_in=settings_of(mesh),
        leader_aware=True,
        syncs=lambda: sum(metric(mesh, region, SYNCS)),
    )
