"""A pool whose member is an external `serf agent`, driven over its RPC (serf-wire 2.9). Same view as the native.

The agent has its own name, keys and addresses; this process gives it tags, and hears of members by its event stream.

Rule 1: the connection is made anew for ever; while it is away the members are those that were last heard of.
Rule 2: everything that the agent sends is bounded: it is another program.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from georelay.errors import ConfigError
from mesh.gossip.agent_answers import KeyReport, QueryReport
from mesh.gossip.coordinate_core import Coordinate
from mesh.gossip.exchange import ExchangeFailed
from mesh.gossip.key_queries_core import INSTALL_KEY, LIST_KEYS, REMOVE_KEY, USE_KEY
from mesh.gossip.member import Address
from mesh.gossip.pool_member import Listeners, MemberHealth
from mesh.gossip.rpc_connection import RpcConnection, RpcFault
from mesh.gossip.rpc_values import coordinate_of, member_of, text_of
from mesh.gossip.view import MemberChange, MemberStatus, MemberView

log = structlog.get_logger()

REDIAL_S: Final = 2.0
CALL_S: Final = 10.0
KEY_FILE_BYTES_MAX: Final = 4_096
REFRESH_EVERY_S: Final = 10.0
_COMMANDS: Final = {INSTALL_KEY: "install-key", USE_KEY: "use-key", REMOVE_KEY: "remove-key", LIST_KEYS: "list-keys"}
_CHANGES: Final = {
    "member-join": MemberChange.JOINED,
    "member-leave": MemberChange.LEFT,
    "member-failed": MemberChange.FAILED,
    "member-update": MemberChange.UPDATED,
    "member-reap": MemberChange.REAPED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcSettings:
    """Where the agent is. `key_file`: holds its rpc auth key, if it wants one. `seeds`: it is told to join them."""

    pool: str
    address: tuple[str, int]
    tags: Mapping[str, str]
    key_file: Path | None = None
    seeds: Sequence[str] = ()


class RpcMember:
    """A PoolMember behind a `serf agent`."""

    def __init__(self, settings: RpcSettings) -> None:
        self.settings = settings
        self.listeners = Listeners()
        self.counts: Counter[str] = Counter()
        self.address: Address = settings.address
        self._own_name = ""
        self._tags: Mapping[str, str] = settings.tags
        self._members: dict[str, MemberView] = {}
        self._connection: RpcConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._auth_key = _key_of(settings.key_file)
        self._coordinates: dict[str, Coordinate] = {}

    @property
    def own_name(self) -> str:
        """Return the agent's name, "" before it was asked."""
        return self._own_name

    async def start(self) -> None:
        """Reach the agent. Raises ConfigError: it is not there, or wants another key."""
        try:
            await self._connect()
        except (RpcFault, OSError, TimeoutError) as error:
            host, port = self.settings.address
            raise ConfigError(f"gossip.{self.settings.pool}.agent_rpc {host}:{port}: {error}") from error
        self._task = asyncio.get_running_loop().create_task(self._run(), name="gossip-rpc")

    async def stop(self, *, leave: bool = True) -> None:
        """Let go of the agent. It stays in its pool, without our tags, for it is not ours to stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            if leave:
                try:
                    await self._call("tags", {"Tags": {}, "DeleteTags": sorted(self._tags)}, body=False)
                except (RpcFault, OSError, TimeoutError) as error:
                    log.warning("gossip_rpc.tags_left", reason=str(error))
            self._connection.close()

    def members(self) -> list[MemberView]:
        """Return every member, by name."""
        return [self._members[name] for name in sorted(self._members)]

    def remembered(self) -> Mapping[str, Mapping[str, str]]:
        """Return nothing: what is remembered, the agent remembers."""
        return {}

    async def join_address(self, address: Address) -> None:
        """Let the agent join an address. Raises ExchangeFailed."""
        host, port = address
        try:
            await self._call("join", {"Existing": [f"{host}:{port}"], "Replay": False})
        except RpcFault as error:
            raise ExchangeFailed(str(error)) from error

    async def change_tags(self, tags: Mapping[str, str]) -> None:
        """Give the agent these tags, and take away ours that are not among them."""
        gone = sorted(set(self._tags) - set(tags))
        await self._call("tags", {"Tags": dict(tags), "DeleteTags": gone}, body=False)
        self._tags = dict(tags)

    def stalled(self, seconds: float) -> None:
        """Do nothing: the agent is another process, it does not stall with this one."""

    async def tell(self, name: str, payload: bytes, *, coalesce: bool = False) -> None:
        """Let the agent send a user event."""
        await self._call("event", {"Name": name, "Payload": payload, "Coalesce": coalesce}, body=False)

    async def query(
        self,
        name: str,
        payload: bytes = b"",
        *,
        filters: Sequence[bytes] = (),
        ack: bool = False,
        relay_factor: int = 0,
        timeout_s: float = 0.0,
    ) -> QueryReport:
        """Let the agent ask; `filters` must be empty (RpcFault): its RPC has them in another form."""
        if filters:
            raise RpcFault("an external agent is asked with `serf query`, which has the filters")
        body = {
            "FilterNodes": [],
            "FilterTags": {},
            "RequestAck": ack,
            "RelayFactor": relay_factor,
            "Timeout": int(timeout_s * 1e9),
            "Name": name,
            "Payload": payload,
        }
        acknowledged: list[str] = []
        answers: dict[str, bytes] = {}
        connection = self._there()
        async with asyncio.timeout(max(timeout_s, CALL_S) * 2):
            async for row in connection.stream("query", body):
                kind = text_of(row.get("Type"))
                if kind == "done":
                    break
                if kind == "ack":
                    acknowledged.append(text_of(row.get("From")))
                elif kind == "response":
                    answers[text_of(row.get("From"))] = _bytes_of(row.get("Payload"))
        return QueryReport(acknowledged=tuple(sorted(acknowledged)), answers=dict(sorted(answers.items())))

    async def keys(self, action: str, key: bytes = b"", *, timeout_s: float = 0.0) -> KeyReport:
        """Let the agent ask every member to do something with its keyring."""
        body = None if action == LIST_KEYS else {"Key": base64.b64encode(key).decode()}
        try:
            answer = await self._call(_COMMANDS[action], body)
        except RpcFault as fault:
            if not fault.body:
                raise
            answer = fault.body  # some members refused: it says which
        asked, failed = int(answer.get("NumNodes") or 0), int(answer.get("NumErr") or 0)
        answered = int(answer.get("NumResp") or 0)
        return KeyReport(
            members=asked,
            answered=answered,
            done=answered - failed,
            faults={text_of(name): text_of(text) for name, text in (answer.get("Messages") or {}).items()},
            keys={text_of(name): int(count) for name, count in (answer.get("Keys") or {}).items()},
            primaries={text_of(name): int(count) for name, count in (answer.get("PrimaryKeys") or {}).items()},
        )

    async def make_leave(self, name: str, *, prune: bool = False) -> None:
        """Let the agent say for a member that failed that it has left."""
        await self._call("force-leave", {"Node": name, "Prune": prune}, body=False)

    async def rtt(self, first: str, second: str) -> float | None:
        """Return the estimated round trip of two members; the agent knows itself and those it pinged."""
        one, other = await self._coordinate(first), await self._coordinate(second)
        return None if one is None or other is None else one.distance_s(other)

    def all_counts(self) -> Mapping[str, int]:
        """Return what happened, by fixed names."""
        return dict(self.counts)

    def health(self) -> MemberHealth:
        """Return what is known of the agent."""
        return MemberHealth()

    # --- the connection ----------------------------------------------------------------------------------

    def _there(self) -> RpcConnection:
        if self._connection is None or self._connection.is_closed:
            raise RpcFault("the external serf agent is not reached")
        return self._connection

    async def _call(self, command: str, arguments: Mapping[str, object] | None, *, body: bool = True) -> dict[str, Any]:
        async with asyncio.timeout(CALL_S):
            return await self._there().call(command, arguments, has_body=body)

    async def _connect(self) -> None:
        async with asyncio.timeout(CALL_S):
            connection = await RpcConnection.open(*self.settings.address)
            try:
                await connection.call("handshake", {"Version": 1}, has_body=False)
                if self._auth_key:
                    await connection.call("auth", {"AuthKey": self._auth_key}, has_body=False)
                stats = await connection.call("stats", None)
                self._own_name = text_of((stats.get("agent") or {}).get("name"))
                await connection.call("tags", {"Tags": dict(self._tags), "DeleteTags": []}, has_body=False)
                self._connection = connection
                await self._refresh()
            except BaseException:
                connection.close()
                raise
        if self.settings.seeds:
            try:
                await self._call("join", {"Existing": list(self.settings.seeds), "Replay": False})
            except RpcFault as error:
                log.warning("gossip_seed.not_joined", pool=self.settings.pool, reason=str(error))

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._follow())
                    group.create_task(self._refresh_forever())
            except* (RpcFault, OSError, TimeoutError) as group_error:
                self.counts["rpc_lost"] += 1
                log.warning("gossip_rpc.lost", pool=self.settings.pool, reason=str(group_error.exceptions[0]))
            await asyncio.sleep(REDIAL_S)
            try:
                await self._connect()
            except (RpcFault, OSError, TimeoutError) as error:
                log.debug("gossip_rpc.not_reached", reason=str(error))

    async def _follow(self) -> None:
        connection = self._there()
        async for row in connection.stream("stream", {"Type": "*"}):
            self._heard(row)
        raise RpcFault("the agent closed its event stream")

    async def _refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_EVERY_S)
            await self._refresh()

    async def _refresh(self) -> None:
        """Read all members, and tell what the event stream has missed."""
        answer = await self._call("members", None)
        found = {member.name: member for row in answer.get("Members") or () if (member := member_of(row)) is not None}
        for name, member in found.items():
            before = self._members.get(name)
            if before is None or (before.status, before.tags, before.address) != (
                member.status,
                member.tags,
                member.address,
            ):
                self._tell(_change_to(member, before), member)
        for name in set(self._members) - set(found):
            self._tell(MemberChange.REAPED, self._members[name])

    def _heard(self, row: Mapping[str, Any]) -> None:
        kind = text_of(row.get("Event"))
        if kind in _CHANGES:
            for raw in row.get("Members") or ():
                member = member_of(raw)
                if member is not None:
                    self._tell(_CHANGES[kind], member)
        elif kind == "user":
            self.listeners.on_event(text_of(row.get("Name")), _bytes_of(row.get("Payload")))
        elif kind == "query":
            self._query_heard(row)

    def _query_heard(self, row: Mapping[str, Any]) -> None:
        answer = self.listeners.on_query(text_of(row.get("Name")), _bytes_of(row.get("Payload")))
        if answer is not None and self._connection is not None:
            self._connection.post("respond", {"ID": row.get("ID"), "Payload": answer})

    def _tell(self, change: MemberChange, member: MemberView) -> None:
        if change is MemberChange.REAPED:
            self._members.pop(member.name, None)
        else:
            self._members[member.name] = member
        if member.name == self._own_name:
            self.address = member.address
        for told in self.listeners.on_member:
            told(change, member)

    async def _coordinate(self, name: str) -> Coordinate | None:
        answer = await self._call("get-coordinate", {"Node": name})
        return coordinate_of(answer.get("Coord")) if answer.get("Ok") else None


def _change_to(member: MemberView, before: MemberView | None) -> MemberChange:
    if before is not None and before.status is member.status:
        return MemberChange.UPDATED
    changes = {MemberStatus.FAILED: MemberChange.FAILED, MemberStatus.LEFT: MemberChange.LEFT}
    return changes.get(member.status, MemberChange.JOINED)


def _bytes_of(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    return value if isinstance(value, bytes) else b""


def _key_of(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            return file.read(KEY_FILE_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"agent_rpc_key_file {path} cannot be read") from error
