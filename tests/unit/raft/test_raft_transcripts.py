"""Golden transcripts: a story of one group, command by command, with everything it sends, stores and applies.

A file holds comments, a command, a line `----` and the output. `pytest --rewrite` stores what the code says now.
Commands: group N [key=value …] · tick M N · campaign M · propose M TEXT … · flush M · deliver [FROM->TO] ·
settle · cut M N · heal · transfer M TO · crash M · restart M · state
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from georelay.ids import BrokerId


def run_file(path: Path, handle: Callable[[str], str], *, rewrite: bool) -> None:
    """Run every block of `path` through `handle` and compare, or rewrite."""
    blocks: list[str] = []
    failures: list[str] = []
    for block in path.read_text().strip().split("\n\n"):
        comments = [line for line in block.splitlines() if line.startswith("#")]
        body = "\n".join(line for line in block.splitlines() if not line.startswith("#"))
        command, _, expected = body.partition("\n----")
        actual = handle(command).strip("\n")
        if actual != expected.strip("\n"):
            failures.append(f"{path.name}: {command}\n expected:\n{expected}\n actual:\n{actual}")
        blocks.append("\n".join([*comments, command, "----", actual]).rstrip("\n"))
    if rewrite:
        path.write_text("\n\n".join(blocks) + "\n")
    assert rewrite or not failures, "\n".join(failures)


class Story:
    """Runs the commands of one file."""

    def __init__(self, cluster_class: Any) -> None:
        self._cluster_class = cluster_class
        self.cluster: Any = None

    def __call__(self, command: str) -> str:
        name, *words = command.split()
        before = (len(self.cluster.sent), self._stored(), self._roles()) if self.cluster else (0, {}, {})
        getattr(self, f"_do_{name}")(*words)
        if name == "state":
            return "\n".join(self._state(member) for member in self.cluster.members)
        self.cluster.pump()
        sent, stored, roles = before
        lines = [
            f"{i} {roles.get(i)} -> {role}"
            for i, role in self._roles().items()
            if name != "group" and roles.get(i) != role
        ]
        lines += [f"{i} durable {now}" for i, now in self._stored().items() if name != "group" and stored.get(i) != now]
        lines += [f"send {self._show(message)}" for message in self.cluster.sent[sent:]]
        return "\n".join(lines)

    def _roles(self) -> dict[int, str]:
        return {i: f"{m.node.role.value} of term {m.node.term}" for i, m in self.cluster.members.items()}

    def _stored(self) -> dict[int, str]:
        return {
            i: f"term {m.disk.hard_state.term} vote {m.disk.hard_state.vote} {m.disk.entries}"
            for i, m in self.cluster.members.items()
        }

    def _state(self, member: int) -> str:
        box = self.cluster.members[member]
        node = box.node
        return (
            f"{member} {node.role.value} term {node.term} leader {node.leader_id} last {node.last_index}"
            f" stable {node.log.stable_index} commit {node.commit_index} applied {box.applied}"
        )

    def _show(self, message: Any) -> str:
        fields = [
            f"{name}={getattr(message, name)}"
            for name in message.__dataclass_fields__
            if name not in ("from_", "to", "term") and getattr(message, name) not in (False, (), 0)
        ]
        return f"{message.from_}->{message.to} {type(message).__name__}(term={message.term}) {' '.join(fields)}".strip()

    def _do_group(self, count: str, *settings: str) -> None:
        pairs = (setting.split("=") for setting in settings)
        self.cluster = self._cluster_class(int(count), **{key: int(value) for key, value in pairs})

    def _do_tick(self, member: str, count: str) -> None:
        self.cluster.tick(int(count), int(member))

    def _do_campaign(self, member: str) -> None:
        self.cluster.node(int(member)).campaign()

    def _do_propose(self, member: str, *texts: str) -> None:
        self.cluster.propose(*texts, at=int(member))

    def _do_flush(self, member: str) -> None:
        self.cluster.flush(int(member))

    def _do_deliver(self, pair: str = "") -> None:
        chosen = [m for m in self.cluster.network if pair in ("", f"{m.from_}->{m.to}")]
        for message in chosen:
            self.cluster.deliver_one(next(i for i, m in enumerate(self.cluster.network) if m is message))

    def _do_settle(self) -> None:
        self.cluster.settle()

    def _do_cut(self, one: str, other: str) -> None:
        self.cluster.cut |= {(int(one), int(other)), (int(other), int(one))}

    def _do_heal(self) -> None:
        self.cluster.heal()

    def _do_transfer(self, member: str, to: str) -> None:
        self.cluster.node(int(member)).transfer_leadership(BrokerId(int(to)))

    def _do_crash(self, member: str) -> None:
        self.cluster.crash(int(member))

    def _do_restart(self, member: str) -> None:
        self.cluster.restart(int(member))

    def _do_state(self) -> None:
        return


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent / "transcripts").glob("*.txt")), ids=lambda path: path.stem
)
def test_a_transcript_replays(path: Path, request: pytest.FixtureRequest, cluster_class: Any) -> None:
    run_file(path, Story(cluster_class), rewrite=request.config.getoption("--rewrite"))
