"""Rows that brokers and gateways write beside the traffic: outcomes, probes and clocks of one region's chunk."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from georelay.trace.kinds import SCHEMA_VERSION, Operation, ProbeOutcome, TraceKind
from georelay.trace.schema import SCHEMAS
from sla.generate.clocks import HOST_ERROR_US, Clocks
from sla.generate.request import FaultKind
from sla.generate.world import NS_PER_MS, NS_PER_S, NS_PER_US, Int64, World

PROBE_TIMEOUT_MS: Final = 5_000
JITTER_US: Final = 300  # median of a path's
PEER_NS: Final = 20_000  # between a question's arrival and its answer
CLIENT_ERROR_SHARE: Final = 0.002
SERVER_ERROR_SHARE: Final = 0.0001
TIMEOUT_SHARE: Final = 0.00005
REFUSED_PER_S: Final = 3.0  # records of one stream, while a region refuses
OPERATIONS: Final = tuple(Operation)
GATEWAY_OPERATIONS: Final = (Operation.PUBLISH, Operation.CONSUME)


class Duties:
    """What is written every second, whatever is published."""

    def __init__(self, world: World, clocks: Clocks) -> None:
        self._world = world
        self._clocks = clocks
        self._rng = np.random.default_rng([world.request.seed, 5])
        self._refusals = np.random.default_rng([world.request.seed, 6])

    def is_down(self, region: int, at_ns: Int64) -> Any:
        """Return whether the brokers of a region are down at true times."""
        down = np.zeros(len(at_ns), dtype=np.bool_)
        for fault in self._world.of_kind(FaultKind.REGION_OUTAGE):
            start, end = self._world.span_ns(fault)
            down |= (at_ns >= start) & (at_ns < end) & (self._world.number(fault.region) == region)
        return down

    def _refuses(self, region: int, at_ns: Int64) -> Any:
        refuses = np.zeros(len(at_ns), dtype=np.bool_)
        for fault in self._world.of_kind(FaultKind.PUBLISH_REFUSED):
            start, end = self._world.span_ns(fault)
            refuses |= (at_ns >= start) & (at_ns < end) & (self._world.number(fault.region) == region)
        return refuses

    def is_refused(self, region: int, at_ns: Int64) -> Any:
        """Return whether the running brokers of a region refuse to publish at true times."""
        return self._refuses(region, at_ns) & ~self.is_down(region, at_ns)

    def refused_records(self, number: int) -> Int64:
        """Return how many records of one stream were refused in each of some seconds."""
        return self._refusals.poisson(REFUSED_PER_S, number).astype(np.int64)

    def outcomes(self, region: int, seconds: Int64, *, gateway: str) -> pa.Table | None:
        """Return one row per second and operation of a broker (gateway empty) or of a gateway."""
        world, rng = self._world, self._rng
        at_ns = seconds * NS_PER_S
        down = self.is_down(region, at_ns)
        if not gateway:
            seconds, at_ns, down = seconds[~down], at_ns[~down], down[~down]
        operations = GATEWAY_OPERATIONS if gateway else OPERATIONS
        number = len(seconds)
        if not number:
            return None
        share = world.request.rate_per_s / world.request.batch_records / len(world.regions)
        mean = share / (1 if gateway else world.request.brokers)
        parts: list[dict[str, Any]] = []
        for operation in operations:
            is_publish = operation is Operation.PUBLISH
            attempts = rng.poisson(0.1 if operation is Operation.CONNECT else mean, number)
            failing = down | (self._refuses(region, at_ns) if is_publish else False)
            client_error = rng.binomial(attempts, CLIENT_ERROR_SHARE)
            timeout = rng.binomial(attempts - client_error, TIMEOUT_SHARE)
            server_error = rng.binomial(attempts - client_error - timeout, np.where(failing, 1.0, SERVER_ERROR_SHARE))
            offered = rng.poisson(attempts * (1 if gateway else world.request.batch_records))
            parts.append(
                {
                    "second": seconds,
                    "op": np.full(number, OPERATIONS.index(operation)),
                    "attempts": attempts,
                    "ok": attempts - client_error - timeout - server_error,
                    "client_error": client_error,
                    "server_error": server_error,
                    "timeout": timeout,
                    "offered": np.where(is_publish, offered, 0),
                }
            )
        columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        order = np.argsort(columns["second"], kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
        columns["op"] = pa.array([operation.value for operation in OPERATIONS]).take(pa.array(columns["op"]))
        total = number * len(operations)
        columns["region"] = pa.repeat(world.regions[region], total)
        columns["gateway"] = pa.repeat(gateway, total)
        return _table(TraceKind.OUTCOME, columns, total)

    def probes(self, dest: int, seqs: Int64) -> pa.Table | None:
        """Return the rows that a region writes of the probes due in some seconds."""
        world = self._world
        rows: list[tuple[Any, ...]] = []
        due_ns = seqs * NS_PER_S
        own_down = self.is_down(dest, due_ns + PROBE_TIMEOUT_MS * NS_PER_MS)
        for origin in range(len(world.regions)):
            rows += self._probes_of(origin, dest, seqs, due_ns, own_down)
        rows += self._refused(dest, seqs, due_ns)
        if not rows:
            return None
        names = [field.name for field in SCHEMAS[TraceKind.PROBE] if field.name != "schema_version"]
        columns = {name: [row[index] for row in rows] for index, name in enumerate(names)}
        return _table(TraceKind.PROBE, columns, len(rows))

    def _probes_of(self, origin: int, dest: int, seqs: Int64, due_ns: Int64, own_down: Any) -> list[tuple[Any, ...]]:
        world = self._world
        names = world.regions
        is_sent = ~self.is_down(origin, due_ns) & ~self._refuses(origin, due_ns)
        took = world.delay_ns[origin, dest] + (self._rng.lognormal(8.0, 0.3, len(seqs)) * NS_PER_US).astype(np.int64)
        published = due_ns + 2 * NS_PER_MS
        delivered = published + took
        for fault in world.of_kind(FaultKind.LINK_CUT):
            if {world.number(fault.region), world.number(fault.peer)} == {origin, dest}:
                start, end = world.span_ns(fault)
                delivered = np.where((delivered >= start) & (delivered < end), end + took, delivered)
        sent_shown = self._clocks.shown(origin, due_ns)
        published_shown = self._clocks.shown(origin, published)
        delivered_shown = self._clocks.shown(dest, delivered)
        # A destination that is down reads the probes when it is back: those count as late, its own silence as nothing.
        is_late = delivered - due_ns > PROBE_TIMEOUT_MS * NS_PER_MS
        prober = str(world.leader(origin, 0))
        rows: list[tuple[Any, ...]] = []
        for index, seq in enumerate(seqs.tolist()):
            if own_down[index]:
                continue
            head = (names[origin], names[dest])
            if not is_sent[index] or is_late[index]:
                rows.append((*head, "", seq, seq * NS_PER_S, None, None, ProbeOutcome.LOST.value, PROBE_TIMEOUT_MS))
            if is_sent[index]:
                outcome = ProbeOutcome.LATE if is_late[index] else ProbeOutcome.OK
                row = (
                    *head,
                    prober,
                    seq,
                    int(sent_shown[index]),
                    int(published_shown[index]),
                    int(delivered_shown[index]),
                    outcome.value,
                    PROBE_TIMEOUT_MS,
                )
                rows.append(row)
                if seq % 97 == 0:  # two brokers took turns: both saw it
                    rows.append((*row[:6], row[6] + NS_PER_MS, *row[7:]))
        return rows

    def _refused(self, origin: int, seqs: Int64, due_ns: Int64) -> list[tuple[Any, ...]]:
        world = self._world
        refused = self._refuses(origin, due_ns) & ~self.is_down(origin, due_ns)
        prober = str(world.leader(origin, 0))
        shown = self._clocks.shown(origin, due_ns)
        return [
            (
                world.regions[origin],
                dest,
                prober,
                int(seqs[index]),
                int(shown[index]),
                None,
                None,
                ProbeOutcome.REFUSED.value,
                PROBE_TIMEOUT_MS,
            )
            for index in np.flatnonzero(refused)
            for dest in world.regions
        ]

    def clocks(self, region: int, broker: int, seconds: Int64) -> pa.Table | None:
        """Return the exchanges of one broker: one per second with one broker of every region, its own included."""
        world, clocks, rng = self._world, self._clocks, self._rng
        number_in_region = world.brokers(region).index(broker)
        at_ns = seconds * NS_PER_S + 500 * NS_PER_MS + number_in_region * 7 * NS_PER_MS
        at_ns = at_ns[~self.is_down(region, at_ns)]
        parts: list[dict[str, Any]] = []
        for peer in range(len(world.regions)):
            if not clocks.exchanges(region, peer) or (peer == region and world.request.brokers == 1):
                continue
            asked = at_ns[~self.is_down(peer, at_ns)]
            jitter = (rng.lognormal(np.log(JITTER_US), 1.0, (2, len(asked))) * NS_PER_US).astype(np.int64)
            if peer == region:
                jitter[1] = jitter[0]  # on one wire: the estimate of a clock that is the own one is exact
            there = asked + world.delay_ns[region, peer] + jitter[0]
            back = there + PEER_NS
            home = back + world.delay_ns[peer, region] + jitter[1]
            t1, t4 = clocks.shown(region, asked), clocks.shown(region, home)
            t2, t3 = clocks.shown(peer, there), clocks.shown(peer, back)
            others = [name for name in world.brokers(peer) if name != broker]
            turn = asked // NS_PER_S % len(others)
            number = len(asked)
            parts.append(
                {
                    "peer": np.array([str(name) for name in others])[turn],
                    "t1_ns": t1,
                    "t2_ns": t2,
                    "t3_ns": t3,
                    "t4_ns": t4,
                    "theta_ns": ((t2 - t1) + (t3 - t4)) // 2,
                    "delta_ns": (home - asked) - (back - there),
                    "mono_ns": home - world.start_ns + 1_000 * NS_PER_S,
                    "host_maxerr_us": np.full(number, HOST_ERROR_US),
                }
            )
        if not sum(len(part["t4_ns"]) for part in parts):
            return None
        columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        number = len(columns["t4_ns"])
        order = np.argsort(columns["mono_ns"], kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
        is_known = bool(clocks.is_host_known[region])
        columns["host_maxerr_us"] = pa.array(columns["host_maxerr_us"], pa.int64(), mask=np.full(number, not is_known))
        columns["host_unsync"] = pa.repeat(not is_known, number)
        columns["region"] = pa.repeat(world.regions[region], number)
        columns["broker"] = pa.repeat(str(broker), number)
        columns["boot_id"] = pa.repeat("", number)
        return _table(TraceKind.CLOCK, columns, number)


def _table(kind: TraceKind, columns: dict[str, Any], number: int) -> pa.Table:
    """Return the table of a kind from its columns, whatever their integers are."""
    columns["schema_version"] = pa.repeat(SCHEMA_VERSION, number)
    fields = SCHEMAS[kind]
    arrays = [
        columns[field.name].cast(field.type)
        if isinstance(columns[field.name], pa.Array)
        else pa.array(columns[field.name], field.type)
        for field in fields
    ]
    return pa.Table.from_arrays(arrays, schema=fields)
