"""Questions of one member to others, and of others to it, the internal ones included (serf-wire 2.7). Pure.

Rule 1: a question is told on even where its filters mean others: who relays it is not asked.
Rule 2: an answer is sent once, before the deadline, straight to the asker; its own questions a member answers itself.
Rule 3: who loses the vote about its name by a majority of the answers ends; no answer is no vote.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from mesh.gossip.codec import user_message
from mesh.gossip.effects import SendPacket
from mesh.gossip.event_ring_core import EventRing
from mesh.gossip.faults import CodecError
from mesh.gossip.key_queries_core import KEY_QUERIES, answer_key_query, cut_to
from mesh.gossip.keyring import Keyring
from mesh.gossip.lamport_core import LamportClock
from mesh.gossip.member import Address, Member
from mesh.gossip.member_table_core import MemberRow
from mesh.gossip.query_core import RunningQuery, TagMatch, default_timeout_s, is_meant
from mesh.gossip.query_payloads import INTERNAL_PREFIX, UNKNOWN_NAME, ConflictResponse
from mesh.gossip.randomness import Randomness
from mesh.gossip.serf_effects import KeysChanged, NameLost, QueryAnswered, QueryHeard, QueryOver, SerfEffect
from mesh.gossip.serf_messages import Query, QueryFlag, QueryResponse, Relay
from mesh.gossip.view import MemberStatus

QUERY_BYTES_MAX: Final = 1_024
RESPONSE_BYTES_MAX: Final = 1_024
RUNNING_MAX: Final = 256
TIMEOUT_S_MAX: Final = 600.0
CONFLICT: Final = "_serf_conflict"
PING: Final = "_serf_ping"
STATUS_NUMBERS: Final = {
    MemberStatus.ALIVE: 1,
    MemberStatus.LEAVING: 2,
    MemberStatus.LEFT: 3,
    MemberStatus.FAILED: 4,
}


class TooLong(ValueError):
    """A user event, question or answer does not fit."""


class Spread(Protocol):
    """BroadcastQueue.push."""

    def __call__(self, body: bytes, *, key: str | None = None) -> int:
        """Queue a broadcast; returns its ticket."""


class SerfQueries:
    """Args:
    clock: of queries. floor: older ones were heard in an earlier run. rows: members by name, read only.
    spread: queues a broadcast. effects: where effects are put. relays: random members that pass messages on.
    """

    def __init__(
        self,
        *,
        me: str,
        address: Address,
        clock: LamportClock,
        floor: int,
        rng: Randomness,
        keyring: Keyring | None,
        rows: Mapping[str, MemberRow],
        tags: Callable[[], Mapping[str, str]],
        match: TagMatch,
        gossip_interval_s: float,
        spread: Spread,
        effects: list[SerfEffect],
        counts: Counter[str],
        relays: Callable[[int], list[Member]],
    ) -> None:
        self.clock = clock
        self._me = me
        self._address = address
        self._rng = rng
        self._keyring = keyring
        self._rows = rows
        self._tags = tags
        self._match = match
        self._gossip_interval_s = gossip_interval_s
        self._spread = spread
        self._effects = effects
        self._counts = counts
        self._relays = relays
        self._heard: EventRing[int] = EventRing()
        self._heard.raise_floor(floor)
        self._running: dict[int, RunningQuery] = {}
        self._votes: dict[int, list[Address]] = {}  # by id, of questions about our own name
        self._open: dict[tuple[int, int], float] = {}  # others' questions that may be answered, until when

    def raise_floor(self, ltime: int) -> None:
        """Take questions before `ltime` for old."""
        self._heard.raise_floor(ltime)

    # --- our questions ------------------------------------------------------------------------------------

    def ask(
        self,
        name: str,
        payload: bytes,
        now: float,
        *,
        filters: Sequence[bytes],
        ack: bool,
        relay_factor: int,
        timeout_s: float,
        alive: int,
    ) -> int:
        """See Serf.query."""
        timeout_s = min(TIMEOUT_S_MAX, timeout_s or default_timeout_s(self._gossip_interval_s, alive))
        query = Query(
            ltime=self.clock.time,
            query_id=self._rng.randrange(1 << 32),
            address=self._address,
            source=self._me,
            filters=filters,
            flags=QueryFlag.ACK if ack else 0,
            relay_factor=relay_factor,
            timeout_ns=int(timeout_s * 1e9),
            name=name,
            payload=payload,
        )
        raw = query.encode()
        if len(raw) > QUERY_BYTES_MAX:
            raise TooLong(f"the query takes {len(raw)} bytes; a query may take {QUERY_BYTES_MAX}")
        if len(self._running) >= RUNNING_MAX:
            raise TooLong(f"{RUNNING_MAX} queries are open; wait for their answers")
        self._running[query.ltime] = RunningQuery(ltime=query.ltime, query_id=query.query_id, deadline=now + timeout_s)
        self.heard(query, raw, now)
        return query.query_id

    def response_heard(self, response: QueryResponse, now: float) -> None:
        """Take in an answer or an acknowledgement."""
        running = self._running.get(response.ltime)
        if running is None or not running.take(response, now):
            self._counts["response_dropped"] += 1
            return
        votes = self._votes.get(response.query_id)
        if votes is None:
            answer = QueryAnswered(response.query_id, response.sender, response.is_ack, response.payload)
            self._effects.append(answer)
        elif not response.is_ack:
            self._vote(votes, response.payload)

    def settle_conflict(self, now: float, *, alive: int) -> None:
        """Ask who of two members with our name is meant."""
        if self._votes:
            return  # asked already
        query_id = self.ask(
            CONFLICT, self._me.encode(), now, filters=(), ack=False, relay_factor=0, timeout_s=0.0, alive=alive
        )
        self._votes[query_id] = []

    def _vote(self, votes: list[Address], payload: bytes) -> None:
        try:
            answer = ConflictResponse.decode(payload)
        except CodecError:
            self._counts["response_refused"] += 1
            return
        if answer is not None and answer.name == self._me:
            votes.append(answer.address)

    def next_due(self) -> float:
        """Return when the next question is over."""
        ends = [running.deadline for running in self._running.values()]
        return min([*ends, *self._open.values()], default=float("inf"))

    def tick(self, now: float) -> None:
        """Close what is over."""
        for key in [key for key, until in self._open.items() if until <= now]:
            del self._open[key]
        for running in [running for running in self._running.values() if running.deadline <= now]:
            del self._running[running.ltime]
            votes = self._votes.pop(running.query_id, None)
            if votes is None:
                self._effects.append(QueryOver(running.query_id))
            elif len(votes) < 2 * sum(address != self._address for address in votes):
                self._effects.append(NameLost(next(address for address in votes if address != self._address)))

    # --- others' questions ----------------------------------------------------------------------------------

    def heard(self, query: Query, raw: bytes, now: float) -> None:
        """Take in a question, ours included."""
        self.clock.witness(query.ltime)
        if not self._heard.accept(query.ltime, query.query_id, clock=self.clock.time):
            return
        if not query.flags & QueryFlag.NO_REBROADCAST:
            self._spread(raw)
        if not is_meant(query.filters, name=self._me, tags=self._tags(), match=self._match):
            return
        if query.flags & QueryFlag.ACK:
            self._send(query, QueryResponse(ltime=query.ltime, query_id=query.query_id, sender=self._me, is_ack=True))
        if query.name.startswith(INTERNAL_PREFIX):
            self._answer_internal(query)
            return
        deadline = now + min(query.timeout_ns / 1e9, TIMEOUT_S_MAX)
        if len(self._open) < RUNNING_MAX:
            self._open[(query.ltime, query.query_id)] = deadline
            self._effects.append(QueryHeard(query, deadline))

    def respond(self, query: Query, payload: bytes) -> None:
        """Answer a question that the application was told; a second answer, or a late one, is dropped."""
        response = QueryResponse(
            ltime=query.ltime, query_id=query.query_id, sender=self._me, is_ack=False, payload=payload
        )
        size = len(response.encode())
        if size > RESPONSE_BYTES_MAX:
            raise TooLong(f"the answer takes {size} bytes; an answer may take {RESPONSE_BYTES_MAX}")
        if self._open.pop((query.ltime, query.query_id), None) is None:
            self._counts["answer_late"] += 1
            return
        self._send(query, response)

    def _answer_internal(self, query: Query) -> None:
        if query.name in KEY_QUERIES:
            answer = answer_key_query(query.name, query.payload, self._keyring)
            if answer.changed:
                self._effects.append(KeysChanged())
            shell = QueryResponse(ltime=query.ltime, query_id=query.query_id, sender=self._me, is_ack=False)
            room = RESPONSE_BYTES_MAX - len(shell.encode()) - 8
            payload = cut_to(answer.response, room_bytes=room).encode()
        elif query.name == CONFLICT:
            name = query.payload.decode("utf-8", "replace")
            if name == self._me:
                return  # two of that name ask; those who know only one decide
            payload = self._known_as(name)
        else:
            return  # PING is answered by its acknowledgement; what is newer than this text, not at all
        self._send(
            query,
            QueryResponse(ltime=query.ltime, query_id=query.query_id, sender=self._me, is_ack=False, payload=payload),
        )

    def _known_as(self, name: str) -> bytes:
        row = self._rows.get(name)
        if row is None:
            return UNKNOWN_NAME
        status = STATUS_NUMBERS[row.status]
        return ConflictResponse(name=row.name, address=row.address, tags=row.tags, status=status).encode()

    def _send(self, query: Query, response: QueryResponse) -> None:
        raw = response.encode()
        self._effects.append(SendPacket(address=query.address, messages=user_message(raw), with_crc=False))
        if query.relay_factor and query.address != self._address:
            relay = Relay(address=query.address, name=query.source, body=raw).encode()
            for member in self._relays(query.relay_factor):
                self._effects.append(SendPacket(address=member.address, messages=user_message(relay), with_crc=False))
