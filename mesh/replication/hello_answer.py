"""What the home answers to a mirror's HELLO.

Rule 1: a mirror whose records differ from ours gets no session, and is never given a position of our choice.
Rule 2: a mirror in an older epoch is told where the following one began; an epoch that is not in the table is one of
        which the mesh kept nothing. What the mirror has beyond that start is its own branch and is not compared.
Rule 3: only a mirror that needs what is deleted here is told to skip it, up to where whole batches are stored. That is
        also one whose own branch is so long that it hides how little of the stream it has.
"""

from __future__ import annotations

from typing import Final

import structlog

from georelay.errors import GeorelayError
from mesh.replication.frames import NO_DIGEST, PROTOCOL_VERSION_MIN, Hello, Redirect, Refused, Skip, Welcome
from mesh.replication.ports import CommittedLog
from mesh.replication.receiver_core import following_row
from mesh.replication.sender_core import Refusal, refuse_hello

log = structlog.get_logger()

CHECKSUM_VERSION: Final = 4  # of the link protocol: older brokers know no checksums in SKIP


async def answer_hello(
    hello: Hello, committed: CommittedLog | None, *, leader: int, peer_version: int = PROTOCOL_VERSION_MIN
) -> Welcome | Skip | Redirect | Refused:
    """Return the answer to a HELLO; reads a digest, from disk if need be."""
    if committed is None or not committed.is_serving:
        return Redirect(hello.session, leader)
    try:
        return await _welcome_or_refuse(hello, committed, peer_version)
    except GeorelayError as error:
        log.warning("link.read_failed", stream=str(hello.key), offset=hello.next_offset, reason=str(error))
        return Refused(hello.session, Refusal.NO_POSITION.value, f"offset {hello.next_offset} cannot be read: {error}")


async def _welcome_or_refuse(hello: Hello, committed: CommittedLog, peer_version: int) -> Welcome | Skip | Refused:
    table = tuple(committed.epoch_table())
    refusal = refuse_hello(
        epoch=hello.epoch, next_offset=hello.next_offset, table=table, high_watermark=committed.high_watermark
    )
    if refusal is not None:
        return Refused(hello.session, refusal[0].value, refusal[1])
    if hello.next_offset < committed.served_from:
        return _skip(hello, committed, peer_version)
    following = following_row(table, hello.epoch)
    # Beyond the start of the following epoch the mirror has its own branch: only the prefix can be compared.
    if following is None or hello.next_offset <= following[1]:
        digest = await committed.digest_before(hello.next_offset)
        if digest != hello.digest:
            what = "no entry ends there" if digest is None else "the digests differ"
            return Refused(hello.session, Refusal.DIVERGED.value, f"below offset {hello.next_offset}: {what}")
    following_digest = NO_DIGEST
    if following is not None:
        found = await committed.digest_before(following[1])
        if found is None and following[1] < committed.served_from:
            return _skip(hello, committed, peer_version)  # all that the mirror shares with this stream is deleted here
        if found is None:
            return Refused(hello.session, Refusal.NO_POSITION.value, f"no digest at offset {following[1]}")
        following_digest = found
    return Welcome(
        hello.session,
        hello.epoch,
        committed.control_index,
        committed.log_start,
        committed.high_watermark,
        following_digest,
        table,
    )


def _skip(hello: Hello, committed: CommittedLog, peer_version: int) -> Skip:
    point = committed.skip_point(checksums=peer_version >= CHECKSUM_VERSION)
    log.warning("link.mirror_is_behind", stream=str(hello.key), offset=hello.next_offset, log_start=point.last + 1)
    return Skip(hello.session, hello.epoch, point.last, point.digest, point.table, point.producers)
