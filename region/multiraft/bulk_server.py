"""Serves sealed segments to other brokers: bytes as they lie on disk, only what is committed.

Rule 1: nothing is read on the event loop.
Rule 2: one peer has at most REQUESTS_PER_PEER_MAX requests open; the rest is refused.
Rule 3: the answer to LIST begins with this broker's term: what it calls committed is committed in that term.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Final

import structlog

from georelay.errors import StorageFailed
from georelay.ids import BrokerId, GroupId, RaftIndex, Term
from region.log.errors import LogCorrupt, ReadInterrupted
from region.multiraft.bulk_wire import (
    LIST_ROWS_MAX,
    MANIFEST_BYTES_MAX,
    Ask,
    BulkAnswer,
    BulkFrame,
    BulkRequest,
    SegmentRow,
    Status,
    encode_rows,
)
from region.multiraft.group import Group

log = structlog.get_logger()

REQUESTS_PER_PEER_MAX: Final = 32
SEND_TRIES: Final = 20  # the lane back may have to be dialled first
SEND_AGAIN_MS: Final = 50
TERM: Final = struct.Struct(">Q")


class BulkServer:
    """Answers the bulk requests of peers.

    Args:
        send: one frame to a peer; False when it was dropped.
        spawn: runs a coroutine as long as the host runs.
    """

    def __init__(
        self,
        *,
        groups: Mapping[GroupId, Group],
        executor: Executor,
        send: Callable[[BrokerId, BulkFrame], bool],
    ) -> None:
        self.sent_bytes = 0  # since the start, for metrics
        self._groups = groups
        self._executor = executor
        self._send = send
        self._open: Counter[BrokerId] = Counter()

    async def answer(self, peer: BrokerId, request: BulkRequest) -> None:
        """Answer one request."""
        if self._open[peer] >= REQUESTS_PER_PEER_MAX:
            self._send(peer, BulkAnswer(request=request.request, status=Status.FAILED))
            return
        self._open[peer] += 1
        try:
            status, data = await self._serve(request)
            await self._deliver(peer, BulkAnswer(request=request.request, status=status, data=data))
        finally:
            self._open[peer] -= 1

    async def _deliver(self, peer: BrokerId, answer: BulkAnswer) -> None:
        for _ in range(SEND_TRIES):
            if self._send(peer, answer):
                return
            await asyncio.sleep(SEND_AGAIN_MS / 1000)

    async def _serve(self, request: BulkRequest) -> tuple[Status, bytes]:
        group = self._groups.get(request.group)
        if group is None or group.stopped:
            return Status.GONE, b""
        if request.ask is Ask.LIST:
            return Status.OK, _list(group, request.first)
        if request.ask is Ask.SEAL:
            if group.disk.sealed_index < request.first <= group.node.commit_index:
                group.seal()
            return Status.OK, b""
        loop = asyncio.get_running_loop()
        read = partial(_read if request.ask is Ask.READ else _read_manifest, group, request)
        try:
            data = await loop.run_in_executor(self._executor, read)
        except ReadInterrupted:
            return Status.GONE, b""
        except (LogCorrupt, StorageFailed) as error:
            log.warning("bulk.read_failed", group=request.group, first=request.first, reason=str(error))
            return Status.FAILED, b""
        self.sent_bytes += len(data)
        return (Status.OK, data) if data else (Status.GONE, b"")


def _list(group: Group, first: int) -> bytes:
    commit = group.node.commit_index
    corrupt = set(group.disk.corrupt_segments())
    rows = [
        SegmentRow(
            first_index=RaftIndex(info.first_index),
            last_index=RaftIndex(info.last_index),
            size_bytes=info.size_bytes,
            last_term=Term(info.last_term),
            previous_chain=info.previous_chain,
            last_chain=info.last_chain,
        )
        for info in group.disk.sealed_segments()
        if first <= info.last_index <= commit and info.first_index not in corrupt
    ]
    return TERM.pack(Term(group.node.term)) + encode_rows(rows[:LIST_ROWS_MAX])


def _read(group: Group, request: BulkRequest) -> bytes:
    return group.disk.read_segment_bytes(request.first, request.position, request.size)


def _read_manifest(group: Group, request: BulkRequest) -> bytes:
    manifest = group.disk.read_manifest(request.first)
    raw = b"" if manifest is None else manifest.encode()
    return raw if len(raw) <= MANIFEST_BYTES_MAX else b""
